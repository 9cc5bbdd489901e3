"""A repaired node is tested once; tests that cannot be had are stated to be missing, and never taken for passed."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.fault import Family
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.people import orders
from ops_pipelines.remediate.verification import TestsStanding
from ops_pipelines.remediate.verify import check_of, see_to_tests
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from tests.domain.builders import incident, xid
from tests.scenarios.ladder_stage import WATCHFUL, Stage
from tests.simulator.small_cluster import GPU1

PATIENT = replace(WATCHFUL, durations=replace(WATCHFUL.durations, check_limit=timedelta(seconds=60)))


@pytest.fixture
def repaired(tmp_path: Path) -> Stage:
    """Return a stage whose first node was rebooted, and whose tests nobody has asked for yet."""
    stage = Stage(tmp_path, node_count=1, policy=replace(PATIENT, drain_budget=FREE))
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, GPU1, gpu=1)
    whole = stage.cluster
    stage.cluster = replace(whole, fleet=Instead(whole.fleet, inspect=unanswered))  # type: ignore[arg-type]  # a fake
    while not stage.received(EntryKind.REBOOT):
        stage.run_once()
    stage.let_pass(8)
    stage.cluster = whole
    stage.observe_and_decide()
    return stage


FREE = replace(PATIENT.drain_budget, min_in_service_ratio=0.0)


class Instead:
    """A port that does as the one behind it, but for what it is given."""

    def __init__(self, port: object, **instead: Callable[..., object]) -> None:
        self._port = port
        self._instead = instead

    def __getattr__(self, name: str) -> object:
        return self._instead.get(name) or getattr(self._port, name)


def unanswered(*_: object, **__: object) -> object:
    raise SourceUnavailable("no answer within 5 s")


def refused(*_: object, **__: object) -> object:
    raise SourceRefused("no command is configured for start_check; name one, or forbid the act")


def refused_by_the_node(*_: object, **__: object) -> object:
    raise SourceRefused("start_check of gpu001: ssh ended with 77: no command is configured for this")


def look(stage: Stage, **instead: Callable[..., object]) -> TestsStanding:
    fleet = Instead(stage.cluster.fleet, **instead)
    cluster = replace(stage.cluster, fleet=fleet)  # type: ignore[arg-type]  # a fake
    return see_to_tests(stage.incident(), GPU1, cluster, lease=stage.lease)


def test_tests_run_once_and_say_what_passed(repaired: Stage) -> None:
    begun = [look(repaired), look(repaired)]
    repaired.let_pass(5)
    look(repaired)
    over = look(repaired)

    assert [each.are_running for each in begun] == [True, True]
    assert not over.are_running
    assert (over.faults, over.unknowns) == ((), ())
    assert any(proof.startswith("nvml passed") for proof in over.proofs)
    assert len(repaired.received(EntryKind.START_CHECK)) == 1
    assert len(repaired.cluster.ledger.checks(GPU1, limit=5)) == 1


def test_where_the_site_offers_no_tests_everything_else_must_prove_it_and_the_verdict_says_so(repaired: Stage) -> None:
    assert look(repaired, start_check=refused) == TestsStanding(
        proofs=("no tests on the node: no command is configured for start_check; name one, or forbid the act",)
    )


def test_a_node_that_refuses_its_tests_is_not_proven_well_by_that(repaired: Stage) -> None:
    found = look(repaired, start_check=refused_by_the_node)

    assert (found.proofs, len(found.unknowns)) == ((), 1)
    assert found.unknowns[0].startswith("its tests could not be started: ")


def test_a_node_that_tests_something_else_already_is_waited_for(repaired: Stage) -> None:
    assert look(repaired, start_check=unanswered) == TestsStanding(are_running=True)
    assert look(repaired).are_running
    assert len(repaired.received(EntryKind.START_CHECK)) == 1


@pytest.mark.parametrize(
    ("suite", "is_believed"), [("by_hand", True), ("system", False), ("magic", False), ("", False)]
)
def test_a_node_does_not_choose_by_what_it_is_judged(repaired: Stage, suite: str, is_believed: bool) -> None:
    look(repaired)
    repaired.let_pass(5)
    look(repaired)
    real = repaired.cluster.fleet.read_check

    def retold(node: NodeName, *, key: ActionKey) -> object:
        found = real(node, key=key)
        return None if found is None else replace(found, suite=suite)

    found = look(repaired, read_check=retold)

    assert bool(found.proofs) is is_believed
    assert [each.startswith("its tests are of the suite") for each in found.unknowns] == [True] * (not is_believed)


def test_a_catalogue_without_suites_asks_for_no_test(repaired: Stage) -> None:
    rules = replace(repaired.cluster.rules, catalogue=replace(repaired.cluster.rules.catalogue, suites=()))
    repaired.cluster = replace(repaired.cluster, rules=rules)

    assert look(repaired).proofs == ("no tests on the node: the catalogue knows none",)
    assert repaired.received(EntryKind.START_CHECK) == ()


@pytest.mark.parametrize(("seconds", "is_over"), [(59, False), (61, True)])
def test_tests_without_an_end_prove_nothing(repaired: Stage, seconds: float, is_over: bool) -> None:
    never = {"start_check": lambda *_, **__: None, "read_check": lambda *_, **__: None}
    look(repaired, **never)
    repaired.let_pass(seconds)

    found = look(repaired, **never)

    assert found.are_running is not is_over
    assert [each.startswith("its tests came to no end") for each in found.unknowns] == [True] * is_over


def test_results_that_cannot_be_read_prove_nothing(repaired: Stage) -> None:
    look(repaired)
    repaired.let_pass(5)
    look(repaired)

    assert "could not be read" in look(repaired, read_check=unanswered).unknowns[0]
    assert look(repaired, read_check=lambda *_, **__: None).unknowns == ("its tests were over, and are gone",)
    assert look(repaired).unknowns == ()


def test_while_paused_no_test_begins_and_the_node_waits(repaired: Stage) -> None:
    orders.pause(repaired.cluster, actor="day-shift", reason="moving racks")

    assert look(repaired).waits_for.startswith("pause: ")
    assert repaired.received(EntryKind.START_CHECK) == ()


def test_each_repair_is_tested_anew(repaired: Stage) -> None:
    one = incident(xid(79), plan_count=1)
    keys = {check.key for n in (1, 2) if (check := check_of(replace(one, plan_count=n), GPU1, repaired.cluster))}

    assert len(keys) == 2


def test_what_is_found_after_the_tests_began_has_the_node_tested_for_that_too(repaired: Stage) -> None:
    """Tests of another kind say nothing of it; the node once waited for them until a person was called."""
    look(repaired)
    repaired.let_pass(5)
    first = look(repaired)
    memory = replace(xid(48, node=GPU1), family=Family.MEMORY)
    known = repaired.incident()
    wider = replace(known, findings=(*known.findings, memory))
    repaired.cluster.ledger.change_incident(wider, actor="test", now=repaired.clock.now())

    begun = look(repaired)
    repaired.let_pass(5)
    over = look(repaired)

    assert first.proofs
    assert begun.are_running
    assert not over.unknowns
    assert any(each.startswith("dcgm_memtest passed") for each in over.proofs)
    asked_for = check_of(wider, GPU1, repaired.cluster)
    assert asked_for is not None
    assert asked_for.part == asked_for.suite
    assert len(repaired.received(EntryKind.START_CHECK)) == 2


def test_tests_that_cover_what_is_found_later_are_not_begun_again(repaired: Stage) -> None:
    known = repaired.incident()
    both = replace(known, findings=(*known.findings, replace(xid(48, node=GPU1), family=Family.MEMORY)))
    repaired.cluster.ledger.change_incident(both, actor="test", now=repaired.clock.now())
    look(repaired)

    fewer, more = (check_of(each, GPU1, repaired.cluster) for each in (known, both))

    assert fewer == more
