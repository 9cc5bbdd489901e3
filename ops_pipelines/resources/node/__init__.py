"""What runs on a node itself: tests of its hardware, installations, and which versions run there."""
