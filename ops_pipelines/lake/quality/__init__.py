"""What a closed hour must be, as data, and the few numbers that it is judged by."""
