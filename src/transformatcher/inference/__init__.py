"""Two photos in, matches out: the matcher, its checkpoints, and everything built on it."""
