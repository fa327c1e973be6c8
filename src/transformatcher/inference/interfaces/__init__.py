"""The matcher with the interfaces of other libraries: kornia, RoMa, vismatch."""
