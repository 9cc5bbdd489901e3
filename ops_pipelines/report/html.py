"""Draws documents as HTML pages: everything is escaped, nothing is fetched, no script runs. Knows no page's meaning.

What came from logs, jobs and users is text in a page and never markup: autoescape is on for every template, and a
missing value is an error instead of a hole. What a reader cannot see (controls, direction marks) is shown as a sign.
Loads jinja2: for the edges alone.
"""

from collections.abc import Mapping
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ops_pipelines.report import numbers
from ops_pipelines.report.charts import bar_svg, shares_svg, spark_svg, swatch_svg
from ops_pipelines.report.document import Bar, Chart, Document, Kind, Shares, Spark, clipped, spans_of

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""What a browser may do with our pages: show them, and send their forms back to us. Also in each page itself."""


def page_of(document: Document) -> str:
    """Return a document as a whole page."""
    return render("document.html", {"document": document})


def render(template: str, values: Mapping[str, object]) -> str:
    """Return the whole page of `templates/{template}`; raises jinja2.UndefinedError where a value is missing."""
    return _environment().get_template(template).render(values)


def _ours(svg: str) -> Markup:
    """Return a picture that `report.charts` or `report.pictures` drew, and escaped itself, as the markup that it is."""
    return Markup(svg)  # noqa: S704 our own pictures alone


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ops_pipelines.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=numbers.moment,
        duration=numbers.duration,
        clipped=lambda text, at_most: clipped(text, at_most=at_most),
        spans=spans_of,
        drawn=_drawn,
        shown=numbers.shown,
        swatch=lambda shade: _ours(swatch_svg(shade)),
    )
    environment.tests["drawing"] = lambda value: isinstance(value, Bar | Spark)
    environment.tests["words"] = _is_words
    environment.globals["content_security_policy"] = CONTENT_SECURITY_POLICY.replace("; frame-ancestors 'none'", "")
    environment.globals["Kind"] = Kind
    environment.globals["block_name"] = lambda block: type(block).__name__
    return environment


def _is_words(value: object) -> bool:
    return isinstance(value, str | tuple) or hasattr(value, "text")


def _drawn(drawing: Bar | Spark | Shares | Chart) -> Markup:
    match drawing:
        case Bar():
            return _ours(bar_svg(drawing))
        case Spark():
            return _ours(spark_svg(drawing))
        case Shares():
            return _ours(shares_svg(drawing))
        case Chart():
            return _ours(drawing.svg)


def _seen(value: object) -> object:
    return numbers.seen(value) if isinstance(value, str) and not isinstance(value, Markup) else value
