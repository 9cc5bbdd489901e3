"""The formats of Prometheus: exporters' text, and the answer to a range query. What is measured is told elsewhere.

Readings are plain tuples, for there are some ten thousand of them at each grid time.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric as the exporter declares it."""

    name: str
    kind: str
    """`gauge`, `counter`, `histogram` or `summary`."""
    help_text: str
    decimals: int = 0
    """Digits after the point in the exporter's text; real exporters print integers or six digits."""
    family: str = ""
    """What HELP and TYPE name, where that is not the series: `x` for `x_bucket`."""


Reading = tuple[Metric, str, float]
"""A metric, its labels as they stand between the braces, and the value."""


@lru_cache(maxsize=200_000)
def joined(*labels: str) -> str:
    """Return label texts as one: `a="1",b="2"`. Empty ones fall away."""
    return ",".join(text for text in labels if text)


def write(readings: Iterable[Reading], *, at: datetime | None = None) -> bytes:
    """Return the readings as text, one block per metric, in the order of their first appearance.

    With `at` each sample carries that time in milliseconds, which exporters leave to whoever scrapes them.
    """
    end = "\n" if at is None else f" {round(at.timestamp() * 1000)}\n"
    blocks: dict[str, list[str]] = {}
    for metric, labels, value in readings:
        family = metric.family or metric.name
        block = blocks.get(family)
        if block is None:
            block = blocks[family] = [f"# HELP {family} {metric.help_text}\n", f"# TYPE {family} {metric.kind}\n"]
        number = f"{value:.{metric.decimals}f}"
        block.append(f"{metric.name}{{{labels}}} {number}{end}" if labels else f"{metric.name} {number}{end}")
    return "".join(line for block in blocks.values() for line in block).encode()


def write_range(readings: Iterable[tuple[datetime, Iterable[Reading]]]) -> bytes:
    """Return the readings of several times, in their order, as Prometheus answers a range query."""
    series: dict[tuple[str, str], list[str]] = {}
    for at, of_time in readings:
        seconds = round(at.timestamp())
        for metric, labels, value in of_time:
            point = f'[{seconds},"{value:.{metric.decimals}f}"]'
            points = series.get((metric.name, labels))
            if points is None:
                series[metric.name, labels] = [point]
            else:
                points.append(point)
    results = (
        f'{{"metric":{{"__name__":"{name}"{_as_json(labels)}}},"values":[{",".join(points)}]}}'
        for (name, labels), points in series.items()
    )
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{",".join(results)}]}}}}'.encode()


@lru_cache(maxsize=200_000)
def _as_json(labels: str) -> str:
    """Return label texts as members of a JSON object; both formats escape values alike."""
    return re.sub(r'(?:^|,)([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"', r',"\1":"\2"', labels)
