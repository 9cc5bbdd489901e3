"""The lake: bytes of sources and files -> checked rows by hour, their schema and what is expected of them.

Others import `schema` (tables and columns), `quantities` and `node_names` (what is measured, and where), `hours`,
`inventory`, `accounting`, `rates` and `telemetry` (rows of an hour, read), `expectations` and `profile` (what a closed
hour must be). `formats` and `metrics` turn bytes into rows: they are for `observe`, which takes them in, and for the
adapters that fetch them.
"""
