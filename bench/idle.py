"""What watching costs while nothing happens: CPU seconds and memory by process, at 16 and at 512 simulated nodes.

The daemon, code server, live cycle and `serve` on shipped defaults, and what runs the schedules start meanwhile. The
simulated cluster is folded in the same processes, and counts as ours. Peer, in the same run: bare Dagster, one sensor
that does nothing at the same interval, daemon and code server. Nothing else should run beside; CPU seconds of a busy
machine are some more. The live cycle holds 40 minutes and more costs more: so the lake is first filled with as much of
the simulated cluster's past, and the live cycle begins as after a restart (512 nodes: 8 minutes; `--past 0` leaves it
out). What the pages of simulated exporters cost alone is measured meanwhile, and reported: a real cluster has none. Run
it with `make bench AREA=idle`, or `python -m bench.idle --minutes 2 --nodes 16`.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.lake.metrics.pages import combine, read_page
from ops_pipelines.lake.node_names import names_of
from ops_pipelines.observe.live_cycle import settling_time
from ops_pipelines.sensors.this_process import FORKS_RUNS
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble_observatory, config_in_force
from ops_pipelines_lab.drills.daemon_processes import find_processes, name_of_process
from ops_pipelines_lab.drills.stack import CODE_SERVER, DAEMON, WEBSERVER, DagsterStack, free_port, project_file
from ops_pipelines_lab.simulator.scenario import JobSpec, Scenario, cluster_nodes
from ops_pipelines_lab.simulator.twin import Twin

BOUNDS = {16: 0.15, 512: 0.30}
"""Nodes -> the share of one core that all of ours may use together."""
MOST_BYTES, MOST_GROWTH_BYTES_AN_HOUR = 1.2e9, 60e6
LIVE_CYCLE, SERVE, RUNS = "live cycle", "serve", "runs, and what forks them"
OURS, PEERS = (DAEMON, CODE_SERVER, LIVE_CYCLE, SERVE, RUNS), (DAEMON, CODE_SERVER, RUNS)
_WORDS = {
    "dagster-daemon": DAEMON,
    "ops_pipelines.live": LIVE_CYCLE,
    "webserver": WEBSERVER,
    "serve": SERVE,
    "grpc": CODE_SERVER,
    "code-server": CODE_SERVER,
}
"""A word of a command line -> whose it is, in the order of asking; all else are runs."""
_LOOK_EVERY_SECONDS = 5.0
_JUDGED_SECONDS = 590.0
"""In less time nothing is stated of growth."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the processes have used so far, and the memory that each kind holds: its share of what is shared, too."""

    at: float
    cpu_seconds: Mapping[str, float]
    held_bytes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Idle:
    """One measurement."""

    what: str
    parts: Sequence[str]
    begin: Look
    end: Look
    most_bytes: int
    pretended_ratio: float = 0.0
    """The share of one core that the pages of the simulated exporters cost, which is in `ratio`."""

    @property
    def seconds(self) -> float:
        return self.end.at - self.begin.at

    def cpu_seconds(self, part: str) -> float:
        return self.end.cpu_seconds.get(part, 0.0) - self.begin.cpu_seconds.get(part, 0.0)

    @property
    def ratio(self) -> float:
        """The share of one core."""
        return sum(map(self.cpu_seconds, self.parts)) / self.seconds

    def held_bytes(self, look: Look) -> int:
        return sum(look.held_bytes.get(part, 0) for part in self.parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; a bound that is missed is reported, and is no failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each is watched")
    parser.add_argument("--settle", type=float, default=3.0, help="minutes before that")
    parser.add_argument("--past", type=float, default=41.0, help="minutes of cycles that the lake holds at the start")
    parser.add_argument("--nodes", type=int, nargs="*", default=list(BOUNDS))
    parser.add_argument("--without-peer", action="store_true")
    options = parser.parse_args(argv)
    console, found = Console(highlight=False), list[Idle]()

    def watch(stack: DagsterStack, home: Path, what: str, parts: Sequence[str]) -> Idle:
        with console.status(f"{what}: settling"):
            _pass_time(stack, options.settle * 60)
        with console.status(f"{what}: watching for {options.minutes:g} minutes"):
            return _watch(stack, home, what=what, parts=parts, seconds=options.minutes * 60)

    peer = None
    if not options.without_peer:
        with tempfile.TemporaryDirectory(prefix="idle-") as name:
            peer = _measure_peer(Path(name), watch)
    for node_count in options.nodes:
        with tempfile.TemporaryDirectory(prefix="idle-") as name:
            found.append(_measure(Path(name), node_count, watch, past=timedelta(minutes=options.past)))
    console.print(_table([*found, *([peer] if peer else [])]))
    for node_count, idle in zip(options.nodes, found, strict=True):
        console.print(_verdict(idle, bound=BOUNDS.get(node_count, max(BOUNDS.values())), peer=peer), soft_wrap=True)
    return 0


Watching = Callable[[DagsterStack, Path, str, Sequence[str]], Idle]


def _measure(state: Path, node_count: int, watch: Watching, *, past: timedelta) -> Idle:
    cluster_file = _write_site(state, node_count)
    Twin.create(state / TWIN_DIRECTORY, _quiet(node_count), seed=7, clock=SystemClock(), past=past + timedelta(hours=1))
    pretended_ratio = _fill_lake(cluster_file, past=past)
    home, port = state / "dagster", free_port()
    stack = DagsterStack(
        home, cluster_file=cluster_file, instance_file=project_file("deploy/dagster.yaml"), port=free_port()
    )
    try:
        stack.start(lambda _: None)
        argv = ["ops-pipelines", "serve", "--cluster", str(cluster_file), "--port", str(port)]
        stack.start_beside("pages", argv, port=port)
        return replace(watch(stack, home, f"{node_count} nodes", OURS), pretended_ratio=pretended_ratio)
    finally:
        stack.stop()


def _measure_peer(state: Path, watch: Watching) -> Idle:
    instance = state / "instance.yaml"
    instance.write_text("telemetry: {enabled: false}\nnux: {enabled: false}\n")
    home = state / "dagster"
    stack = DagsterStack(
        home,
        cluster_file=state / "cluster.yaml",
        instance_file=instance,
        port=free_port(),
        definitions="bench.idle_peer_definitions",
    )
    try:
        stack.start(lambda _: None)
        return watch(stack, home, "bare Dagster", PEERS)
    finally:
        stack.stop()


def _fill_lake(cluster_file: Path, *, past: timedelta) -> float:
    """Write the cycles of the past up to now; return the share of one core that the simulated pages alone cost."""
    clock = SystemClock()
    observatory = assemble_observatory(config_in_force(cluster_file), clock)
    names, (source,) = names_of(tuple(observatory.topology.places)), observatory.metrics
    at, seconds, count = observatory.grid_time(clock.now() - past), 0.0, 0
    while at < clock.now() - settling_time(observatory.step):
        parts, begun = [], time.process_time()
        for page in source.read_range((), start=at, end=at, step_seconds=observatory.step_seconds):
            seconds += time.process_time() - begun
            parts.append(read_page(page, names=names).parsed)
            begun = time.process_time()
        for table, rows in combine(parts).tables.items():
            observatory.lake.write_cycle(table, rows, at=at)
        at, count = at + observatory.step, count + 1
    observatory.lake.fold(clock.now())
    return seconds / count / observatory.step_seconds if count else 0.0


def _write_site(state: Path, node_count: int) -> Path:
    racks = Counter((node.rack, node.leaf_switch) for node in cluster_nodes(node_count))
    lines, first = ["racks:"], 1
    for (rack, leaf), count in racks.items():
        nodes = f"gpu[{first:03d}-{first + count - 1:03d}]"
        lines.append(f'  - {{name: {rack}, nodes: "{nodes}", leaf_switch: {leaf}, model: hgx-h100}}')
        first += count
    shipped = project_file("cluster.yaml").read_text()
    text = re.sub(r"^racks:\n(  - .*\n)+", "\n".join(lines) + "\n", shipped, flags=re.MULTILINE)
    cluster_file = state / "cluster.yaml"
    cluster_file.write_text(re.sub(r"^state_directory: .*$", "state_directory: .", text, flags=re.MULTILINE))
    policy = project_file("policy.yaml").read_text().replace("mode: observe", "mode: auto", 1)
    (state / "policy.yaml").write_text(policy)
    for name in ("teams.yaml", "capacity.yaml", "projects.yaml"):
        (state / name).write_text(project_file(name).read_text())
    return cluster_file


def _quiet(node_count: int) -> Scenario:
    """Return a cluster of which seven of eight nodes work, on usual durations; nothing breaks, comes or goes."""
    training = JobSpec(
        name="pretrain",
        user="research-train",
        account="research",
        workload=Workload.TRAINING,
        node_count=node_count // 2,
        checkpoint_interval_seconds=1800.0,
        checkpointing=Checkpointing.YES,
        priority=100,
    )
    single = JobSpec(name="serving", user="product", account="product", workload=Workload.INFERENCE)
    return Scenario(
        nodes=cluster_nodes(node_count),
        initial_jobs=(training, *([single] * (node_count * 3 // 8))),
        benign_lines_per_node_hour=3.0,
    )


def _watch(stack: DagsterStack, home: Path, *, what: str, parts: Sequence[str], seconds: float) -> Idle:
    book, most = _Book(home=home), 0
    begin = end = book.look()
    while end.at - begin.at < seconds:
        _pass_time(stack, min(_LOOK_EVERY_SECONDS, seconds))
        end = book.look()
        most = max(most, sum(end.held_bytes.get(part, 0) for part in parts))
    return Idle(what=what, parts=parts, begin=begin, end=end, most_bytes=most)


def _pass_time(stack: DagsterStack, seconds: float) -> None:
    time.sleep(seconds)
    stack.refuse_dead()


@dataclass(kw_only=True)
class _Book:
    """What each process of a stack was last seen to have used, those that are gone included."""

    home: Path
    own: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """Process -> whose it is, and its ticks."""

    def look(self) -> Look:
        """Read what each process has used. What a child used that is gone its parent knows, too."""
        held, reaped, alive = Counter[str](), 0, set[tuple[int, int]]()
        for pid, born in find_processes(lambda each: each.get("DAGSTER_HOME") == str(self.home)).items():
            process = Path(f"/proc/{pid}")
            try:
                words = process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
                fields = process.joinpath("stat").read_text().rpartition(")")[2].split()
                memory = process.joinpath("smaps_rollup").read_text()
            except OSError:
                continue  # it ended in this moment
            named = (part for word, part in _WORDS.items() if any(each.endswith(word) for each in words))
            part = RUNS if name_of_process(pid) == FORKS_RUNS else next(named, RUNS)
            self.own[pid, born] = part, sum(map(int, fields[11:13]))
            reaped += sum(map(int, fields[13:15]))
            alive.add((pid, born))
            pss = re.search(r"^Pss:\s+(\d+) kB", memory, flags=re.MULTILINE)
            held[part] += int(pss[1]) * 1024 if pss else 0
        ticks = Counter[str]()
        for part, used in self.own.values():
            ticks[part] += used
        unseen = reaped - sum(used for process, (_, used) in self.own.items() if process not in alive)
        ticks[RUNS] += max(0, unseen)
        cpu = {part: used / _TICKS_A_SECOND for part, used in ticks.items()}
        return Look(at=time.monotonic(), cpu_seconds=cpu, held_bytes=held)


def _table(found: Sequence[Idle]) -> Table:
    table = Table(title=f"nothing happens for {found[0].seconds / 60:.1f} minutes")
    for heading in ("", *(each.what for each in found)):
        table.add_column(heading, justify="left" if not heading else "right")
    for part in OURS:
        table.add_row(
            f"CPU seconds: {part}", *(f"{idle.cpu_seconds(part):.1f}" if part in idle.parts else "" for idle in found)
        )
    table.add_row("together", *(f"{sum(map(idle.cpu_seconds, idle.parts)):.1f}" for idle in found))
    table.add_row("of one core", *(f"{idle.ratio:.1%}" for idle in found))
    table.add_row("MB at first", *(f"{idle.held_bytes(idle.begin) / 1e6:.0f}" for idle in found))
    table.add_row("MB at last", *(f"{idle.held_bytes(idle.end) / 1e6:.0f}" for idle in found))
    table.add_row("MB at most", *(f"{idle.most_bytes / 1e6:.0f}" for idle in found))
    return table


def _verdict(idle: Idle, *, bound: float, peer: Idle | None) -> str:
    against = "" if peer is None else f", {idle.ratio / peer.ratio:.1f} times bare Dagster"
    grown = idle.held_bytes(idle.end) - idle.held_bytes(idle.begin)
    an_hour = grown * 3600 / idle.seconds
    growth = f"grew by {grown / 1e6:.0f} MB, too short a time to judge"
    if idle.seconds >= _JUDGED_SECONDS:
        growth = f"grows by {an_hour / 1e6:.0f} MB an hour ({_judged(an_hour, MOST_GROWTH_BYTES_AN_HOUR)})"
    memory = f"{idle.most_bytes / 1e6:.0f} MB at most; bound {MOST_BYTES / 1e6:.0f}"
    pretended = f" (the pages of simulated exporters alone: {idle.pretended_ratio:.1%})" if idle.pretended_ratio else ""
    return (
        f"{idle.what}: {idle.ratio:.1%} of one core{pretended}{against}; bound {bound:.0%}: "
        f"{_judged(idle.ratio, bound)}. "
        f"{memory}: {_judged(idle.most_bytes, MOST_BYTES)}; {growth}"
    )


def _judged(found: float, bound: float) -> str:
    return "met" if found <= bound else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
