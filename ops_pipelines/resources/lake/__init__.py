"""The lake as Parquet files, in a directory or an object store."""
