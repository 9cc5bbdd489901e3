"""Answers of metric sources -> wide tables: decoded, placed by the catalogue, past the hard gates."""
