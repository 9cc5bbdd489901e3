"""Which step comes next and when it costs least: the ladder, and the moment to interrupt a job."""
