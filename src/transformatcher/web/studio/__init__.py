"""The studio: a page on a folder of photos and its project, and the server behind it."""
