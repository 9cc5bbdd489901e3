"""What people do to nodes through us, and the queue of nodes that wait for their hands."""
