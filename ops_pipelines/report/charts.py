"""Small drawings of a document as SVG for a page: bars with marks, curves, strips, what colours mean.

Knows lengths, colours and words, not what they mean. Lines and marks take the page's own colours by class, so that they
can be read on dark paper too. Words are escaped here; whole pictures with axes are `report.pictures`.
"""

from collections.abc import Mapping, Sequence
from html import escape

from ops_pipelines.report.document import Bar, Shade, Shares, Spark
from ops_pipelines.report.numbers import seen, share_of

COLOURS: Mapping[Shade, str] = {
    Shade.NONE: "none", Shade.GREY: "#b3b9c2", Shade.PALE: "#a6cee3", Shade.BLUE: "#0072b2", Shade.ORANGE: "#d55e00",
    Shade.GREEN: "#35a57f", Shade.YELLOW: "#e69f00", Shade.PINK: "#cc79a7", Shade.SKY: "#56b4e9",
}  # fmt: skip
STEPS = ("#e3edf7", "#a6cee3", "#5fa8d3", "#2171b5", "#08306b")
"""From least to most."""
_SPARK_WIDE, _SPARK_TALL = 84.0, 20.0


def bar_svg(bar: Bar) -> str:
    """Return a bar as wide as its cell."""
    drawn = '<rect class="track" y="5" width="100%" height="16"/>'
    at = 0.0
    for length, shade in bar.parts:
        wide = min(length, 1.0 - at)
        if wide > 0 and shade is not Shade.NONE:
            drawn += f'<rect x="{_percent(at)}" y="7" width="{_percent(wide)}" height="12" fill="{COLOURS[shade]}"/>'
        at = min(1.0, at + wide)
    if bar.outline is not None:
        drawn += f'<rect class="outline" y="5" width="{_percent(bar.outline)}" height="16"/>'
    for each in bar.ticks:
        drawn += f'<line class="tick" x1="{_percent(each)}" x2="{_percent(each)}" y1="1" y2="25"/>'
    for each in bar.rings:
        if each > 1:
            drawn += '<text x="100%" y="17" text-anchor="end" fill="currentColor" font-size="13">&#8250;</text>'
        else:
            drawn += f'<circle class="ring" cx="{_percent(min(each, 0.995))}" cy="13" r="4.5"/>'
    for each in bar.dots:
        drawn += f'<circle class="dot" cx="{_percent(min(each, 0.995))}" cy="13" r="3"/>'
    return f'<svg class="bar" height="26" {_label(bar.said)}>{drawn}</svg>'


def spark_svg(spark: Spark) -> str:
    """Return a stepped curve from 0 to its largest value; nothing of fewer than two values."""
    values = spark.values
    if len(values) < 2:
        return ""
    top, wide = max(1.0, *values), _SPARK_WIDE / len(values)
    heights = [1 + (_SPARK_TALL - 2) * (1 - each / top) for each in values]
    points = [(x, y) for number, y in enumerate(heights) for x in (number * wide, (number + 1) * wide)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    size = f'width="{_SPARK_WIDE:g}" height="{_SPARK_TALL:g}" viewBox="0 0 {_SPARK_WIDE:g} {_SPARK_TALL:g}"'
    return f'<svg class="spark" {size} {_label(spark.said)}><polyline points="{path}"/></svg>'


def shares_svg(shares: Shares) -> str:
    """Return one bar over the whole width."""
    drawn, at = "", 0.0
    for each in shares.parts:
        wide = min(share_of(each.size, shares.whole), 1.0 - at)
        if wide > 0:
            drawn += f'<rect x="{_percent(at)}" width="{_percent(wide)}" height="22" fill="{COLOURS[each.shade]}"/>'
        at += wide
    return f'<svg class="strip" height="22" {_label(shares.title)}>{drawn}</svg>'


def steps_svg(cells: Sequence[tuple[int, str]], *, title: str) -> str:
    """Return cells beside each other, darker the higher their step 0 to 4; each says its words."""
    wide = 1 / max(1, len(cells))
    drawn = "".join(
        f'<rect class="s{step}" x="{_percent(number * wide)}" width="{_percent(wide)}" height="34" '
        f'fill="{STEPS[step]}"><title>{_words(said)}</title></rect>'
        for number, (step, said) in enumerate(cells)
    )
    return f'<svg class="strip" height="34" role="img" aria-label="{_words(title)}">{drawn}</svg>'


def swatch_svg(colour: Shade | int) -> str:
    """Return a patch of a colour, or of a step."""
    fill = COLOURS[colour] if isinstance(colour, Shade) else STEPS[colour]
    return f'<svg class="swatch" width="12" height="12"><rect width="12" height="12" fill="{fill}"/></svg>'


def _label(said: str) -> str:
    return f'role="img" aria-label="{_words(said)}"'


def _words(text: str) -> str:
    return escape(seen(text)[:300], quote=True)


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2f}".rstrip("0").rstrip(".") + "%"
