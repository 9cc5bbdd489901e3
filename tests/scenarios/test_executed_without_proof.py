"""Nothing is carried out that was not proved: the second opinion sees each plan before its first act, on every road."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from threading import enumerate as enumerate_threads

import pytest

from ops_pipelines.core.action import MESSAGES, Verb
from ops_pipelines.core.entries import EntryKind
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.observe.intake import take_in_logs
from ops_pipelines.remediate import act_proof, gate, plan_proof
from ops_pipelines.remediate.reflex import react
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.small_cluster import TRAINING


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=5)
    autopilot.let_pass(15)
    return autopilot


def executed_without_proof(autopilot: SmallAutopilot) -> list[str]:
    """Return each act of a plan that was started before a proof that nothing contradicts stood in the chain."""
    proved: set[str] = set()
    unproved = []
    for line in autopilot.cluster.ledger.entries(after=0, limit=100_000):
        body = json.loads(line.body)
        if line.kind is EntryKind.PROOF and not any(each["contradictions"] for each in body["checked"]):
            proved.add(body["plan"])
        if line.kind is EntryKind.ACTION_BEGUN and body["plan"] is not None:
            verb = Verb(body["action"]["verb"])
            if verb not in MESSAGES and body["plan"] not in proved:
                unproved.append(f"{verb.value} of {body['plan']}")
    return unproved


def test_every_act_on_an_xid_79_was_proved_on_the_road_of_the_reflex(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(1)
    take_in_logs(autopilot.cluster)
    react(autopilot.cluster, lease=autopilot.lease)
    autopilot.run_until(IncidentState.RESOLVED, seconds=600)

    verbs = {each.action.verb for each in autopilot.cluster.ledger.records(autopilot.incident().incident)}
    assert {Verb.DRAIN, Verb.HOLD, Verb.FENCE, Verb.RELEASE, Verb.REBOOT} <= verbs
    assert executed_without_proof(autopilot) == []
    assert autopilot.cluster.ledger.verify_chain().problem == ""


def _says_no(*_: object) -> tuple[str, ...]:
    return ("gpu001 is none of ours",)


def _raises(*_: object) -> tuple[str, ...]:
    raise ZeroDivisionError


def _nonsense(*_: object) -> tuple[str, ...]:
    return None  # type: ignore[return-value]  # on purpose


_LET_GO = Event()


def _never_ends(*_: object) -> tuple[str, ...]:
    _LET_GO.wait()
    return ()


@pytest.fixture(autouse=True)
def _provers_end() -> Iterator[None]:
    """A prover that hangs outlives the pass, and while it lives no other is started: release it after the test."""
    _LET_GO.clear()
    yield
    _LET_GO.set()
    for each in enumerate_threads():
        if each.name == "prover":
            each.join(30)


@pytest.mark.parametrize("find", [_says_no, _raises, _nonsense, _never_ends])
@pytest.mark.parametrize("is_reflex", [True, False], ids=["reflex", "run"])
def test_plan_that_its_proof_contradicts_is_not_begun_and_a_person_is_told(
    autopilot: SmallAutopilot,
    monkeypatch: pytest.MonkeyPatch,
    find: Callable[..., tuple[str, ...]],
    is_reflex: bool,
) -> None:
    checks = {**plan_proof.PROOFS, "targets_are_known": ("", find)}
    monkeypatch.setattr(plan_proof, "PROOFS", checks)
    monkeypatch.setattr(gate, "PROOF_SECONDS", 0.5)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(1)

    for _ in range(3):
        if is_reflex:
            take_in_logs(autopilot.cluster)
            react(autopilot.cluster, lease=autopilot.lease)
        else:
            autopilot.run_once()
        autopilot.let_pass(3)

    assert autopilot.commands() == []
    assert autopilot.incident().state is IncidentState.OPEN
    (page,) = autopilot.pages()
    assert "This is a fault of the autopilot" in page.body


@pytest.mark.parametrize("find", [_says_no, _raises, _nonsense])
def test_act_that_the_second_opinion_contradicts_at_its_moment_is_not_sent_and_a_person_is_told_once(
    autopilot: SmallAutopilot, monkeypatch: pytest.MonkeyPatch, find: Callable[..., tuple[str, ...]]
) -> None:
    monkeypatch.setitem(act_proof.ACT_CHECKS, "no_work_is_lost", find)  # type: ignore[arg-type]
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(1)

    for _ in range(3):
        take_in_logs(autopilot.cluster)
        react(autopilot.cluster, lease=autopilot.lease)
        autopilot.let_pass(3)

    assert autopilot.commands() == []
    (page,) = autopilot.pages()
    assert "drain of gpu001" in page.body
    assert "This is a fault of the autopilot" in page.body


def test_plan_of_an_older_version_in_force_is_proved_before_its_next_act(autopilot: SmallAutopilot) -> None:
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(1)
    take_in_logs(autopilot.cluster)
    react(autopilot.cluster, lease=autopilot.lease)
    forget_proofs(autopilot)
    before = autopilot.commands()

    autopilot.act_and_verify()
    waiting = autopilot.commands()
    autopilot.run_until(IncidentState.RESOLVED, seconds=600)

    assert waiting == before
    assert executed_without_proof(autopilot) == []


def forget_proofs(autopilot: SmallAutopilot) -> None:
    """Take away what was proved, as in a ledger of before."""
    import sqlite3

    with sqlite3.connect(autopilot.directory / "ledger.sqlite") as database:
        database.execute("DELETE FROM proofs")


def test_node_that_is_verified_when_the_program_is_upgraded_is_returned(autopilot: SmallAutopilot) -> None:
    """Tests, last choice and return follow a plan without being of it: they need its proof no more."""
    autopilot.use_policy(replace(POLICY, durations=replace(POLICY.durations, soak=timedelta(seconds=20))))
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=2)
    autopilot.let_pass(1)
    autopilot.run_until(IncidentState.VERIFYING, seconds=600)
    forget_proofs(autopilot)

    autopilot.run_until(IncidentState.RESOLVED, seconds=600)

    assert not autopilot.node("gpu001").is_drained
