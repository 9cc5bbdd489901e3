"""What was, looked at again: incidents told, weeks reviewed, days replayed under another policy. Acts on nothing."""
