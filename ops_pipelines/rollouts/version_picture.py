"""A picture of versions: a row a component, a column a node, in the colour of whether it runs what it should.

Readable at a thousand nodes: a single node that drifts is drawn wide enough to be seen. Small in place, or large.
"""

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.lake.hours import natural_order
from ops_pipelines.report.markdown import escape_markdown
from ops_pipelines.report.pictures.canvas import LETTER_HEIGHT, Canvas, Colour, text_width
from ops_pipelines.report.pictures.hours import INLINE_AT_MOST
from ops_pipelines.rollouts.versions.comparing import Fit, VersionLine

_TITLE = "versions: components x nodes"
_PAPER, _INK, _LINE = 0, 1, 2
_COLOURS: Mapping[Fit, int] = {Fit.FITS: 3, Fit.DRIFTS: 4, Fit.UNKNOWN: 5, Fit.FREE: 6}
_WORDS: Mapping[Fit, str] = {
    Fit.FITS: "as it should be",
    Fit.DRIFTS: "another version",
    Fit.UNKNOWN: "not told",
    Fit.FREE: "nobody says which",
}
_PALETTE: tuple[Colour, ...] = (
    (255, 255, 255), (34, 34, 34), (120, 124, 130), (0, 158, 115), (213, 94, 0), (200, 204, 210), (166, 206, 227),
)  # fmt: skip
"""Okabe and Ito's colours, which colour-blind eyes tell apart."""
_LOUDEST_LAST = (Fit.FREE, Fit.FITS, Fit.UNKNOWN, Fit.DRIFTS)
"""Where several nodes share a pixel, the last of these is seen."""
_WIDE, _LEAST_SEEN = 960, 3
_SMALL_WIDE = 360
_ROW, _SMALL_ROW = LETTER_HEIGHT + 8, 8
_COMPONENTS_IN_WORDS = 3


def picture_of_versions(lines: Sequence[VersionLine]) -> tuple[str, str]:
    """Return the picture as Markdown: small enough to be shown in place, and large. Without lines, words alone."""
    words = escape_markdown(_summary(lines))
    if not lines:
        return words, words
    nodes = _order(lines)
    components = tuple(dict.fromkeys(sorted((each.component for each in lines), key=list(Component).index)))
    fits = {(each.component, each.node): each.fit for each in lines}
    small = f"{_image(_strips(nodes, components, fits))}\n\n{words}"
    return small if len(
        small
    ) < INLINE_AT_MOST else words, f"{_image(_sheet(nodes, components, fits, lines))}\n\n{words}"


def _order(lines: Sequence[VersionLine]) -> tuple[NodeName, ...]:
    """Return the nodes, those of one model together, in the order of people."""
    models = {each.node: each.model for each in lines}
    names = natural_order(models)
    return tuple(NodeName(name) for name in sorted(names, key=lambda name: models[NodeName(name)]))


def _summary(lines: Sequence[VersionLine]) -> str:
    drifts = Counter(each.component for each in lines if each.fit is Fit.DRIFTS)
    nodes = {each.node for each in lines}
    if not drifts:
        silent = sum(each.fit is Fit.UNKNOWN for each in lines)
        return f"{len(nodes)} nodes, no drift" + (f", {silent} versions not told" if silent else "")
    most = ", ".join(f"{each.value} on {count}" for each, count in drifts.most_common(_COMPONENTS_IN_WORDS))
    more = f" and {len(drifts) - _COMPONENTS_IN_WORDS} more" if len(drifts) > _COMPONENTS_IN_WORDS else ""
    return f"{len(nodes)} nodes; other versions than they should have: {most}{more}"


def _strips(
    nodes: Sequence[NodeName], components: Sequence[Component], fits: Mapping[tuple[Component, NodeName], Fit]
) -> bytes:
    """Return the cells alone, as few bytes as they can be: the words stand below."""
    canvas = Canvas(width=_SMALL_WIDE, height=_SMALL_ROW * len(components), palette=_PALETTE)
    for row, component in enumerate(components):
        _cells(canvas, nodes, component, fits, left=0, top=row * _SMALL_ROW, wide=_SMALL_WIDE, tall=_SMALL_ROW - 1)
    return canvas.png()


def _sheet(
    nodes: Sequence[NodeName],
    components: Sequence[Component],
    fits: Mapping[tuple[Component, NodeName], Fit],
    lines: Sequence[VersionLine],
) -> bytes:
    labels = [each.value for each in components]
    left = 16 + max(map(text_width, labels))
    key_width = sum(text_width(words) + 46 for words in _WORDS.values())
    width = max(left + _WIDE + 8, 16 + key_width)
    top = 34 + _ROW
    bottom = top + _ROW * len(components)
    canvas = Canvas(width=width, height=bottom + 2 * _ROW + 8, palette=_PALETTE)
    canvas.write(8, 8, f"{_TITLE}, {len(nodes)} nodes", colour=_INK)
    for row, (component, label) in enumerate(zip(components, labels, strict=True)):
        y = top + row * _ROW
        canvas.write(8, y + 2, label, colour=_INK)
        _cells(canvas, nodes, component, fits, left=left, top=y, wide=_WIDE, tall=_ROW - 4)
    _write_models(canvas, nodes, {each.node: each.model for each in lines}, left=left, top=top, bottom=bottom)
    first, last = _plain(nodes[0]), _plain(nodes[-1])
    canvas.write(left, bottom + 2, first, colour=_INK)
    if len(nodes) > 1:
        canvas.write(max(left + text_width(first) + 24, left + _WIDE - text_width(last)), bottom + 2, last, colour=_INK)
    x = 8
    for fit, words in _WORDS.items():
        canvas.box(x, bottom + _ROW + 4, width=16, height=LETTER_HEIGHT, colour=_COLOURS[fit])
        canvas.write(x + 22, bottom + _ROW + 4, words, colour=_INK)
        x += text_width(words) + 46
    return canvas.png()


def _write_models(
    canvas: Canvas, nodes: Sequence[NodeName], models: Mapping[NodeName, str], *, left: int, top: int, bottom: int
) -> None:
    """Write each model above its nodes where there is room, with a line where it begins."""
    begins = [place for place, node in enumerate(nodes) if place == 0 or models[node] != models[nodes[place - 1]]]
    for place, end in zip(begins, [*begins[1:], len(nodes)], strict=True):
        x, until = (left + round(number * _WIDE / len(nodes)) for number in (place, end))
        if place:
            canvas.box(x, top - _ROW, width=1, height=bottom - top + _ROW, colour=_LINE)
        name = _plain(models[nodes[place]])
        if text_width(name) + 6 <= until - x:
            canvas.write(x + 3, top - _ROW + 2, name, colour=_INK)


def _cells(
    canvas: Canvas,
    nodes: Sequence[NodeName],
    component: Component,
    fits: Mapping[tuple[Component, NodeName], Fit],
    *,
    left: int,
    top: int,
    wide: int,
    tall: int,
) -> None:
    by_fit: dict[Fit, list[int]] = {fit: [] for fit in _LOUDEST_LAST}
    for place, node in enumerate(nodes):
        by_fit[fits.get((component, node), Fit.FREE)].append(place)
    for fit in _LOUDEST_LAST:
        least = _LEAST_SEEN if fit in (Fit.DRIFTS, Fit.UNKNOWN) else 1
        for place in by_fit[fit]:
            first = round(place * wide / len(nodes))
            last = max(round((place + 1) * wide / len(nodes)), first + least)
            first, last = (first, last) if last <= wide else (max(0, wide - least), wide)
            canvas.box(left + first, top, width=last - first, height=tall, colour=_COLOURS[fit])


def _plain(name: str) -> str:
    """Return a name short enough to be written, cut in its middle: names differ at their ends."""
    return name if len(name) <= 24 else f"{name[:11]}..{name[-11:]}"


def _image(body: bytes) -> str:
    return f"![{_TITLE}](data:image/png;base64,{b64encode(body).decode()})"
