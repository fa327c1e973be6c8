"""The matcher in the shapes that users of other libraries know: kornia, RoMa, vismatch."""
