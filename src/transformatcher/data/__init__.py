"""Benchmarks and the user's own annotations → :class:`transformatcher.schema.ImagePair` records."""
