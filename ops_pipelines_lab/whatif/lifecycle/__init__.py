"""A cluster under a rollout, in simulated time: what a release does to it, and what each way of rolling out costs."""
