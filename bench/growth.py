"""How much disk the program takes a day: 16 simulated nodes on shipped defaults, under the real daemon and sensors.

Measured: minutes of a quiet cluster, one hour of the lake filled as the schedule does, the day's aggregates of it, and
faults with their repair. Reported per day, and what stays once everything is kept as long as it is kept.
Run it with `make bench AREA=growth`, or `python -m bench.growth --minutes 30`.
"""

import argparse
import math
import re
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.resources.lake.parquet_lake import ParquetLake
from ops_pipelines.resources.lake.retention import RetentionSettings, retain
from ops_pipelines.sensors.upkeep import FLEETING_RUNS_KEPT, IDLE_TURNS_KEPT, RUNS_KEPT
from ops_pipelines.wiring import TWIN_DIRECTORY, open_cluster, open_observatory
from ops_pipelines_lab.drills.recorded_past import fill_lake
from ops_pipelines_lab.drills.stack import DagsterStack, free_port, project_file
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import JobSpec, Scenario, SimulatedDurations, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin

NODE_COUNT, FAULT_COUNT = 16, 2
FAULTS_A_DAY = 4
"""# Assumption: far more than 16 nodes have; Llama 3's 2,048 had nine a day."""
RAW_DAYS, PAGE_DAYS = 30, 90
_WARM_UP_SECONDS = 120.0
_REPAIR_LIMIT_SECONDS = 3600.0
_NOT_PRETENDED = ("job_steps", "job_logs")
_BLOCK_BYTES = 512
Sizes = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one part takes."""

    part: str
    a_day: float
    """Bytes written on a day that are there at its end, on the first one."""
    kept: timedelta | None
    """None: for good."""

    @property
    def stays(self) -> float | None:
        return None if self.kept is None else self.a_day * max(1.0, self.kept / timedelta(days=1))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table; 1 if the whole is above 0.2 GB a day."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=15.0, help="how long the quiet cluster is watched")
    options = parser.parse_args(argv)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        rows = _measure(Path(name) / "state", minutes=options.minutes, console=console)
    console.print(_table(rows))
    total = sum(row.a_day for row in rows)
    console.print(f"{NODE_COUNT} nodes, {FAULTS_A_DAY} repaired faults a day: {total / 1e6:.0f} MB on the first day")
    return int(total > 0.2e9)


def _measure(state: Path, *, minutes: float, console: Console) -> list[Row]:
    cluster_file = _write_site(state)
    clock = SystemClock()
    job = JobSpec(
        name="pretrain",
        user="research-train",
        account="research",
        workload=Workload.TRAINING,
        node_count=8,
        checkpoint_interval_seconds=900.0,
        checkpointing=Checkpointing.YES,
        priority=100,
    )
    durations = SimulatedDurations(check_seconds=60.0, reboot_seconds=60.0)  # while they last, little is written
    scenario = Scenario(
        nodes=cluster_nodes(NODE_COUNT), initial_jobs=(job,), durations=durations, benign_lines_per_node_hour=3.0
    )
    twin = Twin.create(state / TWIN_DIRECTORY, scenario, seed=7, clock=clock, past=timedelta(hours=2))
    stack = DagsterStack(
        state / "dagster",
        cluster_file=cluster_file,
        instance_file=project_file("deploy/dagster.yaml"),
        port=free_port(),
    )
    try:
        with console.status("starting"):
            stack.start(lambda _: None)
        time.sleep(_WARM_UP_SECONDS)
        before, began = _sizes(state), time.monotonic()
        with console.status(f"watching a quiet cluster for {minutes:g} minutes"):
            time.sleep(minutes * 60)
        quiet = _a_day(before, _sizes(state), seconds=time.monotonic() - began)
        cluster, observatory = open_cluster(cluster_file), open_observatory(cluster_file)
        before = _sizes(state)
        with console.status("filling one hour of the lake"):
            fill_lake(stack, observatory, hour_count=2, may_be_empty=_NOT_PRETENDED, pass_time=time.sleep)
        filled = Counter(_sizes(state)) - Counter(before)
        before = _sizes(state)
        with console.status(f"{FAULT_COUNT} faults"):
            _repair(cluster, twin)
        repaired = Counter(_sizes(state)) - Counter(before)
    finally:
        stack.stop()
    hour = _closed_hours(state / "lake", now=clock.now())
    return [
        Row(part="lake: rows", a_day=24 * hour["rows"], kept=timedelta(days=RAW_DAYS)),
        Row(part="lake: pages of checks", a_day=24 * hour["pages"], kept=timedelta(days=RAW_DAYS)),
        Row(part="lake: aggregates", a_day=24 * hour["aggregates"], kept=timedelta(days=365)),
        # Two hours are filled, in two runs.
        Row(part="Dagster: runs that fill the lake", a_day=12 * filled["dagster runs"], kept=RUNS_KEPT),
        Row(
            part="Dagster: runs that repair",
            a_day=FAULTS_A_DAY / FAULT_COUNT * repaired["dagster runs"],
            kept=FLEETING_RUNS_KEPT,
        ),
        Row(
            part="Dagster: idle ticks",
            a_day=quiet["dagster ticks"] * (IDLE_TURNS_KEPT / timedelta(days=1)),
            kept=IDLE_TURNS_KEPT,
        ),
        Row(
            part="ledger",
            a_day=quiet["ledger"] + FAULTS_A_DAY / FAULT_COUNT * repaired["ledger"],
            kept=None,
        ),
        Row(
            part="evidence, reports",
            a_day=FAULTS_A_DAY / FAULT_COUNT * repaired["evidence"],
            kept=timedelta(days=PAGE_DAYS),
        ),
        Row(part="logs", a_day=quiet["logs"] + 12 * filled["logs"], kept=timedelta(days=7)),
    ]


def _write_site(state: Path) -> Path:
    state.mkdir(parents=True)
    racks = (
        'racks:\n  - {name: r1, nodes: "gpu[001-008]", leaf_switch: leaf1, model: hgx-h100}\n'
        '  - {name: r2, nodes: "gpu[009-016]", leaf_switch: leaf1, model: hgx-h100}\n'
    )
    shipped = project_file("cluster.yaml").read_text()
    text = re.sub(r"^racks:\n(  - .*\n)+", racks, shipped, flags=re.MULTILINE)
    cluster_file = state / "cluster.yaml"
    cluster_file.write_text(re.sub(r"^state_directory: .*$", "state_directory: .", text, flags=re.MULTILINE))
    policy = project_file("policy.yaml").read_text().replace("mode: observe", "mode: auto", 1)
    (state / "policy.yaml").write_text(re.sub(r"probation_seconds: \d+", "probation_seconds: 60", policy))
    for name in ("teams.yaml", "capacity.yaml", "projects.yaml"):
        (state / name).write_text(project_file(name).read_text())
    return cluster_file


def _repair(cluster: Cluster, twin: Twin) -> None:
    since = cluster.clock.now()
    for number in range(FAULT_COUNT):
        twin.inject(FaultKind.UNCORRECTABLE_ECC, f"gpu{number + 1:03d}", gpu=3)
    until = time.monotonic() + _REPAIR_LIMIT_SECONDS
    while time.monotonic() < until:
        found = [each for each in cluster.ledger.incidents_since(since) if each.nodes]
        if len(found) >= FAULT_COUNT and all(each.state is IncidentState.RESOLVED for each in found):
            return
        time.sleep(5.0)


def _sizes(state: Path) -> Sizes:
    found = Counter[str]()
    for path in state.rglob("*"):
        try:
            size = path.lstat().st_blocks * _BLOCK_BYTES
        except FileNotFoundError:
            continue
        found[_part_of(path.relative_to(state).parts)] += size
    # Its pages, wherever they are: what was written stays in the -wal for a while, which is written over.
    with closing(sqlite3.connect(f"{(state / 'ledger.sqlite').as_uri()}?mode=ro", uri=True)) as ledger:
        found["ledger"] = math.prod(
            ledger.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
    return found


def _part_of(names: tuple[str, ...]) -> str:
    match names:
        case ("dagster", "schedules", *_):
            return "dagster ticks"
        case ("dagster", "history" | "storage", *_):
            return "dagster runs"
        case ("dagster", "log", *_):
            return "logs"
        case (name, *_) if name.startswith("ledger.sqlite"):
            return "files of the ledger"
        case ("evidence" | "reports", *_):
            return "evidence"
    return names[0]


def _a_day(before: Sizes, after: Sizes, *, seconds: float) -> Mapping[str, float]:
    return Counter({part: max(0, after[part] - before.get(part, 0)) * 86_400 / seconds for part in after})


def _closed_hours(root: Path, *, now: datetime) -> Mapping[str, float]:
    """Return what an hour takes that is whole and closed: the one before the hour that ran."""
    hour = (now - timedelta(hours=1)).replace(minute=0, second=0, microsecond=0)
    found = Counter[str]()
    for path in root.glob(f"*/date={hour:%Y-%m-%d}/hour={hour:%H}/*"):
        if path.name in ("hour.parquet", "quality.html"):
            found["rows" if path.suffix == ".parquet" else "pages"] += path.lstat().st_blocks * _BLOCK_BYTES
    retain(ParquetLake(root), now=now + timedelta(days=2), settings=RetentionSettings())
    hours = {path.parent.name for path in root.glob("gpu_telemetry/*/hour=*/*")}
    aggregates = sum(path.lstat().st_blocks * _BLOCK_BYTES for path in root.glob("*_*[mh]/*/day.parquet"))
    found["aggregates"] = aggregates // max(1, len(hours))
    return found


def _table(rows: Sequence[Row]) -> Table:
    table = Table("part", "MB a day", "kept", "grows to, MB")
    for row in rows:
        kept = "for good" if row.kept is None else f"{row.kept / timedelta(days=1):g} d"
        stays = "" if row.stays is None else f"{row.stays / 1e6:,.0f}"
        table.add_row(row.part, f"{row.a_day / 1e6:.1f}", kept, stays)
    return table


if __name__ == "__main__":
    sys.exit(main())
