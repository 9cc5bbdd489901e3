"""What one cycle costs: a store's answer about every GPU -> decoded, placed, gated, written to a lake.

Sizes from 64 to 12,500 nodes of 8 GPUs and 20 metrics, each in a process of its own: CPU seconds, peak memory, and the
exponent with which the cost grows. The answer is made before the clock starts, and read from a file into memory. There
is no peer: the limits are 15 s and 2 GB at 2,048 nodes. Run it with `make bench`, or `python -m bench.cycle`; exits 1
where a limit is missed, or where what was written is not what was asked for.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops_pipelines.core.sources import Lake

SIZES = (64, 256, 1024, 2048, 4096, 12_500)
JUDGED_SIZE, MAX_CPU_SECONDS, MAX_PEAK_BYTES = 2048, 15.0, 2e9
GPUS_PER_NODE = 8
AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": "{busy}",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "{busy}",
    "DCGM_FI_DEV_FB_USED": "7{busy}12",
    "DCGM_FI_DEV_FB_FREE": "1{busy}07",
    "DCGM_FI_DEV_GPU_TEMP": "{busy}",
    "DCGM_FI_DEV_MEMORY_TEMP": "{busy}",
    "DCGM_FI_DEV_POWER_USAGE": "5{busy}.371",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "15152422{busy}1.5",
    "DCGM_FI_DEV_SM_CLOCK": "1980",
    "DCGM_FI_DEV_MEM_CLOCK": "2619",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "0",
    "DCGM_FI_DEV_XID_ERRORS": "0",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "{busy}",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "0",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": "0",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "81{busy}2",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.8{busy}",
    "DCGM_FI_PROF_SM_ACTIVE": "0.7{busy}",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.5{busy}",
    "DCGM_FI_PROF_DRAM_ACTIVE": "0.4{busy}",
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one size took."""

    nodes: int
    samples: int
    body_bytes: int
    cpu_seconds: float
    """User and system time of the whole process from the answer in memory to the renamed file, all threads."""
    wall_seconds: float
    peak_bytes: int
    """Of the whole process, with the interpreter, its libraries and the answer."""
    problem: str


def write_answer(path: Path, *, node_count: int) -> None:
    """Write a store's answer: the labels that dcgm-exporter and Prometheus give, one point each."""
    stamp = AT.timestamp()
    with path.open("w", encoding="ascii") as file:
        file.write('{"status":"success","data":{"resultType":"matrix","result":[')
        comma = ""
        for number, (metric, pattern) in enumerate(METRICS.items()):
            for node in range(node_count):
                listed: list[str] = []
                for gpu in range(GPUS_PER_NODE):
                    value = pattern.format(busy=10 + (node * 7 + gpu * 3 + number) % 80)
                    listed.append(
                        f'{{"metric":{{"DCGM_FI_DRIVER_VERSION":"590.48.01","Hostname":"gpu{node:05d}",'
                        f'"UUID":"GPU-{node:08x}-{gpu:04x}-4a1c-9f33-5d1be0c7a{gpu:03x}","__name__":"{metric}",'
                        f'"device":"nvidia{gpu}","gpu":"{gpu}","instance":"gpu{node:05d}:9400","job":"dcgm",'
                        f'"modelName":"NVIDIA H100 80GB HBM3","pci_bus_id":"00000000:{16 + gpu:02X}:00.0"}},'
                        f'"values":[[{stamp:.3f},"{value}"]]}}'
                    )
                file.write(comma + ",".join(listed))
                comma = ","
        file.write("]}}")


def measure(path: Path, *, node_count: int, lake_root: Path) -> Cost:
    """Read, place and write one cycle as the live process does; to be called in a fresh process."""
    from ops_pipelines.core.sources import BodyKind, Page
    from ops_pipelines.lake.metrics.pages import combine, read_page
    from ops_pipelines.lake.node_names import NodeNames
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

    body = path.read_bytes()
    lake = ParquetLake(lake_root)
    names = NodeNames([f"gpu{node:05d}" for node in range(node_count)])
    page = Page(kind=BodyKind.RANGE_ANSWER, body=body, source="prometheus", start=AT, end=AT)
    usage, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()

    parsed = combine([read_page(page, names=names).parsed])
    for table, rows in parsed.tables.items():
        lake.write_cycle(table, rows, at=AT)

    wall_seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF)
    peak_bytes = after.ru_maxrss * 1024  # before the check below adds to it
    return Cost(
        nodes=node_count,
        samples=parsed.read,
        body_bytes=len(body),
        cpu_seconds=after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime,
        wall_seconds=wall_seconds,
        peak_bytes=peak_bytes,
        problem=check(lake, accepted=parsed.accepted, node_count=node_count),
    )


def check(lake: Lake, *, accepted: int, node_count: int) -> str:
    """Return what is wrong with what was written, or an empty text."""
    import pyarrow as pa

    rows = lake.read_hour("gpu_telemetry", AT)
    if not isinstance(rows, pa.Table):
        return f"the lake gave {type(rows)}"
    gpu_count = node_count * GPUS_PER_NODE
    wanted = gpu_count * len(METRICS)
    cells = sum(
        len(rows) - rows.column(name).null_count
        for name, kind in zip(rows.column_names, rows.schema.types, strict=True)
        if pa.types.is_float64(kind)
    )
    if (accepted, len(rows), cells) != (wanted, gpu_count, wanted):
        return f"{accepted} accepted, {len(rows)} rows, {cells} cells; expected {wanted}, {gpu_count}, {wanted}"
    return ""


def exponent(costs: Sequence[Cost]) -> float:
    """Return the slope of log CPU over log nodes, by least squares: 1 is linear."""
    across = [math.log(cost.nodes) for cost in costs]
    up = [math.log(cost.cpu_seconds) for cost in costs]
    mean_across, mean_up = sum(across) / len(across), sum(up) / len(up)
    above = sum((x - mean_across) * (y - mean_up) for x, y in zip(across, up, strict=True))
    return above / sum((x - mean_across) ** 2 for x in across)


def measure_in_child(node_count: int, *, repeats: int) -> Cost:
    """Return the median of some fresh processes by CPU time."""
    with tempfile.TemporaryDirectory(prefix="bench-cycle-") as folder:
        answer = Path(folder) / "answer.json"
        write_answer(answer, node_count=node_count)
        found: list[Cost] = []
        for number in range(repeats):
            lake_root = Path(folder) / f"lake{number}"
            lake_root.mkdir()
            command = [sys.executable, "-m", "bench.cycle", "--child", str(node_count), str(answer), str(lake_root)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
            if done.returncode:
                raise SystemExit(f"{node_count} nodes: {done.stderr[-2000:]}")
            found.append(Cost(**json.loads(done.stdout)))
    return sorted(found, key=lambda cost: cost.cpu_seconds)[len(found) // 2]


def show(costs: Sequence[Cost]) -> int:
    """Print the table; return the exit code."""
    console = Console(width=110)
    table = Table(title=f"one cycle: {GPUS_PER_NODE} GPUs a node, {len(METRICS)} metrics a GPU")
    for heading in ("nodes", "samples", "answer MB", "CPU s", "wall s", "peak MB", "us a sample"):
        table.add_column(heading, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.nodes:,}",
            f"{cost.samples:,}",
            f"{cost.body_bytes / 1e6:.1f}",
            f"{cost.cpu_seconds:.2f}",
            f"{cost.wall_seconds:.2f}",
            f"{cost.peak_bytes / 1e6:.0f}",
            f"{cost.cpu_seconds / cost.samples * 1e6:.1f}",
        )
    console.print(table)
    problems = [f"{cost.nodes} nodes: {cost.problem}" for cost in costs if cost.problem]
    if len(costs) > 1:
        large = [cost for cost in costs if cost.nodes >= 1000]
        console.print(f"CPU grows with nodes to the power of {exponent(costs):.2f}")
        if len(large) > 1:
            console.print(f"from {large[0].nodes:,} nodes on, where starting up no longer shows: {exponent(large):.2f}")
    for cost in costs:
        if cost.nodes == JUDGED_SIZE:
            is_met = cost.cpu_seconds < MAX_CPU_SECONDS and cost.peak_bytes < MAX_PEAK_BYTES
            console.print(
                f"{JUDGED_SIZE:,} nodes: {cost.cpu_seconds:.2f} s of {MAX_CPU_SECONDS:g} s CPU, "
                f"{cost.peak_bytes / 1e9:.2f} GB of {MAX_PEAK_BYTES / 1e9:g} GB: {'met' if is_met else 'MISSED'}"
            )
            problems += [] if is_met else ["the limit at 2,048 nodes is missed"]
    for problem in problems:
        console.print(problem)
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="What one cycle of telemetry costs.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of nodes")
    parser.add_argument("--repeats", type=int, default=3, help="processes a size; the median counts")
    parser.add_argument("--child", nargs=3, metavar=("NODES", "ANSWER", "LAKE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        nodes, answer, lake_root = args.child
        cost = measure(Path(answer), node_count=int(nodes), lake_root=Path(lake_root))
        sys.stdout.write(json.dumps(asdict(cost)))
        return 0
    return show([measure_in_child(size, repeats=args.repeats) for size in sorted(args.sizes)])


if __name__ == "__main__":
    sys.exit(main())
