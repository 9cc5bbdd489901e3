"""What a policy would do: the production decision in simulated time, beside peers under the same faults."""
