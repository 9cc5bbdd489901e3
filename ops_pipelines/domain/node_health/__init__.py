"""What tests on a node found, and the floors that they are judged against."""
