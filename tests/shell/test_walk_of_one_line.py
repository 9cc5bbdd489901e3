"""ARCHITECTURE.md names each module that a log line crosses on its way to a drain, and how often each source is read.
Of the other four walks: that each module that is named exists, and that they are few enough to be read.

Crossed: called from another room. Left out are values that go along, and those asked for one answer.
"""

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import cast

import pytest

from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.scheduler import Scheduler
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.remediate.reflex import react
from tests.flow.fake_store import FakeLogs
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.simulator.small_cluster import TRAINING

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
PACKAGE = "ops_pipelines."
WALKS = ("A log line", "A sample", "A demand series", "A wave", "An approval")
MOST_COUNT = 24
NOUNS = "core."
ACTING = (
    *(
        "observe.intake",
        "observe.logs.",
        "remediate.snapshot",
        "remediate.bundle",
        "remediate.reflex",
        "remediate.decide",
    ),
    *("remediate.plan_proof", "remediate.guardrails.judge", "remediate.act_proof", "remediate.judgement"),
    *("remediate.verbs", "remediate.perform", "remediate.gate", "remediate.carry_out"),
)
"""Named though they are called from within their room: they carry out, or let something be carried out."""
ONE_VALUE_ANSWERS = {
    "diagnose.hypothesis",  # what findings call for
    "diagnose.incidents",  # the world that findings are correlated against
    "lake.node_names",  # whom a host name means
    "lake.quantities",  # what was accepted, and what rejected
    "observe.job_facts",  # what jobs say of themselves: nothing here
    "observe.repeated",  # under which rule an observation counts
    "observe.rules",  # what an observation means
}
STAND_INS = {"ops_pipelines_lab.simulator.adapters": "resources.slurm.scheduler"}


def paragraph() -> str:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    (found,) = [each for each in text.split("\n\n") if each.startswith("From one log line to a drain")]
    return found


def named() -> set[str]:
    names = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`", paragraph())) - {"sensors/fault"}
    return {name.replace("/", ".") for name in names}


class Counting:
    """A port that counts what it is asked."""

    def __init__(self, port: object) -> None:
        self._port = port
        self.counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> object:
        self.counts[name] += 1
        return getattr(self._port, name)


@contextmanager
def crossings() -> Iterator[set[str]]:
    """Collect the modules that are called from another room, or that act, in every thread."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        callee = _module(frame)
        if event != "call" or callee is None or callee in found:
            return
        caller = frame.f_back
        while caller is not None and _module(caller) is None:
            caller = caller.f_back
        room = None if caller is None else str(_module(caller)).split(".")[0]
        if callee.startswith(ACTING) or (room is not None and room != callee.split(".")[0]):
            found.add(callee)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _module(frame: FrameType) -> str | None:
    name = str(frame.f_globals.get("__name__", ""))
    return name.removeprefix(PACKAGE) if name.startswith(PACKAGE) else STAND_INS.get(name)


def test_one_line_crosses_the_modules_that_are_named_and_no_other(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    log = FakeLogs(source="kernel_log")
    log.write("NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.", at=autopilot.clock.now())
    scheduler, ledger = Counting(autopilot.cluster.scheduler), Counting(autopilot.cluster.ledger)
    autopilot.cluster = replace(
        autopilot.cluster,
        logs=(log,),
        scheduler=cast("Scheduler", scheduler),
        ledger=cast("Ledger", ledger),
    )

    with crossings() as crossed:
        take_in_logs(autopilot.cluster)
        react(autopilot.cluster, lease=autopilot.lease)

    assert autopilot.node("gpu001").is_drained
    assert {name for name in crossed - ONE_VALUE_ANSWERS if not name.startswith(NOUNS)} == named()
    assert len(named()) <= MOST_COUNT
    assert crossed >= ONE_VALUE_ANSWERS, "nothing is left out that is not met"
    told = re.search(r"nodes (\d) times, for its jobs (\d) times, the ledger for its state (\d) times", paragraph())
    assert told is not None
    counts = (scheduler.counts["read_nodes"], scheduler.counts["read_jobs"], ledger.counts["read_state"])
    assert tuple(map(int, told.groups())) == counts


def walks() -> dict[str, set[str]]:
    """Return by its heading what each walk names between backticks."""
    text = ARCHITECTURE.read_text(encoding="utf-8").split("\n## Five walks\n")[1].split("\n## ")[0]
    parts = [each.split("\n", 1) for each in text.split("\n### ")[1:]]
    return {heading: set(re.findall(r"`([^`]+)`", body)) for heading, body in parts}


@pytest.mark.parametrize("heading", WALKS)
def test_each_walk_names_modules_that_exist_and_fewer_than_25(heading: str) -> None:
    words = {each for each in walks()[heading] if not each.startswith("ops-pipelines ")} - {"approve_plan"}
    package = ARCHITECTURE.parent / "ops_pipelines"

    missing = {name for name in words if not (package / f"{name}.py").is_file()}

    assert missing == set()
    assert 10 <= len(words) <= MOST_COUNT


def test_there_are_five_walks() -> None:
    assert set(walks()) == set(WALKS)
