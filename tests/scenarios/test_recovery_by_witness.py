"""The process dies at every step of every healing scenario; a new one on the same disk comes to the same end.

A crash is the disk as it was just before a step: of the ledger, of the cluster, of the notifier. Just before a step is
just after the one before it, so both sides of every write and of every command are covered.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from ops_pipelines.domain.incident import IncidentState
from ops_pipelines.simulator import ground_truth
from ops_pipelines.simulator.journal import EntryKind, FaultKind
from tests.scenarios.small_autopilot import COMMANDS, POLICY, MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

LEDGER_STEPS = frozenset(
    {"take_in", "take_in_conditions", "record_decision", "change_incident", "begin", "mark_sent", "finish"}
)
SCHEDULER_STEPS = frozenset({"drain", "resume", "hold", "exclude", "release", "declare_down"})
FLEET_STEPS = frozenset({"reset_gpu", "reboot", "power_off", "power_on"})
NOTIFIER_STEPS = frozenset({"send"})

QUICK = replace(POLICY, durations=replace(POLICY.durations, soak=timedelta(seconds=1)))
AWAY_SECONDS = (1.0, 25.0)
"""How long nobody runs: within the witness limit of a scheduler command (10 s), and well beyond it and the lease."""


class Watched:
    """A port that tells `before` of each call that changes something, and passes every call on."""

    def __init__(self, port: object, steps: frozenset[str], before: Callable[[str], None]) -> None:
        self._port = port
        self._steps = steps
        self._before = before

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name not in self._steps:
            return method

        def call(*args: object, **options: object) -> object:
            self._before(name)
            return method(*args, **options)

        return call


@dataclass(frozen=True, kw_only=True)
class Disk:
    """What a process that died before `step` left behind."""

    step: str
    number: int
    directory: Path
    at: datetime
    messages: MessagesInMemory


def watch(autopilot: SmallAutopilot, before: Callable[[str], None]) -> None:
    cluster = autopilot.cluster
    autopilot.cluster = replace(
        cluster,
        ledger=cast("Any", Watched(cluster.ledger, LEDGER_STEPS, before)),
        scheduler=cast("Any", Watched(cluster.scheduler, SCHEDULER_STEPS, before)),
        fleet=cast("Any", Watched(cluster.fleet, FLEET_STEPS, before)),
        notifier=cast("Any", Watched(cluster.notifier, NOTIFIER_STEPS, before)),
    )


def end_of(autopilot: SmallAutopilot) -> dict[str, object]:
    """Return everything that must not depend on a crash."""
    cluster = autopilot.cluster
    records = [record for each in autopilot.incidents() for record in cluster.ledger.records(each.incident)]
    return {
        "nodes": [
            (node.node, node.state, node.is_drained, node.is_responding, node.reason)
            for node in cluster.scheduler.read_nodes()
        ],
        "boots": [(node.node, node.is_healthy, node.boot_count) for node in ground_truth.read_nodes(autopilot.twin)],
        "jobs": [
            (job.job, job.state, job.is_held, job.restart_count, job.nodes, job.excluded_nodes)
            for job in cluster.scheduler.read_jobs()
        ],
        "incidents": [(each.incident, each.state, each.plan_count, each.response) for each in autopilot.incidents()],
        "actions": {(r.action.key, r.outcome.kind if r.outcome is not None else None) for r in records},
        "commands": [(entry.kind, entry.nodes, entry.job, entry.gpu) for entry in autopilot.received(*COMMANDS)],
        "split brains": ground_truth.read_split_brains(autopilot.twin),
        "chain": cluster.ledger.verify_chain().first_broken_seq,
    }


def run_to_the_end(autopilot: SmallAutopilot) -> None:
    autopilot.run_until(IncidentState.RESOLVED)
    autopilot.run_once()


@pytest.mark.parametrize(
    ("fault", "gpu", "begin_after", "least_disk_count"),
    [
        pytest.param(FaultKind.GPU_FELL_OFF_BUS, 1, None, 60, id="Xid 79"),
        # What comes before is the same, step by step, as above.
        pytest.param(FaultKind.NODE_UNREACHABLE, None, EntryKind.HOLD, 40, id="silent node"),
        pytest.param(FaultKind.UNCORRECTABLE_ECC, 1, EntryKind.RELEASE, 15, id="ECC"),
        pytest.param(FaultKind.APPLICATION_XID31, 0, None, 8, id="Xid 31"),
    ],
)
def test_crash_before_any_step_changes_nothing_of_the_end(
    tmp_path: Path, fault: FaultKind, gpu: int | None, begin_after: EntryKind | None, least_disk_count: int
) -> None:
    origin = tmp_path / "origin"
    autopilot = SmallAutopilot(origin, replace(TRAINING, gpus_per_node=2), node_count=3, gpus_per_node=2, policy=QUICK)
    autopilot.let_pass(15)
    autopilot.twin.inject(fault, "gpu001", gpu=gpu)
    disks: list[Disk] = []
    kept: list[object] = [None]

    def keep_disk(step: str) -> None:
        if begin_after is not None and begin_after not in autopilot.commands():
            return
        state = autopilot.cluster.ledger.read_state(autopilot.clock.now())
        written = (state.head_seq, state.evidence_head, len(autopilot.twin.entries()), len(autopilot.messages.messages))
        if written == kept[-1] and step.startswith("take_in"):
            return  # Nothing was written since the last step: the same disk.
        kept.append(written)
        number = len(disks)
        directory = tmp_path / f"{number:03d}"
        shutil.copytree(origin, directory)
        messages = MessagesInMemory(autopilot.messages.messages)
        disks.append(Disk(step=step, number=number, directory=directory, at=autopilot.clock.now(), messages=messages))

    watch(autopilot, keep_disk)
    run_to_the_end(autopilot)
    expected, message_count = end_of(autopilot), len(autopilot.messages.messages)

    differences = []
    for disk in disks:
        after = SmallAutopilot.on_disk(disk.directory, at=disk.at, messages=disk.messages, policy=QUICK)
        after.let_pass(AWAY_SECONDS[disk.number % 2])
        try:
            run_to_the_end(after)
        except TimeoutError as problem:
            differences.append((disk.number, disk.step, str(problem)))
            continue
        found = end_of(after)
        differences += [
            (disk.number, disk.step, f"{name}: {found[name]} instead of {expected[name]}")
            for name in expected
            if found[name] != expected[name]
        ]
        # A message that went out just before the crash goes out again: twice is better than never.
        if len(after.messages.messages) - message_count not in (0, int(disk.step == "mark_sent")):
            differences.append((disk.number, disk.step, f"{len(after.messages.messages)} messages"))

    assert len(disks) >= least_disk_count
    assert differences == []
