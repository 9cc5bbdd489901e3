"""Self-contained HTML for people: one module a page. Shows values of the subjects; decides and reads nothing."""
