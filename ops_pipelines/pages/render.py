"""Fills the templates: everything is escaped, nothing is fetched, no script runs. Knows no page's meaning.

What came from logs, jobs and users is text in a page and never markup: autoescape is on for every template, and a
missing value is an error instead of a hole. What a reader cannot see (controls, direction marks) is shown as a sign.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ops_pipelines.review.story.chain import span_words

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What a browser may do with our pages: show them, and send their forms back to us. Also in each page itself."""


def render(template: str, values: Mapping[str, object]) -> str:
    """Return the whole page of `templates/{template}`; raises jinja2.UndefinedError where a value is missing."""
    return _environment().get_template(template).render(values)


def drawn(svg: str) -> Markup:
    """Return a picture that `report.pictures` drew, and escaped itself, as the markup that it is."""
    return Markup(svg)  # noqa: S704 our own pictures alone


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ops_pipelines.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["moment"] = moment
    environment.filters["duration"] = duration
    environment.filters["percent"] = percent
    environment.globals["content_security_policy"] = CONTENT_SECURITY_POLICY.replace("; frame-ancestors 'none'", "")
    return environment


def _seen(value: object) -> object:
    """Return a text in which nothing is hidden: a direction mark could turn the words of an approval around.

    Lone surrogates, which no page can be encoded with, go the same way.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(char if char.isprintable() or char in _SPACES else _UNSEEN for char in str(value))


_SPACES = frozenset("\n\t\u00a0\u2009\u202f")
_UNSEEN = "\ufffd"


def moment(at: datetime | None) -> str:
    """Return a time as `2026-11-22 08:15:02 UTC`; a dash where there is none."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(span: timedelta | None) -> str:
    """Return a span in its two largest units, as `2 h 5 min`; a dash where there is none."""
    return "-" if span is None else span_words(span.total_seconds())


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a ratio 0..1 as `94.2 %`; a dash where there is none."""
    return "-" if ratio is None else f"{ratio:.{digits}%}".replace("%", " %")
