"""Pictures that need no browser to be drawn: hours, incidents and remediation, as Markdown or PNG."""
