"""The planner is wrong: one hostile action per guardrail, handed to `perform` as if it stood in a plan.

Each case arranges a world in which exactly one rule stands between the action and the cluster, or names the others
that stand there too. Which one it breaks is found by the judge, not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.domain.action import Action, Verb
from ops_pipelines.domain.guardrails import drain_reason
from ops_pipelines.domain.identity import IncidentId, JobAttempt, JobId
from ops_pipelines.domain.policy import DrainBudget, Mode
from ops_pipelines.flow.lease import TTL, Lease
from ops_pipelines.flow.perform import perform
from ops_pipelines.simulator.adapters import SimulatedScheduler
from ops_pipelines.simulator.hardware import slot_address
from ops_pipelines.simulator.journal import EntryKind, FaultKind
from tests.safety.border import PROBLEMS
from tests.safety.lies import SchedulerLie, TelemetryLie
from tests.safety.moves import Move, MoveKind, make
from tests.safety.stage import Leases, Setting, Stage, name_of

INCIDENT = IncidentId("INC-0001")
WIDE = DrainBudget(max_out_count=9, max_out_per_rack_count=9, min_in_service_ratio=0.0, max_new_per_hour_count=9)
WEDGE, NO_JOBS = tuple(FaultKind).index(FaultKind.NODE_UNREACHABLE), tuple(SchedulerLie).index(SchedulerLie.NO_JOBS)
"""Numbers of a fault and of a lie, as moves count them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostilePlan:
    """One action that must not be sent, and the world in which it is tried."""

    arrange: Callable[[Stage], Action]
    setting: Setting = Setting(budget=WIDE)
    also: tuple[str, ...] = ()
    """Other checks that refuse the same: with any one of them in place the action is not sent."""


def attempt_to_send(action: Action, stage: Stage, *, times: int = 3) -> None:
    """Let the program try an action, over and over, as it does with a step that waits."""
    process = stage.process("first")
    for number in range(times):
        stage.true_clock.wait(min(number, 1))
        perform(action, process.cluster, plan=None, lease=process.lease)


def on_node(verb: Verb, index: int, *, gpu: int | None = None) -> Action:
    address = None if gpu is None else slot_address(gpu)
    return Action(verb=verb, incident=INCIDENT, node=name_of(index), gpu=address, text=drain_reason(INCIDENT, "a test"))


def on_job(verb: Verb, stage: Stage, position: int = 0, *, earlier: timedelta = timedelta(0)) -> Action:
    job = SimulatedScheduler(stage.twin).read_jobs()[position]
    assert job.attempt is not None
    attempt = JobAttempt(job=job.job, started_at=job.attempt.started_at - earlier)
    return Action(verb=verb, incident=INCIDENT, attempt=attempt)


def _plain_drain(stage: Stage) -> Action:
    return on_node(Verb.DRAIN, 3)


def _pause(stage: Stage) -> Action:
    make(Move(kind=MoveKind.PAUSE), stage)
    return on_node(Verb.DRAIN, 3)


def _unknown_job(stage: Stage) -> Action:
    attempt = JobAttempt(job=JobId("4711"), started_at=stage.true_clock.now())
    return Action(verb=Verb.HOLD, incident=INCIDENT, attempt=attempt)


def _blind(stage: Stage) -> Action:
    stage.mischief.telemetry = TelemetryLie.SILENT
    return on_job(Verb.HOLD, stage)


def _busy(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 0), stage)
    return on_node(Verb.RESET_GPU, 0, gpu=1)


def _hidden(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 0), stage)
    make(Move(kind=MoveKind.BEND_SCHEDULER, number=NO_JOBS), stage)
    return on_node(Verb.REBOOT, 0)


def _silence(stage: Stage, index: int) -> None:
    make(Move(kind=MoveKind.BREAK, node=index, number=WEDGE), stage)
    stage.true_clock.wait(5.0)


def _unheld(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 0), stage)
    _silence(stage, 0)
    return on_node(Verb.POWER_OFF, 0)


def _awake(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    return on_node(Verb.POWER_OFF, 3)


def _still_on(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    _silence(stage, 3)
    stage.mischief.failing["power_off"] = PROBLEMS[0]
    attempt_to_send(on_node(Verb.POWER_OFF, 3), stage)
    return on_node(Verb.DECLARE_DOWN, 3)


def _undrained(stage: Stage) -> Action:
    return on_node(Verb.REBOOT, 3)


def _somebody_drained(stage: Stage) -> Action:
    make(Move(kind=MoveKind.FOREIGN_DRAIN, node=3), stage)
    return on_node(Verb.DRAIN, 3)


def _imitated(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    make(Move(kind=MoveKind.IMITATE, node=3), stage)
    return on_node(Verb.RESUME, 3)


def _session(stage: Stage) -> Action:
    return on_job(Verb.HOLD, stage, 1)


def _earlier_attempt(stage: Stage) -> Action:
    return on_job(Verb.HOLD, stage, earlier=timedelta(seconds=5))


def _unfenced(stage: Stage) -> Action:
    attempt_to_send(on_job(Verb.HOLD, stage), stage, times=1)
    return on_job(Verb.RELEASE, stage)


def _given_up(stage: Stage) -> Action:
    """A node falls silent with its power on and somebody declares it down: the job then reads pending."""
    attempt_to_send(on_job(Verb.HOLD, stage), stage, times=1)
    release = on_job(Verb.RELEASE, stage)
    _silence(stage, 1)
    stage.twin.command(EntryKind.DECLARE_DOWN, nodes=(name_of(1),), reason="does not answer")
    attempt_to_send(Action(verb=Verb.FENCE, incident=INCIDENT, attempt=release.attempt), stage)
    return release


def _one_out_already(stage: Stage) -> Action:
    make(Move(kind=MoveKind.FOREIGN_DRAIN, node=2), stage)
    return on_node(Verb.DRAIN, 3)


def _one_drained_already(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 2), stage)
    return on_node(Verb.DRAIN, 3)


def _lease_is_gone(stage: Stage) -> Action:
    now = stage.own_clock.now()
    token = stage.ledger.take_lease(holder="first", ttl=TTL, now=now)
    stage.process("first").lease = Lease(holder="first", given=token)
    stage.orders.tokens["first"] = token
    stage.true_clock.wait(TTL.total_seconds())
    stage.ledger.take_lease(holder="second", ttl=TTL, now=stage.own_clock.now())
    return on_node(Verb.DRAIN, 3)


def _limits(**limits: float) -> Setting:
    values = {
        "max_out_count": 9,
        "max_out_per_rack_count": 9,
        "min_in_service_ratio": 0.0,
        "max_new_per_hour_count": 9,
        **limits,
    }
    return Setting(budget=DrainBudget(**values))  # type: ignore[arg-type]  # counts are whole


HOSTILE_PLANS: Mapping[str, HostilePlan] = {
    "mode": HostilePlan(arrange=_plain_drain, setting=Setting(budget=WIDE, mode=Mode.OBSERVE)),
    "pause": HostilePlan(arrange=_pause, also=("ledger_pause",)),
    "approval": HostilePlan(arrange=_plain_drain, setting=Setting(budget=WIDE, mode=Mode.APPROVE)),
    "known_node": HostilePlan(arrange=_plain_drain, setting=Setting(budget=WIDE, undeclared=3)),
    "untouchable": HostilePlan(arrange=_plain_drain, setting=Setting(budget=WIDE, untouchable=3)),
    "known_job": HostilePlan(arrange=_unknown_job, also=("is_moot",)),
    "fresh_telemetry": HostilePlan(arrange=_blind),
    "idle_node": HostilePlan(arrange=_busy),
    "hidden_work": HostilePlan(arrange=_hidden),
    "held_first": HostilePlan(arrange=_unheld),
    "answers_again": HostilePlan(arrange=_awake, also=("is_moot",)),
    "off_first": HostilePlan(arrange=_still_on),
    "our_drain": HostilePlan(arrange=_undrained),
    "our_drain of an imitator": HostilePlan(arrange=_imitated),
    "foreign_drain": HostilePlan(arrange=_somebody_drained),
    "requeueable": HostilePlan(arrange=_session, setting=Setting(budget=WIDE, has_session=True)),
    "same_attempt": HostilePlan(arrange=_earlier_attempt, also=("is_moot",)),
    "fenced_first": HostilePlan(arrange=_unfenced),
    "silent_node": HostilePlan(arrange=_given_up),
    "max_out_count": HostilePlan(arrange=_one_out_already, setting=_limits(max_out_count=1)),
    "max_out_per_rack_count": HostilePlan(arrange=_one_out_already, setting=_limits(max_out_per_rack_count=1)),
    "min_in_service_ratio": HostilePlan(arrange=_one_out_already, setting=_limits(min_in_service_ratio=0.7)),
    "drain_rate": HostilePlan(arrange=_one_drained_already, setting=_limits(max_new_per_hour_count=1)),
    "lease": HostilePlan(arrange=_lease_is_gone, setting=Setting(budget=WIDE, leases=Leases.HANDED_OVER)),
}
"""By the rule that the action would break; words after it tell two cases of one rule apart."""
