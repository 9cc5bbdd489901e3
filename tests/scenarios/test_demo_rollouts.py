"""The parts of the demo that update, on the demo's own files and policy, without Dagster and on simulated time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.action import ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.notes import Audience
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.rollouts.cycle import advance_rollouts
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble
from ops_pipelines_lab.drills.demo_evidence import Part, leave_alone
from ops_pipelines_lab.drills.demo_rollout import BAD_PART, GOOD_PART, most_at_once, rollout_commands, with_racks
from ops_pipelines_lab.drills.demo_setup import BAD, BAD_RACK, GOOD, GOOD_RACK, with_rack_lines, write_configuration
from ops_pipelines_lab.drills.stack import StackError
from ops_pipelines_lab.simulator.scenario import cluster_nodes, demo_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.ports.ledger_samples import NOW, drain
from tests.scenarios.test_demo_parts import PAGES_URL, DemoAutopilot
from tests.simulator.fake_clock import FakeClock

_PASS_SECONDS = 6.0
_LIMIT_SECONDS = 270.0


class RolloutDemo(DemoAutopilot):
    """The demo's two racks and two nodes more, with the jobs of the racks alone."""

    def __init__(self, state: Path, *parts: Part) -> None:
        scenario = with_racks(replace(demo_scenario(), nodes=cluster_nodes(8), initial_jobs=(), arrivals=()))
        self.clock = FakeClock()
        self.state = state
        self.failures = []
        config = read_cluster(write_configuration(state, pages_url=PAGES_URL))
        self.twin = Twin.create(state / TWIN_DIRECTORY, scenario, seed=7, clock=self.clock, past=timedelta(seconds=60))
        whole = assemble(config, self.clock)
        names = {node.name for node in scenario.nodes}
        places = {name: place for name, place in whole.rules.topology.places.items() if name in names}
        rules = replace(whole.rules, topology=replace(whole.rules.topology, places=places))
        self.cluster = replace(whole, rules=rules, bundles=None, recollection=None)
        self.lease = Lease(holder="test", given=None)
        self._plans = ()
        self._refusals = ()
        self._begun = {part.letter: part.inject(self.twin) for part in parts}

    def roll(self, parts: Sequence[Part]) -> None:
        """Let passes come every few seconds until the parts are at their ends, or time is up."""
        until = self.clock.now() + timedelta(seconds=_LIMIT_SECONDS)
        while self.clock.now() < until:
            left = [part for part in parts if part.differences(self.evidence_of(part))]
            if not left:
                return
            for part in left:
                part.proceed(self.evidence_of(part))
            self.run_once()
            advance_rollouts(self.cluster, lease=self.lease)
            self.let_pass(_PASS_SECONDS)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> RolloutDemo:
    autopilot = RolloutDemo(tmp_path_factory.mktemp("demo"), GOOD_PART, BAD_PART)
    autopilot.roll([GOOD_PART, BAD_PART])
    return autopilot


@pytest.mark.parametrize("part", [GOOD_PART, BAD_PART], ids=lambda part: part.letter)
def test_rollout_of_the_demo_reaches_its_end(demo: RolloutDemo, part: Part) -> None:
    assert part.differences(demo.evidence_of(part)) == ()


def test_demo_says_what_the_gate_could_not_decide_and_who_answered(demo: RolloutDemo) -> None:
    line, answer = GOOD_PART.tell(demo.evidence_of(GOOD_PART))

    assert "done after" in line
    assert "8 of 8 nodes touched, in 3 of 3 waves" in line
    assert "could not decide" in answer


def test_demo_says_why_the_bad_one_stopped(demo: RolloutDemo) -> None:
    line, why = BAD_PART.tell(demo.evidence_of(BAD_PART))

    assert "went back" in line
    assert "updates: 2 of 2 did not come well" in why


def test_whom_a_bad_release_hits_wakes_nobody_and_is_acted_on_by_nobody_else(demo: RolloutDemo) -> None:
    evidence = demo.evidence_of(BAD_PART)

    assert evidence.message_count(Audience.ON_CALL, evidence.incidents) == 0
    assert not any(demo.cluster.ledger.records(each.incident) for each in evidence.incidents)


def test_plan_of_each_release_can_be_shown_before_it_is_begun(tmp_path: Path) -> None:
    autopilot = RolloutDemo(tmp_path, GOOD_PART)
    call = autopilot.evidence_of(GOOD_PART).call

    good, bad = (call(("rollout", "plan", name)) for name in (GOOD, BAD))

    assert "8 in 3 waves" in good
    assert "4 in 2 waves" in bad


def test_part_whose_rollout_nobody_has_started_is_not_at_its_end(tmp_path: Path) -> None:
    autopilot = RolloutDemo(tmp_path, GOOD_PART, BAD_PART)
    idle = [replace(part, proceed=leave_alone) for part in (GOOD_PART, BAD_PART)]

    assert all("not started yet" in part.differences(autopilot.evidence_of(part))[0] for part in idle)


def test_no_job_of_the_other_parts_comes_to_the_racks_and_no_fault_is_put_there() -> None:
    scenario = with_racks(demo_scenario())
    partitions = {node.name: node.partitions for node in scenario.nodes}

    assert {partitions[name] for name in (*GOOD_RACK.nodes, *BAD_RACK.nodes)} == {("eval",), ("spare",)}
    assert all(job.partition not in ("eval", "spare") for job in scenario.initial_jobs)


def test_releases_of_the_demo_are_told_with_its_own_cluster_file() -> None:
    assert rollout_commands(".demo/cluster.yaml") == (
        f"ops-pipelines rollout start {GOOD} --cluster .demo/cluster.yaml",
        f"ops-pipelines rollout start {BAD} --cluster .demo/cluster.yaml",
    )


def test_cluster_file_without_a_place_for_the_racks_is_refused() -> None:
    with pytest.raises(StackError, match="gpu\\[057-064\\]"):
        with_rack_lines("racks: []\n")


def acted(verb: Verb, name: str, *, begins: int, ends: int, kind: OutcomeKind = OutcomeKind.DONE) -> ActionRecord:
    action = replace(drain(1), verb=verb, node=NodeName(name), incident=IncidentId("ROLL-0001"))
    ended = NOW + timedelta(seconds=ends)
    return ActionRecord(
        action=action,
        plan=None,
        begun_at=NOW + timedelta(seconds=begins),
        outcome=Outcome(kind=kind, witness="", finished_at=ended),
    )


@pytest.mark.parametrize(
    ("begins", "most"),
    [pytest.param(9, 2, id="before"), pytest.param(10, 1, id="as the other returns"), pytest.param(11, 1, id="after")],
)
def test_nodes_are_out_at_once_from_the_drain_to_the_return(begins: int, most: int) -> None:
    records = [
        acted(Verb.DRAIN, "gpu001", begins=0, ends=1),
        acted(Verb.RESUME, "gpu001", begins=9, ends=10),
        acted(Verb.DRAIN, "gpu002", begins=begins, ends=12),
        acted(Verb.RESUME, "gpu002", begins=19, ends=20),
        acted(Verb.DRAIN, "gpu003", begins=0, ends=12, kind=OutcomeKind.FAILED),
    ]

    assert most_at_once(records) == most
