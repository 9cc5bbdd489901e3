"""Which version is older, what may run with what, and who runs something else than declared."""
