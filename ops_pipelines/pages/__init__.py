"""Self-contained HTML for people: one module a page, for what needs a template of its own.

Each module is its face by one function, `write_...`, which returns the whole page. Shows values of the subjects;
decides and reads nothing. What a `report.document` can say needs no page here.
"""
