"""A long list of pairs → matches in Parquet files. Start reading at ``parquet_shards.py``."""
