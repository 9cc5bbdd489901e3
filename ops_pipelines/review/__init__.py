"""What was, looked at again: incidents reported, weeks reviewed, days replayed under another policy."""
