"""From a line in a log to the node's DRAIN flag read back, and to the end of the run that records it. Real lab.

Faults come at random phase; each node is healed and returned by the program itself before it is broken again. Peer, in
the same run: Dagster as it ships (instance defaults, an ordinary sensor), where the drain waits for the run.
Run it with `make bench`, or `python -m bench.latency --faults 150`.
"""

import argparse
import json
import math
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import yaml
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NodeState
from ops_pipelines_lab.drills.lab import Lab
from ops_pipelines_lab.drills.lab_drill import Stage
from ops_pipelines_lab.drills.stack import free_port, project_file

POLICY = """\
# The bench's own policy: acts by itself; cap, cool-down and repeat rules are as wide as a policy may be.
mode: auto
drain_budget: {max_out_count: 16, max_out_per_rack_count: 16, max_new_per_hour_count: 100000, min_in_service_ratio: 0.5}
mass_event: {min_node_count: 1000, window_seconds: 1}
ladder: {max_gpu_resets_count: 10, max_reboots_count: 10, cool_down_seconds: 0}
blast_caps: {max_on_probation_count: 32}
durations:
  confirm_unreachable_after_seconds: 60
  confirm_gpu_missing_after_seconds: 60
  telemetry_stale_after_seconds: 30
  look_every_seconds: 15
  retry_after_seconds: 3
  run_patience_seconds: 20
  soak_seconds: 1
  probation_seconds: 1
"""
_MOST_OUT_COUNT = 12
"""Below max_out_count: a drain that waits for budget reports nothing of how fast we are."""
_LIMIT_SECONDS = 120.0
_LOOK_EVERY_SECONDS = 0.05
_RUNS = """
{ runsOrError(filter: {pipelineName: "remediate"}, limit: 2000) { ... on Runs { results { startTime endTime } } } }
"""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault: where, when its line was written, and when the flag was read back (seconds since the epoch)."""

    node: NodeName
    written_at: float
    drained_at: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """The latencies of one way to run Dagster, in seconds."""

    what: str
    drained: list[float]
    finished: list[float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=150)
    parser.add_argument("--peer-faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Else the lab would continue without us.
    console = Console(highlight=False)
    console.print(POLICY, markup=False)
    with tempfile.TemporaryDirectory(prefix="lat-") as name:
        directory = Path(name)
        directory.chmod(0o755)  # PostgreSQL's own user passes through
        lab = Lab(_state(directory / "a"), port=free_port(), policy=POLICY)
        ours = _measure("reflex in the sensor's tick", lab, options.faults, console, seed=options.seed)
        console.print(_table([ours]))  # The peer may fail, and this took a quarter of an hour.
        lab = Lab(
            _state(directory / "b"),
            port=free_port(),
            policy=POLICY,
            instance_file=_defaults(directory),
            definitions="bench.peer_definitions",
        )
        peer = _measure("peer: Dagster's defaults", lab, options.peer_faults, console, seed=options.seed)
    console.print(_table([ours, peer]))
    return 0


def _state(directory: Path) -> Path:
    directory.mkdir()
    directory.chmod(0o755)  # Whatever was opened before made this process keep its files to itself.
    return directory


def _defaults(directory: Path) -> Path:
    """Return an instance file that says where things are kept, and nothing of how they are run."""
    ours = yaml.safe_load(project_file("deploy/dagster.postgres.yaml").read_text())
    path = directory / "defaults.yaml"
    storage = {"postgres": ours["storage"]["custom"]["config"]}
    path.write_text(yaml.safe_dump({"storage": storage, **{key: ours[key] for key in ("telemetry", "nux")}}))
    return path


def _measure(what: str, lab: Lab, count: int, console: Console, *, seed: int) -> Row:
    try:
        with console.status(f"{what}: starting the lab"):
            lab.start(lambda _: None)
        return _break_nodes(what, lab, count, console, random.Random(seed))
    finally:
        with console.status("stopping"):
            lab.stop()


def _break_nodes(what: str, lab: Lab, count: int, console: Console, dice: random.Random) -> Row:
    stage = lab.stage()
    faults: list[Fault] = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(what, total=count)
        while len(faults) < count:
            time.sleep(dice.uniform(1.0, 6.0))  # the phase: neither the daemon's loop nor ours divides it
            faults.append(_break_one(stage, len(faults), dice))
            progress.advance(task)
        finished = _await_records(stage, faults)
    return Row(what=what, drained=[each.drained_at - each.written_at for each in faults], finished=finished)


def _break_one(stage: Stage, number: int, dice: random.Random) -> Fault:
    node = dice.choice(_free_nodes(stage))
    now = datetime.now(UTC)
    line = (
        f"{now.isoformat(timespec='microseconds')} {node} kernel: [ 4711.{number:06d}] NVRM: Xid (PCI:0000:1b:00): 48, "
        "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU\n"
    )
    written_at = time.time()
    with stage.application_log.open("a") as file:
        file.write(line)
    while "DRAIN" not in _show(stage, node):
        if time.time() - written_at > _LIMIT_SECONDS:
            raise SystemExit(
                f"bench: {node} was not drained within {_LIMIT_SECONDS:.0f} s; nothing measured here counts"
            )
        time.sleep(_LOOK_EVERY_SECONDS)
    return Fault(node=node, written_at=written_at, drained_at=time.time())


def _free_nodes(stage: Stage) -> list[NodeName]:
    """Wait for nodes in service on which nothing is open any more, and for room in the drain budget; return them."""
    deadline = time.time() + _LIMIT_SECONDS
    while True:
        cluster = stage.cluster
        owned = {name for each in cluster.ledger.read_state(cluster.clock.now()).incidents for name in each.nodes}
        free = [
            node.node
            for node in cluster.scheduler.read_nodes()
            if node.node not in owned
            and not node.is_drained
            and node.is_responding
            and node.state is not NodeState.DOWN
        ]
        if free and len(owned) < _MOST_OUT_COUNT:
            return sorted(free)
        if time.time() > deadline:
            raise SystemExit(f"bench: {len(owned)} nodes are out and none returns; nothing measured here counts")
        time.sleep(0.5)


def _await_records(stage: Stage, faults: Sequence[Fault]) -> list[float]:
    """Return for each fault the seconds to the end of the first run that began after it: the one that records it."""
    deadline = time.time() + _LIMIT_SECONDS
    while True:
        runs = _runs(stage)
        ends = [min((end for start, end in runs if start >= each.written_at), default=math.inf) for each in faults]
        if max(ends) < math.inf or time.time() > deadline:
            return [end - each.written_at for end, each in zip(ends, faults, strict=True)]
        time.sleep(1.0)


def _runs(stage: Stage) -> list[tuple[float, float]]:
    request = urllib.request.Request(  # noqa: S310 - our own loopback URL
        f"{stage.stack.url}/graphql",
        data=json.dumps({"query": _RUNS}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        results = json.load(answer)["data"]["runsOrError"]["results"]
    return [(each["startTime"], each["endTime"]) for each in results if each["startTime"] and each["endTime"]]


def _show(stage: Stage, node: NodeName) -> str:
    return subprocess.run(
        ["scontrol", "show", "node", node],
        env=stage.slurm.client_environment,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="seconds from the log line written")
    for heading in ("", "faults", "drained P50", "P99", "max", "run finished P50", "P99", "drained P50, x ours"):
        table.add_column(heading, justify="left" if not heading else "right")
    base = quantile(rows[0].drained, 0.5)
    for row in rows:
        figures = [
            quantile(row.drained, 0.5),
            quantile(row.drained, 0.99),
            max(row.drained),
            quantile(row.finished, 0.5),
            quantile(row.finished, 0.99),
        ]
        ratio = quantile(row.drained, 0.5) / base
        table.add_row(row.what, str(len(row.drained)), *(f"{figure:.2f}" for figure in figures), f"{ratio:.1f}")
    return table


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of all values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


if __name__ == "__main__":
    sys.exit(main())
