"""What nobody sees: series that are expected and missing, and since when."""
