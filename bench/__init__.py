"""How fast, against a peer in the same run. `make bench` prints the tables; nothing here is a test."""
