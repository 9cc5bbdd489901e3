"""Whether a wave did well: what is compared, the tests that may be looked at at any time, the verdict."""
