"""What the gate is reported a rollout, from a ledger, a scheduler and a lake; and what it says where one is silent."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.finding import Finding
from ops_pipelines.core.health import WATCHER
from ops_pipelines.core.identity import ActionKey, NodeName
from ops_pipelines.core.node_tests import GPU_COUNT, Measurement, NodeCheck, TestResult, TestRun
from ops_pipelines.core.observation import Signal
from ops_pipelines.core.policy import Mode, RolloutLimits
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.rollouts.gate.evidence import EventKind, GateVerdict, LevelKind, VerdictKind
from ops_pipelines.rollouts.gate_sources import Seen, gate_evidence, judge_of, read_seen, update_tries
from tests.domain import builders
from tests.domain.builders import job, xid
from tests.ports.kept_work import KeptWork
from tests.ports.rollout_samples import RELEASE, node, rollout, rollout_plan
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

HOUR, DAY, MINUTE, SECOND = (timedelta(seconds=each) for each in (3600, 86400, 60, 1))
ONE, TWO, THREE = (NodeName(f"gpu00{number}") for number in range(1, 4))


class OneJob:
    """A scheduler of which only the jobs are asked."""

    def __init__(self, cluster: Cluster, *nodes: NodeName, started_at: datetime) -> None:
        self._scheduler = cluster.scheduler
        self._job = job("77", nodes=nodes, started_at=started_at)

    def read_jobs(self) -> tuple[object, ...]:
        return (self._job,) if self._job.nodes else ()


class Stage:
    """A rollout of three nodes whose first one is updated and works, an hour ago or longer."""

    def __init__(self, directory: Path, *, soaked: timedelta = 10 * HOUR) -> None:
        self.autopilot = SmallAutopilot(directory, node_count=4, policy=POLICY)
        self.autopilot.let_pass(5)
        self.now = self.autopilot.clock.now()
        self.returned_at = self.now - soaked
        self.rollout = replace(rollout(1), created_at=self.returned_at - HOUR, state=RolloutState.SOAKING)
        waiting = [node(1, name, wave=2) for name in (TWO, THREE)]
        self.nodes = (
            replace(node(1, ONE, stage=NodeStage.SOAKING), returned_at=self.returned_at, since=self.returned_at),
            *waiting,
        )
        self.autopilot.cluster.ledger.open_rollout(
            self.rollout, self.nodes, plan=rollout_plan(self.rollout), release=RELEASE, actor="ada", now=self.now
        )
        self.cluster = replace(
            self.autopilot.cluster,
            scheduler=OneJob(self.autopilot.cluster, ONE, TWO, started_at=self.returned_at),  # type: ignore[arg-type]  # asked for jobs only
        )

    def held(self, *nodes: NodeName, began: timedelta, ended: timedelta, name: str = "7") -> list[dict[str, object]]:
        """Return the rows of an attempt, by how long ago it began and ended."""
        started_at, ended_at = self.now - began, self.now - ended
        return [
            {
                "job": name,
                "attempt": started_at.isoformat(),
                "node": each,
                "time": at.replace(minute=0, second=0, microsecond=0),
                "name": "train",
                "user": "ada",
                "account": "research",
                "state": "COMPLETED",
                "started_at": started_at,
                "ended_at": ended_at,
                "node_count": len(nodes),
            }
            for each in nodes
            for at in (started_at, ended_at)
        ]

    def steps(self, name: str, *, on: NodeName, began: timedelta, seconds: float) -> list[dict[str, object]]:
        return [
            {
                "node": on,
                "device": f"job:{name}",
                "time": self.now - began + minute * MINUTE,
                "step_seconds": seconds,
            }
            for minute in range(40)
        ]

    def keep(self, work: KeptWork | None) -> None:
        self.cluster = replace(self.cluster, past_work=work)

    def seen(self) -> Seen:
        return read_seen(self.rollout, self.nodes, self.cluster, now=self.now)

    def verdict(self, present: Rollout | None = None, nodes: Sequence[RolloutNode] | None = None) -> GateVerdict | None:
        return judge_of(self.rollout, self.cluster)(present or self.rollout, nodes or self.nodes)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def keep_incident(stage: Stage, name: str, on: NodeName, *, ago: timedelta) -> None:
    at = stage.now - ago
    seen = replace(builders.observation(code=79, node=on, gpu=builders.GPU), observed_at=at)
    keep_incident_of(stage, name, replace(xid(79, node=on), evidence=(seen,), found_at=at))


def keep_incident_of(stage: Stage, name: str, finding: Finding) -> None:
    found = replace(builders.incident(finding, name=name), changed_at=stage.now)
    ledger = stage.cluster.ledger
    ledger.record_decision(
        inputs=ledger.store("{}"), decided_through=0, expected_head=None, incidents=[found], plans=[], now=stage.now
    )


def test_nothing_is_judged_before_anything_was_updated(stage: Stage) -> None:
    waiting = [node(1, name) for name in (ONE, TWO, THREE)]

    assert stage.verdict(nodes=waiting) is None


@pytest.mark.parametrize("state", [RolloutState.GOING_BACK, RolloutState.STUCK, RolloutState.DONE])
def test_what_goes_back_or_is_over_is_judged_no_more(stage: Stage, state: RolloutState) -> None:
    assert stage.verdict(replace(stage.rollout, state=state)) is None


def test_update_that_came_to_its_end_is_a_try_and_one_under_way_is_none(stage: Stage) -> None:
    nodes = [
        *stage.nodes,
        replace(node(1, "gpu004", stage=NodeStage.PULLED), failure="installing: no space left"),
        node(1, "gpu005", stage=NodeStage.TESTING),
    ]

    tries = update_tries(nodes, stage.cluster.rules.topology)

    assert [(each.node, each.is_good, each.signature) for each in tries] == [
        (ONE, True, ""),
        (NodeName("gpu004"), False, "installing: no space left"),
    ]


def test_incident_counts_on_the_side_that_its_node_was_on(stage: Stage) -> None:
    keep_incident(stage, "INC-0001", ONE, ago=2 * HOUR)
    keep_incident(stage, "INC-0002", TWO, ago=3 * HOUR)
    stage.keep(KeptWork([*stage.held(ONE, TWO, began=3 * DAY, ended=2 * DAY)]))

    counts = {each.kind: each for each in stage.seen().counts}

    assert (counts[EventKind.XID].treated_count, counts[EventKind.XID].control_count) == (1, 1)
    assert counts[EventKind.XID].treated_nodes == {ONE}
    assert counts[EventKind.XID].treated_node_days == pytest.approx(10 / 24)
    assert counts[EventKind.XID].own_node_days == pytest.approx(1.0)


@pytest.mark.parametrize(("nodes", "is_counted"), [((ONE,), True), ((ONE, TWO), False)])
def test_failed_jobs_are_counted_where_most_work_is_of_one_node(
    stage: Stage, nodes: tuple[NodeName, ...], is_counted: bool
) -> None:
    stage.cluster = replace(stage.cluster, scheduler=OneJob(stage.cluster, started_at=stage.now))  # type: ignore[arg-type]  # asked for jobs only
    stage.keep(KeptWork(stage.held(*nodes, began=9 * HOUR, ended=HOUR)))

    assert (EventKind.JOB_FAILURE in {each.kind for each in stage.seen().counts}) is is_counted


def test_jobs_of_the_scheduler_and_of_the_lake_are_one_time_of_work(stage: Stage) -> None:
    stage.keep(KeptWork(stage.held(ONE, began=12 * HOUR, ended=HOUR)))

    evidence = gate_evidence(stage.rollout, stage.nodes, (), stage.seen(), now=stage.now)

    assert evidence.soaks == {ONE: 10 * HOUR}
    assert evidence.soak_began_at == stage.returned_at


def test_node_that_stood_idle_has_not_soaked(stage: Stage) -> None:
    stage.cluster = replace(stage.cluster, scheduler=OneJob(stage.cluster, started_at=stage.now))  # type: ignore[arg-type]  # asked for jobs only
    stage.keep(KeptWork(stage.held(TWO, began=9 * HOUR, ended=HOUR)))

    evidence = gate_evidence(stage.rollout, stage.nodes, (), stage.seen(), now=stage.now)

    assert evidence.soaks == {ONE: timedelta(0)}


def test_soak_begins_with_the_last_return_and_a_failed_node_on_its_way_back_holds_it_up_no_more(stage: Stage) -> None:
    back = replace(node(1, TWO, stage=NodeStage.BACK), failure="testing: nccl", returned_at=stage.now, since=stage.now)
    nodes = (stage.nodes[0], back)

    evidence = gate_evidence(stage.rollout, nodes, (), stage.seen(), now=stage.now)

    assert evidence.soak_began_at == stage.returned_at


def test_soak_has_not_begun_while_a_node_of_the_wave_is_in_hand(stage: Stage) -> None:
    nodes = (stage.nodes[0], node(1, TWO, stage=NodeStage.TESTING))

    assert gate_evidence(stage.rollout, nodes, (), stage.seen(), now=stage.now).soak_began_at is None


def test_steps_of_updated_nodes_are_compared_with_their_own_past_and_with_the_others(stage: Stage) -> None:
    allocations: list[dict[str, object]] = []
    steps: list[dict[str, object]] = []
    for number, (on, began, seconds) in enumerate(
        [
            *((ONE, (2 + each) * DAY, 2.0) for each in range(3)),
            *((TWO, (2 + each) * DAY, 2.0) for each in range(3)),
            (ONE, 5 * HOUR, 2.4),
            (TWO, 5 * HOUR, 2.0),
        ]
    ):
        name = str(number)
        allocations += stage.held(on, began=began, ended=began - HOUR, name=name)
        steps += stage.steps(name, on=on, began=began, seconds=seconds)
    stage.keep(KeptWork(allocations, steps))

    seen = stage.seen()

    (moved,) = seen.levels
    assert (moved.kind, moved.node, moved.before) == (LevelKind.STEP_TIME, ONE, (1.0, 1.0, 1.0))
    assert list(moved.after) == pytest.approx([1.2])
    (shift,) = seen.shifts
    assert shift.shift_ratio == pytest.approx(0.0)
    assert shift.node_count == 1


@pytest.mark.parametrize(("past", "levels"), [(1, 0), (2, 1), (3, 1)])
def test_bandwidth_is_compared_only_where_tests_measured_it_before(stage: Stage, past: int, levels: int) -> None:
    for number in range(past):
        keep_check(stage, at=stage.returned_at - (1 + number) * DAY, value=480.0)
    keep_check(stage, at=stage.returned_at - MINUTE + HOUR, value=440.0)

    found = stage.seen().levels

    assert len(found) == levels
    for each in found:
        assert (each.kind, each.before, each.after) == (LevelKind.BANDWIDTH, (480e9,) * past, (440e9,))


def keep_check(stage: Stage, *, at: datetime, value: float) -> None:
    measured = (
        Measurement(name="busbw", value=value, unit="GB/s"),
        Measurement(name=GPU_COUNT, value=8.0, unit="count"),
    )
    found = NodeCheck(
        key=ActionKey(f"{at:%d%H%M%S}"),
        node=ONE,
        suite="release",
        started_at=at - MINUTE,
        finished_at=at,
        tests=(TestRun(test="nccl_loopback", result=TestResult.PASSED, said="", measurements=measured),),
    )
    stage.cluster.ledger.keep_check(found, is_well=True)


def test_without_a_lake_a_deciding_wave_is_never_good(stage: Stage) -> None:
    verdict = stage.verdict()

    assert verdict is not None
    assert verdict.kind is VerdictKind.UNDECIDED
    assert "nobody measures step time or bandwidth" in verdict.reason
    assert any(each.name == "sources" and "nobody keeps which jobs ran" in each.said for each in verdict.tests)


def test_past_that_nobody_kept_does_not_charge_the_present(stage: Stage) -> None:
    keep_incident(stage, "INC-0001", ONE, ago=5 * DAY)

    for counts in stage.seen().counts:
        assert (counts.own_count, counts.past_count) == (0, 0)


@pytest.mark.parametrize("fails", ["allocations", "steps"])
@pytest.mark.parametrize(
    ("soaked", "kind"), [(6 * DAY, VerdictKind.UNDECIDED), (8 * DAY, VerdictKind.ASK)], ids=["within", "beyond"]
)
def test_wave_that_would_be_good_waits_for_a_silent_lake_and_then_asks(
    tmp_path: Path, fails: str, soaked: timedelta, kind: VerdictKind
) -> None:
    stage = Stage(tmp_path, soaked=soaked)
    limits = RolloutLimits(soak=HOUR, soak_limit=7 * DAY)
    rules = replace(stage.cluster.rules, policy=replace(POLICY, rollouts=limits))
    stage.cluster = replace(stage.cluster, rules=rules)
    first, *others = stage.rollout.waves
    stage.rollout = replace(stage.rollout, waves=(replace(first, is_deciding=False), *others))
    work = stage.held(ONE, TWO, began=soaked, ended=HOUR)

    stage.keep(KeptWork(work))
    good = stage.verdict()
    stage.keep(KeptWork(work, fails=fails))
    waiting = stage.verdict()

    assert good is not None
    assert good.kind is VerdictKind.GOOD
    assert waiting is not None
    assert waiting.kind is kind
    assert "the disk is full" in waiting.reason


@pytest.mark.parametrize(
    ("answers", "ago", "said"),
    [
        pytest.param({"telemetry": None}, timedelta(seconds=59), "", id="all eyes open"),
        pytest.param({"telemetry": None}, timedelta(seconds=60), "nobody looks for faults", id="nobody looks"),
        pytest.param({"telemetry": "refused"}, timedelta(0), "telemetry does not answer", id="a source is silent"),
    ],
)
def test_nothing_is_good_while_faults_may_go_unnoticed(
    stage: Stage, answers: dict[str, str | None], ago: timedelta, said: str
) -> None:
    stage.cluster.ledger.beat(
        name=WATCHER, holder="host:1", note="", mode=Mode.AUTO, answers=answers, now=stage.now - ago
    )

    silent = "; ".join(stage.seen().silent)

    assert said in silent
    assert bool(silent) is bool(said)


@pytest.mark.parametrize(("blind", "is_told"), [(ONE, True), (TWO, False)])
def test_updated_node_without_metrics_makes_nothing_good_and_another_does_not_matter(
    stage: Stage, blind: NodeName, is_told: bool
) -> None:
    gone = builders.observation(signal=Signal.TELEMETRY_STALE, node=blind)
    stage.cluster.ledger.take_in_conditions(source="telemetry", present=[gone], now=stage.now)

    assert stage.seen().silent == ((f"no fresh metrics from {blind}",) if is_told else ())


def test_late_lake_is_told(stage: Stage) -> None:
    stage.keep(KeptWork(stage.held(ONE, began=9 * HOUR, ended=6 * HOUR)))

    assert any("fill its hours" in each for each in stage.seen().notes)


def test_what_was_read_once_serves_the_whole_pass(stage: Stage) -> None:
    judge = judge_of(stage.rollout, stage.cluster)
    first = judge(stage.rollout, stage.nodes)
    keep_incident(stage, "INC-0001", ONE, ago=HOUR)

    assert judge(stage.rollout, stage.nodes) == first
    assert stage.verdict() != first


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_updated_node_that_has_just_fallen_silent_makes_nothing_good(stage: Stage, is_waited_for: bool) -> None:
    confirm = stage.cluster.rules.policy.durations.confirm_unreachable_after
    at = stage.now - confirm + (SECOND if is_waited_for else timedelta(0))
    missed = builders.unreachable(node=ONE)
    begun = replace(missed, found_at=at, evidence=(replace(missed.evidence[0], observed_at=at),))
    keep_incident_of(stage, "INC-0001", begun)

    seen = stage.seen()

    assert any(f"{ONE} may be broken" in each for each in seen.silent) is is_waited_for
    failures = next(each for each in seen.counts if each.kind is EventKind.NODE_FAILURE)
    assert bool(failures.treated_count) is not is_waited_for
