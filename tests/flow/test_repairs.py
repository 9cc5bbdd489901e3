"""The repair queue, the ladder's standings, probation and time saved, as the ledger has them; and a person's word."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import EntryKind
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, NodeName, PlanId
from ops_pipelines.core.incident import Incident, IncidentState, Try
from ops_pipelines.core.observation import JobStatus, NodeInspection
from ops_pipelines.core.plan import BlastRadius, JobTiming, Moment, Option, TouchedJob
from ops_pipelines.core.policy import Durations
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.remediate.by_hand import ByHandRefused, mark_repaired, queue_of, report_for
from ops_pipelines.remediate.ladder import Rung
from ops_pipelines.remediate.standings import Standing, probations_of, standings_of
from ops_pipelines.review.cost import NO_TEAM, recent_remediation, sum_by_day_and_team
from tests.ports.ledger_check_contract import node_check
from tests.ports.ledger_samples import decide, incident, plan
from tests.ports.proved_plans import allow, as_step, keep_proved
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot

NODE = NodeName("gpu003")
NAME = IncidentId("INC-0001")
ATTEMPT = JobAttempt(job=JobId("42"), started_at=incident(1).opened_at)


@pytest.fixture
def autopilot(tmp_path: Path) -> SmallAutopilot:
    policy = replace(POLICY, durations=replace(POLICY.durations, probation=timedelta(hours=6)))
    return SmallAutopilot(tmp_path, node_count=4, policy=policy)


def known(autopilot: SmallAutopilot, state: IncidentState, number: int = 1, **changes: Any) -> Incident:
    """Record an incident of gpu003 that changed a minute ago."""
    now = autopilot.clock.now()
    given = replace(incident(number, state=state, at=now - timedelta(minutes=1)), **changes)
    decide(autopilot.cluster.ledger, given, at=now)
    return given


def tried(autopilot: SmallAutopilot, response: Response, *, minutes_ago: float) -> Try:
    ended_at = autopilot.clock.now() - timedelta(minutes=minutes_ago)
    return Try(response=response, ended_at=ended_at, why="it came back")


def done(autopilot: SmallAutopilot, verb: Verb, *, plan: str | None = None, minutes_ago: float = 5, **of: Any) -> None:
    """Record an act of INC-0001 with its witness."""
    at = autopilot.clock.now() - timedelta(minutes=minutes_ago)
    act = Action(verb=verb, incident=NAME, **of)
    record = ActionRecord(action=act, plan=None if plan is None else PlanId(plan), begun_at=at)
    ledger = autopilot.cluster.ledger
    ledger.begin(as_step(record, ledger), guard=allow, lease_token=None, actor="autopilot", now=at)
    ledger.finish(act.key, Outcome(kind=OutcomeKind.DONE, witness="seen", finished_at=at), actor="autopilot")


def standings(autopilot: SmallAutopilot) -> tuple[Standing, ...]:
    return standings_of(autopilot.cluster, autopilot.cluster.ledger.read_state(autopilot.clock.now()))


# -- the queue --


def test_longest_waiting_node_stands_first_and_others_not_at_all(autopilot: SmallAutopilot) -> None:
    early = tried(autopilot, Response.REBOOT_NODE, minutes_ago=600)
    known(autopilot, IncidentState.IN_REPAIR, 1, tries=(tried(autopilot, Response.REBOOT_NODE, minutes_ago=60),))
    known(autopilot, IncidentState.IN_REPAIR, 2, nodes=frozenset({NodeName("gpu004")}), tries=(early,))
    known(autopilot, IncidentState.ESCALATED, 3)

    queue = queue_of(autopilot.cluster)

    assert [(each.report.node, each.age) for each in queue] == [
        ("gpu004", timedelta(minutes=600)),
        ("gpu003", timedelta(minutes=60)),
    ]


def test_report_tells_the_tests_and_the_earlier_trouble_of_the_node(autopilot: SmallAutopilot) -> None:
    at = autopilot.clock.now() - timedelta(days=3)
    autopilot.cluster.ledger.keep_check(node_check(at=at), is_well=False)
    known(autopilot, IncidentState.RESOLVED, 7, findings=incident(7, at=at).findings, opened_at=at)
    known(autopilot, IncidentState.IN_REPAIR, 1)

    (waiting,) = queue_of(autopilot.cluster)

    assert waiting.report.parts[0].serial == "1652823054567"
    assert waiting.report.chassis_serial == "C-17"
    assert [each.incident for each in waiting.report.history] == ["INC-0007"]


def test_report_for_one_incident_asks_the_node_itself(autopilot: SmallAutopilot) -> None:
    known(autopilot, IncidentState.ESCALATED)

    told = report_for(autopilot.cluster, NAME)

    assert not [each for each in told.not_known if each.startswith("how the node sees itself")]


class SilentFleet:
    """A node that does not answer."""

    def inspect(self, node: NodeName) -> NodeInspection:
        raise SourceUnavailable(f"{node} does not answer; look at it")


def test_node_that_is_silent_has_a_report_that_says_so(autopilot: SmallAutopilot) -> None:
    known(autopilot, IncidentState.IN_REPAIR)
    deaf = replace(autopilot.cluster, fleet=SilentFleet())  # type: ignore[arg-type]  # one method is asked

    assert "how the node sees itself now: it did not answer" in report_for(deaf, NAME).not_known


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"nodes": frozenset()}, "is about 0 nodes"), ({"incident": IncidentId("INC-0002")}, "there is no incident")],
)
def test_report_on_no_node_is_refused(autopilot: SmallAutopilot, changes: dict[str, Any], words: str) -> None:
    known(autopilot, IncidentState.IN_REPAIR, **changes)

    with pytest.raises(ByHandRefused, match=words):
        report_for(autopilot.cluster, NAME)


# -- a person's word --


def test_mended_node_must_prove_itself_and_the_ladder_begins_anew(autopilot: SmallAutopilot) -> None:
    given = known(
        autopilot,
        IncidentState.IN_REPAIR,
        tries=(tried(autopilot, Response.REBOOT_NODE, minutes_ago=60),),
        plan=PlanId("PLAN-1"),
        plan_count=3,
    )
    now = autopilot.clock.now()

    mended = mark_repaired(autopilot.cluster, NAME, actor="ada", note=" replaced GPU 3 by S-9 ", now=now)

    assert autopilot.cluster.ledger.incident(NAME) == mended
    assert (mended.state, mended.tries, mended.mended_at) == (IncidentState.VERIFYING, (), now)
    assert mended.plan_count == given.plan_count + 1  # so that tests of before are not taken for those of after
    assert (mended.note, mended.changed_at) == ("repaired, says ada: replaced GPU 3 by S-9", now)
    newest = autopilot.cluster.ledger.entries(after=0, limit=99)[-1]
    assert (newest.kind, newest.actor, newest.incident) == (EntryKind.INCIDENT, "ada", NAME)
    assert autopilot.cluster.ledger.verify_chain().problem == ""


@pytest.mark.parametrize("state", [each for each in IncidentState if each is not IncidentState.IN_REPAIR])
def test_what_is_not_in_the_repair_queue_cannot_be_called_mended(
    autopilot: SmallAutopilot, state: IncidentState
) -> None:
    given = known(autopilot, state)

    with pytest.raises(ByHandRefused, match=f"is {state.value}; only what is in the repair queue"):
        mark_repaired(autopilot.cluster, NAME, actor="ada", note="x", now=autopilot.clock.now())

    assert autopilot.cluster.ledger.incident(NAME) == given


@pytest.mark.parametrize(("name", "note", "words"), [(NAME, " \n", "nothing is stated"), ("INC-9", "x", "there is no")])
def test_word_about_nothing_is_refused(autopilot: SmallAutopilot, name: str, note: str, words: str) -> None:
    given = known(autopilot, IncidentState.IN_REPAIR)

    with pytest.raises(ByHandRefused, match=words):
        mark_repaired(autopilot.cluster, IncidentId(name), actor="ada", note=note, now=autopilot.clock.now())

    assert autopilot.cluster.ledger.incident(NAME) == given


# -- the ladder --


def test_node_that_is_only_watched_stands_nowhere(autopilot: SmallAutopilot) -> None:
    known(autopilot, IncidentState.OPEN)

    assert standings(autopilot) == ()


def test_standing_tells_rung_since_what_failed_and_what_comes_next(autopilot: SmallAutopilot) -> None:
    known(autopilot, IncidentState.OPEN, tries=(tried(autopilot, Response.REBOOT_NODE, minutes_ago=1),))
    done(autopilot, Verb.DRAIN, node=NODE, minutes_ago=9)
    done(autopilot, Verb.REBOOT, node=NODE, minutes_ago=7)

    (standing,) = standings(autopilot)

    assert (standing.node, standing.rung, standing.failed) == (NODE, Rung.REBOOT, {Rung.REBOOT})
    assert standing.since == autopilot.clock.now() - timedelta(minutes=7)
    assert standing.next_rung is Rung.POWER_CYCLE


@pytest.mark.parametrize(
    ("state", "next_rung", "words"),
    [
        pytest.param(IncidentState.ACTING, Rung.POWER_CYCLE, "witnesses", id="under way"),
        pytest.param(IncidentState.VERIFYING, Rung.POWER_CYCLE, "tests", id="proving itself"),
        pytest.param(IncidentState.PROBATION, Rung.POWER_CYCLE, "end of its probation", id="watched"),
        pytest.param(IncidentState.ESCALATED, None, "a person", id="a person's"),
        pytest.param(IncidentState.IN_REPAIR, None, "repair done INC-0001", id="in repair"),
    ],
)
def test_what_comes_next_and_what_it_waits_for(
    autopilot: SmallAutopilot, state: IncidentState, next_rung: Rung | None, words: str
) -> None:
    known(autopilot, state)
    done(autopilot, Verb.REBOOT, node=NODE)

    (standing,) = standings(autopilot)

    assert standing.next_rung is next_rung
    assert words in standing.waits_for


# -- probation --


def test_probation_ends_after_its_time_and_names_what_runs_on_the_node(autopilot: SmallAutopilot) -> None:
    now = autopilot.clock.now()
    known(autopilot, IncidentState.PROBATION, returned_at=now - timedelta(hours=2))
    state = autopilot.cluster.ledger.read_state(now)

    (found,) = probations_of(autopilot.cluster, state)

    assert (found.node, found.until - now, found.jobs) == (NODE, timedelta(hours=4), ())


class SilentScheduler:
    """A controller that does not answer."""

    def read_jobs(self) -> tuple[JobStatus, ...]:
        raise SourceUnavailable("slurmctld did not answer; check that it runs")


def test_silent_scheduler_leaves_the_jobs_on_probation_unknown(autopilot: SmallAutopilot) -> None:
    known(autopilot, IncidentState.PROBATION, returned_at=autopilot.clock.now())
    deaf: Cluster = replace(autopilot.cluster, scheduler=SilentScheduler())  # type: ignore[arg-type]  # one is asked

    (found,) = probations_of(deaf, deaf.ledger.read_state(autopilot.clock.now()))

    assert found.jobs is None


# -- time saved --


def timing(autopilot: SmallAutopilot, moment: Moment, *options: tuple[Moment, float]) -> JobTiming:
    return JobTiming(
        attempt=ATTEMPT,
        moment=moment,
        options=tuple(Option(moment=each, lost_gpu_hours=lost, why="") for each, lost in options),
        decided_at=autopilot.clock.now(),
        checkpointed_at=None,
        until=None,
        reason="",
    )


def planned(autopilot: SmallAutopilot, *timings: JobTiming, account: str = "research") -> None:
    touched = TouchedJob(job="42", account=account, gpu_count=8, lost_gpu_hours=1.0, is_interrupted=True)
    proof = BlastRadius(
        jobs=(touched,), teams=(account,), lost_gpu_hours=1.0, unknown_loss_count=0, remaining=(), violations=()
    )
    drain = Action(verb=Verb.DRAIN, incident=NAME, node=NODE)
    hold = Action(verb=Verb.HOLD, incident=NAME, attempt=ATTEMPT)
    made = replace(plan(1, drain, hold), timings=timings, proof=proof)
    given = replace(incident(1, at=autopilot.clock.now()), plan_count=1, plan=made.plan)
    decide(autopilot.cluster.ledger, given, plans=(made,), at=autopilot.clock.now())
    keep_proved(autopilot.cluster.ledger, made, at=autopilot.clock.now())


AT_CHECKPOINT = ((Moment.NEXT_CHECKPOINT, 0.5), (Moment.NOW, 7.5))


@pytest.mark.parametrize(
    ("moment", "verb", "hours"),
    [
        pytest.param(Moment.NEXT_CHECKPOINT, Verb.HOLD, [7.0], id="held when its moment had come"),
        pytest.param(Moment.NEXT_CHECKPOINT, Verb.DRAIN, [], id="not held yet"),
        pytest.param(Moment.NOW, Verb.HOLD, [0.0], id="at once saves nothing"),
        pytest.param(Moment.JOB_END, Verb.DRAIN, [6.5], id="left to end"),
    ],
)
def test_saving_counts_once_its_moment_has_come(
    autopilot: SmallAutopilot, moment: Moment, verb: Verb, hours: list[float]
) -> None:
    planned(autopilot, timing(autopilot, moment, *AT_CHECKPOINT, (Moment.JOB_END, 1.0)))
    target = {"attempt": ATTEMPT} if verb is Verb.HOLD else {"node": NODE}
    done(autopilot, verb, plan="PLAN-1", minutes_ago=0, **target)

    recent = recent_remediation(autopilot.cluster.ledger, now=autopilot.clock.now(), back=timedelta(days=1))

    assert [each.saved_gpu_hours for each in recent.savings] == hours
    assert [made.plan for _, made in recent.plans] == ["PLAN-1"]


def test_job_whose_cost_at_once_was_not_computed_is_in_no_sum(autopilot: SmallAutopilot) -> None:
    planned(autopilot, timing(autopilot, Moment.NEXT_CHECKPOINT, (Moment.NEXT_CHECKPOINT, 0.5)))
    done(autopilot, Verb.HOLD, plan="PLAN-1", minutes_ago=0, attempt=ATTEMPT)

    recent = recent_remediation(autopilot.cluster.ledger, now=autopilot.clock.now(), back=timedelta(days=1))

    assert (recent.savings, recent.uncounted_job_count) == ((), 1)


@pytest.mark.parametrize(("account", "team"), [("research", "research"), ("", NO_TEAM)])
def test_savings_are_summed_by_day_and_team(autopilot: SmallAutopilot, account: str, team: str) -> None:
    planned(autopilot, timing(autopilot, Moment.NEXT_CHECKPOINT, *AT_CHECKPOINT), account=account)
    done(autopilot, Verb.HOLD, plan="PLAN-1", minutes_ago=0, attempt=ATTEMPT)

    recent = recent_remediation(autopilot.cluster.ledger, now=autopilot.clock.now(), back=timedelta(days=1))

    assert sum_by_day_and_team(recent.savings) == {f"{autopilot.clock.now():%Y-%m-%d}": {team: 7.0}}


def test_policy_of_these_tests_has_a_probation() -> None:
    assert POLICY.durations.probation == timedelta(0) != Durations().probation
