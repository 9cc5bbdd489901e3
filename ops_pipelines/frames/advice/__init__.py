"""Evidence for advice: what jobs that are alike did, from the lake's tables, and what lies on file systems unread."""
