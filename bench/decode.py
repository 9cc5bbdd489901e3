"""What metric sources send -> columns, in memory: range answers against orjson with numpy and against
prometheus-api-client's own way; scrapes of exporters against prometheus_client's parser.

CPU time, the ways in turn, the best of several rounds each; what they give is compared first. Of scrapes the first one
counts too: labels that were met are known in the next. Run: `make bench`, or `python -m bench.decode`.
"""

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import numpy as np
import orjson
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from rich.console import Console
from rich.table import Table

from ops_pipelines.lake.metrics.exposition import decode_exposition
from ops_pipelines.lake.metrics.range_answer import decode_range_answer

POINT_COUNT, STEP_SECONDS = 240, 15
SERIES_COUNTS = (512, 8_192)
SCRAPED_GPU_COUNTS, METRIC_COUNT = (8, 512), 40
MIN_OVER_ORJSON, MIN_OVER_CLIENT, MIN_OVER_PARSER = 2.5, 8.0, 5.0
_BEGINS = 1_795_238_640


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size: CPU seconds of each way."""

    series_count: int
    size_bytes: int
    ours: float
    orjson: float
    client: float

    @property
    def is_met(self) -> bool:
        return self.orjson >= MIN_OVER_ORJSON * self.ours and self.client >= MIN_OVER_CLIENT * self.ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One size of exposition text: CPU seconds of each way."""

    sample_count: int
    first: float
    ours: float
    parser: float

    @property
    def is_met(self) -> bool:
        return self.parser >= MIN_OVER_PARSER * max(self.first, self.ours)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a bound is missed or the results differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each way is measured; the best counts")
    rounds = parser.parse_args(argv).rounds
    console = Console(highlight=False)
    rows = [_measure(count, rounds=rounds) for count in SERIES_COUNTS]
    console.print(_table(rows))
    for row in rows:
        if not row.is_met:
            console.print(f"missed at {row.series_count} series: expected {MIN_OVER_ORJSON}x and {MIN_OVER_CLIENT}x")
    scrapes = [_measure_scrape(count, rounds=rounds) for count in SCRAPED_GPU_COUNTS]
    console.print(_scrape_table(scrapes))
    for scrape in scrapes:
        if not scrape.is_met:
            console.print(
                f"missed at {scrape.sample_count} samples: expected {MIN_OVER_PARSER}x, of the first scrape too"
            )
    return 0 if all(each.is_met for each in rows) and all(each.is_met for each in scrapes) else 1


def build_answer(series_count: int) -> bytes:
    """Return an answer of dcgm-exporter's series as Prometheus writes it: ten labels, 240 points of a gauge."""
    noise = random.Random(series_count)
    series = (
        {
            "metric": _labels(index),
            "values": [[_BEGINS + STEP_SECONDS * point, repr(noise.gauss(53.0, 3.0))] for point in range(POINT_COUNT)],
        }
        for index in range(series_count)
    )
    document = {"status": "success", "data": {"resultType": "matrix", "result": list(series)}}
    return json.dumps(document, separators=(",", ":")).encode()


def _labels(index: int) -> Mapping[str, str]:
    gpu, node = index % 8, f"gpu{index // 8:04d}"
    return {
        "DCGM_FI_DRIVER_VERSION": "570.86.15",
        "Hostname": node,
        "UUID": f"GPU-{index:08x}-66b5-1b51-9a2c-71a3d1c29d54",
        "__name__": "DCGM_FI_DEV_GPU_TEMP",
        "device": f"nvidia{gpu}",
        "gpu": str(gpu),
        "instance": f"{node}:9400",
        "job": "dcgm",
        "modelName": "NVIDIA H100 80GB HBM3",
        "pci_bus_id": f"00000000:{0x1B + 0x10 * gpu:02X}:00.0",
    }


def _decode_with_orjson(body: bytes) -> tuple[list[Mapping[str, str]], NDArray[np.int64], NDArray[np.float64]]:
    """Return labels, times in ms, and values, in the fastest of several ways that were tried."""
    result = orjson.loads(body)["data"]["result"]
    count = sum(len(series["values"]) for series in result)
    seconds = np.fromiter((point[0] for series in result for point in series["values"]), np.float64, count)
    values = np.fromiter((float(point[1]) for series in result for point in series["values"]), np.float64, count)
    return [series["metric"] for series in result], np.rint(seconds * 1000).astype(np.int64), values


def _decode_with_client(body: bytes) -> object:
    from prometheus_api_client import MetricRangeDataFrame

    return MetricRangeDataFrame(json.loads(body)["data"]["result"])


def _compare(body: bytes) -> None:
    block = decode_range_answer(body)
    labels, times, values = _decode_with_orjson(body)
    ours = [{"__name__": name, **found} for name, found in zip(block.names, block.labels, strict=True)]
    if ours != labels or not np.array_equal(block.times, times) or not np.array_equal(block.values, values):
        raise SystemExit("the results differ from those of orjson")
    frame = _decode_with_client(body)
    if not np.array_equal(frame["value"].to_numpy(np.float64), values):  # type: ignore[index]  # a pandas DataFrame
        raise SystemExit("the results differ from those of prometheus-api-client")


def _measure(series_count: int, *, rounds: int) -> Row:
    body = build_answer(series_count)
    _compare(body)
    ways: Mapping[str, Callable[[bytes], object]] = {
        "ours": decode_range_answer,
        "orjson": _decode_with_orjson,
        "client": _decode_with_client,
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, decode in ways.items():
            best[name] = min(best[name], _seconds_of(partial(decode, body)))
    return Row(series_count=series_count, size_bytes=len(body), **best)


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title=f"range answer -> columns, {POINT_COUNT} points a series, CPU seconds")
    for heading in ("series", "MB", "ours", "orjson + numpy", "MetricRangeDataFrame", "x orjson", "x client"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.series_count:,}",
            f"{row.size_bytes / 1e6:.1f}",
            f"{row.ours:.3f}",
            f"{row.orjson:.3f}",
            f"{row.client:.3f}",
            f"{row.orjson / row.ours:.1f}",
            f"{row.client / row.ours:.1f}",
        )
    return table


def build_scrape(gpu_count: int) -> bytes:
    """Return what one exporter of so many GPUs serves."""
    lines = []
    for number in range(METRIC_COUNT):
        name = f"DCGM_FI_DEV_{gpu_count}_{number}"
        lines += [f"# HELP {name} of a GPU", f"# TYPE {name} gauge"]
        for gpu in range(gpu_count):
            labels = ",".join(f'{key}="{value}"' for key, value in _labels(gpu).items() if key != "__name__")
            lines.append(f"{name}{{{labels}}} {gpu * 1.5}")
    return ("\n".join(lines) + "\n").encode()


def _measure_scrape(gpu_count: int, *, rounds: int) -> Scrape:
    body, now = build_scrape(gpu_count), datetime.now(UTC)
    first = _seconds_of(lambda: decode_exposition(body, default_time=now))
    block = decode_exposition(body, default_time=now).block
    samples = _parse(body)
    ours = [(name, dict(labels)) for name, labels in zip(block.names, block.labels, strict=True)]
    if ours != [(each.name, each.labels) for each in samples] or list(block.values) != [each.value for each in samples]:
        raise SystemExit("the results differ from those of prometheus_client")
    return Scrape(
        sample_count=len(samples),
        first=first,
        ours=min(_seconds_of(lambda: decode_exposition(body, default_time=now)) for _ in range(rounds)),
        parser=min(_seconds_of(lambda: _parse(body)) for _ in range(rounds)),
    )


def _parse(body: bytes) -> list[Sample]:
    return [each for family in text_string_to_metric_families(body.decode()) for each in family.samples]


def _seconds_of(decode: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    decode()
    return time.process_time() - began


def _scrape_table(scrapes: Sequence[Scrape]) -> Table:
    table = Table(title="exposition text -> columns, CPU seconds")
    for heading in ("samples", "ours, first", "ours, later", "prometheus_client", "x first", "x later"):
        table.add_column(heading, justify="right")
    for each in scrapes:
        times = (each.parser / each.first, each.parser / each.ours)
        table.add_row(
            f"{each.sample_count:,}",
            *(f"{seconds:.4f}" for seconds in (each.first, each.ours, each.parser)),
            *(f"{ratio:.1f}" for ratio in times),
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
