"""How anything is shown: the document of a report, the renderers that draw it, and pictures.

Subjects import `document`, `numbers`, `charts` and `pictures`. The edges alone import the renderers:
`terminal` (rich), `html` (jinja2) and `metadata` (Dagster).
"""

__all__ = [
    "charts",
    "document",
    "html",
    "metadata",
    "numbers",
    "pictures.bars",
    "pictures.capacity",
    "pictures.hours",
    "pictures.incidents",
    "pictures.rollouts",
    "pictures.story",
    "terminal",
]
