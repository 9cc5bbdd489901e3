"""What it costs to close and to judge one hour of gpu_telemetry: CPU seconds and peak memory, each in a fresh process.

An hour of 2,048 nodes of 8 GPUs and 20 metrics, every 15 s, is 3.9 million rows. Two gauges are drawn again in every
row, so that no column is cheaper than it is in life. There is no peer: the limit is that judging takes at most a tenth
more memory than closing does. Run it with `make bench AREA=closing`, or `python -m bench.closing --nodes 64`; exits 1
where the limit is missed, or where what was read is not what was written.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from bench.cycle import AT, GPUS_PER_NODE, write_answer

TABLE, STEP = "gpu_telemetry", timedelta(seconds=15)
CYCLES = timedelta(hours=1) // STEP
DRAWN = ("power_watts", "utilisation_ratio")
MORE_MEMORY = 1.1


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step took, the whole process."""

    rows: int
    cpu_seconds: float
    peak_bytes: int


def fill(lake_root: Path, *, nodes: int) -> None:
    """Write the cycles of an hour, as the live process does."""
    import numpy as np
    import pyarrow as pa

    from ops_pipelines.core.sources import BodyKind, Page
    from ops_pipelines.lake.metrics.pages import combine, read_page
    from ops_pipelines.lake.node_names import NodeNames
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

    answer = lake_root / "answer.json"
    write_answer(answer, node_count=nodes)
    page = Page(kind=BodyKind.RANGE_ANSWER, body=answer.read_bytes(), source="prometheus", start=AT, end=AT)
    names = NodeNames([f"gpu{node:05d}" for node in range(nodes)])
    rows = combine([read_page(page, names=names).parsed]).tables[TABLE]
    lake, random = ParquetLake(lake_root / "lake"), np.random.default_rng(1)
    for cycle in range(CYCLES):
        values = {"time": pa.array([AT + cycle * STEP] * rows.num_rows, rows.schema.field("time").type)}
        values |= {name: pa.array(random.random(rows.num_rows)) for name in DRAWN}
        for name, column in values.items():
            at = rows.column_names.index(name)
            rows = rows.set_column(at, rows.schema.field(at), column)
        lake.write_cycle(TABLE, rows, at=AT + cycle * STEP)


def close(lake_root: Path) -> int:
    """Close the hour; return its rows."""
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

    return ParquetLake(lake_root / "lake").close_hour(TABLE, AT).num_rows


def judge(lake_root: Path, *, nodes: int) -> int:
    """Judge the hour and make its page; return its rows."""
    from ops_pipelines.checks.data_quality import Expected, judge_hours
    from ops_pipelines.checks.quality_page import render_page
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

    expected = Expected(step_seconds=int(STEP.total_seconds()), device_count=nodes * GPUS_PER_NODE)
    (verdict,) = judge_hours(ParquetLake(lake_root / "lake"), table=TABLE, hours={AT: expected})
    render_page(verdict)
    return verdict.row_count


def in_child(step: str, lake_root: Path, *, nodes: int) -> Cost:
    """Return what a step cost in a process of its own."""
    command = [sys.executable, "-m", "bench.closing", "--nodes", str(nodes), "--child", step, str(lake_root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{step}: {done.stderr[-2000:]}")
    return Cost(**json.loads(done.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description="What closing and judging an hour costs.")
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--child", nargs=2, metavar=("STEP", "LAKE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        step, root = args.child[0], Path(args.child[1])
        rows = close(root) if step == "close" else judge(root, nodes=args.nodes)
        used = resource.getrusage(resource.RUSAGE_SELF)
        cost = Cost(rows=rows, cpu_seconds=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * 1024)
        sys.stdout.write(json.dumps(asdict(cost)))
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-closing-") as folder:
        fill(Path(folder), nodes=args.nodes)
        closing = in_child("close", Path(folder), nodes=args.nodes)
        judging = in_child("judge", Path(folder), nodes=args.nodes)
    for name, cost in (("closing", closing), ("judging", judging)):
        sys.stdout.write(f"{name}: {cost.rows:,} rows, {cost.cpu_seconds:.1f} s CPU, {cost.peak_bytes / 1e6:,.0f} MB\n")
    is_whole = closing.rows == judging.rows == args.nodes * GPUS_PER_NODE * CYCLES
    return int(not is_whole or judging.peak_bytes > MORE_MEMORY * max(closing.peak_bytes, 1e9))


if __name__ == "__main__":
    sys.exit(main())
