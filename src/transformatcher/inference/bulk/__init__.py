"""A long list of pairs → matches in Parquet files: `parts.py` is the place to start reading."""
