"""The lake: bytes of sources and files -> gated rows by hour, their schema and their quality."""
