"""One module for each kind of file from outside: its bytes in, accepted and rejected records out."""
