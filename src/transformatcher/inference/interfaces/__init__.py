"""The matcher in the interfaces of libraries (kornia, RoMa, vismatch) and of annotation tools (CVAT, Label Studio)."""
