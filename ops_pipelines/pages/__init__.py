"""Self-contained HTML for people: one module a page. Shows values of `flow` and `domain`; decides and reads nothing."""
