"""What people say to the autopilot: stop, go on, yes to exactly this plan; and what the calendar tells them."""
