"""Half of 1,500 nodes ordered drained on a real slurmctld: nodes per second with ledger and read-back included.

Peer: one `scontrol update` and one `scontrol show node` for each node in turn, as a script would, without any record.
Run it with `make bench`, or `python -m bench.throughput`.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.action import Action, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import IncidentId, NodeName, Place, Topology, digest_of
from ops_pipelines.core.plan import Order, Rules
from ops_pipelines.core.policy import BlastCaps, DrainBudget, MassEvent, Mode, Policy
from ops_pipelines.core.sources import LogBatch, LogLine
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.remediate.carry_out import carry_out_together
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.perform import Progress, Stage
from ops_pipelines.remediate.reflex import react
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.slurm.scheduler import SlurmScheduler
from ops_pipelines_lab.drills.postgres_server import PostgresServer
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster
from ops_pipelines_lab.drills.slurm_cluster_files import SlurmClusterSettings
from ops_pipelines_lab.drills.stack import free_port, free_ports

NODE_COUNT, ORDERED_COUNT, RACK_SIZE, PEER_COUNT = 1_500, 750, 30, 60
LIFTED = Policy(
    mode=Mode.AUTO,
    drain_budget=DrainBudget(
        max_out_count=10_000, max_out_per_rack_count=10_000, max_new_per_hour_count=10_000, min_in_service_ratio=0.0
    ),
    # None of the defined nodes has a slurmd: by Slurm's word all of them are out from the start.
    blast_caps=BlastCaps(max_out_per_partition_ratio=1.0, max_out_per_leaf_count=10_000),
    mass_event=MassEvent(min_node_count=10_000),
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement."""

    what: str
    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds


class Storm:
    """A log in which many nodes report the same fault at the same moment."""

    source = "storm"

    def __init__(self, nodes: Sequence[NodeName], at: datetime) -> None:
        self._nodes = nodes
        self._at = at

    def read_new(self, cursor: str | None, *, max_lines: int) -> LogBatch:
        lines = tuple(
            LogLine(
                node=node,
                written_at=self._at,
                position=f"storm:{node}:{self._at.isoformat()}",
                text="NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.",
            )
            for node in (self._nodes if cursor is None else ())
        )
        return LogBatch(lines=lines, cursor="read")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a drain did not end witnessed."""
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    console = Console(highlight=False)
    with tempfile.TemporaryDirectory(prefix="storm-") as name, _slurm(Path(name), console) as slurm:
        rows = [_measure_peer(slurm)]
        with _postgres(Path(name), console) as postgres_url:
            for ledger, url in (("SQLite", f"sqlite:///{name}/ledger.sqlite"), ("PostgreSQL", postgres_url)):
                with console.status(f"draining, ledger on {ledger}"):
                    rows += _measure(slurm, url, ledger=ledger)
            brake = _measure_brake(slurm, f"sqlite:///{name}/brake.sqlite")
    console.print(_table(rows, peer=rows[0]))
    console.print(brake)
    return 0


def _measure(slurm: SlurmCluster, url: str, *, ledger: str) -> list[Row]:
    nodes = slurm.settings.defined_node_names[:ORDERED_COUNT]
    cluster = _cluster(slurm, url, LIFTED)
    incident = IncidentId("INC-0000")
    shared = drain_reason(incident, "the power feed of these racks is failing")
    orders = [Order(action=Action(verb=Verb.DRAIN, incident=incident, node=node, text=shared)) for node in nodes]
    lease = Lease(holder="bench", given=None)
    began = time.monotonic()
    progress = carry_out_together(orders, cluster, lease=lease)
    together = time.monotonic() - began
    _demand(sum(each.stage is Stage.DONE for each in progress.values()), len(nodes), _unfinished(progress.values()))
    _undrain(slurm, nodes)

    take_in_logs(replace(cluster, logs=(Storm(nodes, cluster.clock.now()),)))
    began = time.monotonic()
    reaction = react(cluster, lease=lease)
    each_seconds = time.monotonic() - began
    drains = () if reaction is None else reaction.drains
    waiting = sorted({report.reason for report in drains if not report.steps})
    _demand(sum(len(report.steps) for report in drains), len(nodes), "; ".join(waiting[:3]))
    records = [record for record in cluster.ledger.read_state(cluster.clock.now()).records if record.outcome]
    _demand(sum(each.outcome is not None and each.outcome.kind is OutcomeKind.DONE for each in records), 2 * len(nodes))
    _demand(int(cluster.ledger.verify_chain().first_broken_seq is None), 1)
    _undrain(slurm, nodes)
    return [
        Row(what=f"{ledger}: one reason for all", count=len(nodes), seconds=together),
        Row(what=f"{ledger}: a reason and incident each", count=len(nodes), seconds=each_seconds),
    ]


def _measure_peer(slurm: SlurmCluster) -> Row:
    nodes = slurm.settings.defined_node_names[:PEER_COUNT]
    began = time.monotonic()
    for node in nodes:
        _scontrol(slurm, "update", f"NodeName={node}", "State=DRAIN", "Reason=peer")
        _demand(int("DRAIN" in _scontrol(slurm, "show", "node", node)), 1)
    seconds = time.monotonic() - began
    _undrain(slurm, nodes)
    return Row(what="peer: scontrol in a loop, no record", count=len(nodes), seconds=seconds)


def _measure_brake(slurm: SlurmCluster, url: str) -> str:
    nodes = slurm.settings.defined_node_names[:ORDERED_COUNT]
    cluster = _cluster(slurm, url, Policy(mode=Mode.AUTO))
    take_in_logs(replace(cluster, logs=(Storm(nodes, cluster.clock.now()),)))
    reaction = react(cluster, lease=Lease(holder="bench", given=None))
    drained = [node for node in cluster.scheduler.read_nodes() if node.is_drained]
    state = cluster.ledger.read_state(cluster.clock.now())
    _demand(len(drained) + (0 if reaction is None else len(reaction.drains)), 0)
    (incident,) = state.incidents
    return f"with the cap on: {len(drained)} drained, {len(state.incidents)} incident, which asks: {incident.note}"


def _cluster(slurm: SlurmCluster, url: str, policy: Policy) -> Cluster:
    clock = SystemClock()
    racks = {node: f"r{number // RACK_SIZE:02d}" for number, node in enumerate(slurm.settings.defined_node_names)}
    topology = Topology(
        places={node: Place(rack=rack, nvlink_domain=node, leaf_switch=rack) for node, rack in racks.items()},
        gpus_per_node=8,
    )
    unused: object = None
    return Cluster(
        name="bench",
        scheduler=SlurmScheduler(clock=clock, slurm_conf=slurm.settings.slurm_conf),
        fleet=unused,  # type: ignore[arg-type]  # nothing here goes beyond a drain
        telemetry=unused,  # type: ignore[arg-type]
        logs=(),
        ledger=SqlLedger(url),
        notifier=unused,  # type: ignore[arg-type]
        clock=clock,
        rules=Rules(policy=policy, topology=topology, catalogue=read_catalogue()),
        rules_digest=digest_of("bench"),
    )


@contextmanager
def _slurm(directory: Path, console: Console) -> Iterator[SlurmCluster]:
    settings = SlurmClusterSettings(
        directory=directory / "s",
        node_count=1,
        defined_node_count=NODE_COUNT,
        first_port=free_ports(102),
        slurmd_timeout_seconds=3600,
    )
    cluster = SlurmCluster(settings)
    with console.status(f"starting slurmctld with {NODE_COUNT} nodes"):
        cluster.start()
        # A node that never registered is neither drained nor resumed like a real one: make all of them idle.
        names = ",".join(settings.defined_node_names)
        _scontrol(cluster, "update", f"NodeName={names}", "State=DOWN", "Reason=born")
        _scontrol(cluster, "update", f"NodeName={names}", "State=RESUME")
    try:
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def _postgres(directory: Path, console: Console) -> Iterator[str]:
    directory.chmod(0o755)  # the server's own user passes through
    server = PostgresServer(directory / "p", port=free_port(), databases=("ledger",))
    with console.status("starting PostgreSQL"):
        server.start()
    try:
        yield server.url("ledger")
    finally:
        server.stop()


def _undrain(slurm: SlurmCluster, nodes: Sequence[NodeName]) -> None:
    _scontrol(slurm, "update", f"NodeName={','.join(nodes)}", "State=UNDRAIN")


def _scontrol(slurm: SlurmCluster, *words: str) -> str:
    done = subprocess.run(
        ["scontrol", *words], env=slurm.client_environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def _unfinished(progress: Iterable[Progress]) -> str:
    return "; ".join(sorted({each.reason for each in progress if each.stage is not Stage.DONE})[:3])


def _demand(found: int, expected: int, why: str = "") -> None:
    if found != expected:
        raise SystemExit(f"bench: {found} instead of {expected}; nothing measured here counts. {why}")


def _table(rows: Sequence[Row], *, peer: Row) -> Table:
    table = Table(title=f"{ORDERED_COUNT} of {NODE_COUNT} nodes drained: ordered, recorded before and after, read back")
    for heading in ("", "nodes", "seconds", "nodes/s", "x peer"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        ratio = row.per_second / peer.per_second
        table.add_row(row.what, str(row.count), f"{row.seconds:.2f}", f"{row.per_second:.0f}", f"{ratio:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
