"""The planner is wrong: one hostile action per guardrail, handed to `perform` as if it stood in a plan.

Each case arranges a world in which exactly one rule is between the action and the cluster, or names the others
that stand there too. Which one it breaks is found by the judge, not here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.identity import IncidentId, JobAttempt, JobId, digest_of
from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.core.plan import Order
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    RecoveryLimits,
)
from ops_pipelines.remediate.guardrails.facts import drain_reason
from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.remediate.perform import perform
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.hardware import slot_address
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.ports.proved_plans import order_of, plan_named
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

    arrange: Callable[[Stage], Action | Order]
    setting: Setting = Setting(budget=WIDE)
    also: tuple[str, ...] = ()
    """Other checks that refuse the same: with any one of them in place the action is not sent."""


def attempt_to_send(asked: Action | Order, stage: Stage, *, times: int = 3) -> None:
    """Let the program try an action, over and over, as it does with a step that waits.

    It is in a plan that was proved, as if prover and planner were wrong alike; an order is taken as it is.
    """
    process = stage.process("first")
    for number in range(times):
        stage.true_clock.wait(min(number, 1))
        order = asked if isinstance(asked, Order) else order_of(asked, process.cluster.ledger, at=process.clock.now())
        perform(order, process.cluster, lease=process.lease)


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


def _unproved(stage: Stage) -> Order:
    """Order an act in the name of a plan that was recorded, and that nobody has proved."""
    action = on_node(Verb.DRAIN, 3)
    plan = plan_named("PLAN-7", INCIDENT, action)
    stage.process("first").cluster.ledger.record_decision(
        inputs=digest_of("a snapshot"),
        decided_through=0,
        expected_head=None,
        incidents=(),
        plans=(plan,),
        now=stage.true_clock.now(),
    )
    return Order(action=action, behind=plan.plan)


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


def _under(stage: Stage, **sections: object) -> None:
    stage.use_policy(replace(stage.orders.policy, **sections))  # type: ignore[arg-type]  # sections of a policy


def _frozen(stage: Stage) -> Action:
    now = stage.own_clock.now()
    _under(stage, freeze_windows=(FreezeWindow(name="visit", begins_at=now, ends_at=now + timedelta(hours=1)),))
    return on_node(Verb.DRAIN, 3)


def _capped(**caps: float) -> Callable[[Stage], Action]:
    def arrange(stage: Stage) -> Action:
        _under(stage, blast_caps=BlastCaps(**caps))  # type: ignore[arg-type]  # counts are whole
        return _one_out_already(stage)

    return arrange


def _in_one_domain(stage: Stage) -> Action:
    places = {name: replace(place, nvlink_domain="d1") for name, place in stage.orders.topology.places.items()}
    topology = replace(stage.orders.topology, places=places)
    stage.orders = replace(stage.orders, topology=topology)
    stage.judge.orders = stage.orders
    process = stage.process("first")
    process.cluster = replace(process.cluster, rules=replace(process.cluster.rules, topology=topology))
    return _capped(max_out_per_nvlink_domain_count=1)(stage)


def _rebooted(ladder: LadderLimits) -> Callable[[Stage], Action]:
    def arrange(stage: Stage) -> Action:
        _under(stage, ladder=ladder)
        attempt_to_send(on_node(Verb.DRAIN, 3), stage)
        attempt_to_send(on_node(Verb.REBOOT, 3), stage, times=1)
        return replace(on_node(Verb.REBOOT, 3), try_number=2)

    return arrange


def _never_rebooted(stage: Stage) -> Action:
    _under(stage, ladder=LadderLimits(max_reimages_count=9))
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    return on_node(Verb.REIMAGE, 3)


def _loaded(stage: Stage) -> Action:
    attempt_to_send(on_node(Verb.DRAIN, 0), stage)
    return Action(verb=Verb.CHECK, incident=INCIDENT, node=name_of(0), suite="general")


def _looping(stage: Stage) -> Action:
    _under(stage, recovery=RecoveryLimits(max_requeues_count=0))
    return on_job(Verb.HOLD, stage)


def _submitted(spec: JobSpec) -> Callable[[Stage], Action]:
    def arrange(stage: Stage) -> Action:
        name = stage.twin.submit(spec)
        stage.true_clock.wait(12)
        position = [each.job for each in SimulatedScheduler(stage.twin).read_jobs()].index(name)
        return on_job(Verb.HOLD, stage, position)

    return arrange


def _costly(stage: Stage) -> Action:
    _under(stage, blast_caps=BlastCaps(max_gpu_hours_per_hour=1e-6))
    stage.true_clock.wait(25)
    return on_job(Verb.HOLD, stage)


def _taken_spare(stage: Stage) -> Action:
    action = on_job(Verb.HOLD, stage)
    return replace(action, verb=Verb.RESERVE, spares=(name_of(2), name_of(0)))


def _one_on_probation(stage: Stage) -> Action:
    _under(stage, blast_caps=BlastCaps(max_on_probation_count=1))
    SimulatedScheduler(stage.twin).put_last(name_of(2))
    attempt_to_send(on_node(Verb.DRAIN, 3), stage)
    return on_node(Verb.RESUME, 3)


def _storm(stage: Stage) -> Action:
    whole = BlastCaps(max_out_per_partition_ratio=1.0)
    _under(stage, mass_event=MassEvent(min_node_count=2), blast_caps=whole)
    for index in (1, 2):
        cause = IncidentId(f"INC-001{index}")
        drain = replace(on_node(Verb.DRAIN, index), incident=cause, text=drain_reason(cause, "a test"))
        attempt_to_send(drain, stage)
    return on_node(Verb.DRAIN, 3)


UNSAVED = JobSpec(
    name="unsaved",
    user="science-notebooks",
    account="science",
    workload=Workload.BATCH,
    gpus_per_node=1,
    checkpointing=Checkpointing.NO,
)
ONLY_REPLICA = JobSpec(
    name="chat-api",
    user="platform-serving",
    account="platform",
    workload=Workload.INFERENCE,
    gpus_per_node=1,
    service="chat",
    min_serving_count=1,
)
OFTEN = LadderLimits(max_reboots_count=9)
ONCE = LadderLimits(max_reboots_count=1, cool_down=timedelta(0))


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
    "executed_without_proof": HostilePlan(arrange=_unproved),
    "pause": HostilePlan(arrange=_pause, also=("ledger_pause",)),
    "approval": HostilePlan(arrange=_plain_drain, setting=Setting(budget=WIDE, mode=Mode.APPROVE)),
    "approval of one class": HostilePlan(
        arrange=_plain_drain, setting=Setting(budget=WIDE, consents={ActionClass.ISOLATE: Consent.APPROVE})
    ),
    "consent": HostilePlan(
        arrange=_plain_drain, setting=Setting(budget=WIDE, consents={ActionClass.ISOLATE: Consent.FORBID})
    ),
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
    "partition_cap": HostilePlan(arrange=_capped(max_out_per_partition_ratio=0.25)),
    "leaf_cap": HostilePlan(arrange=_capped(max_out_per_leaf_count=1)),
    "nvlink_cap": HostilePlan(arrange=_in_one_domain),
    "freeze_window": HostilePlan(arrange=_frozen),
    "idle_node of a check": HostilePlan(arrange=_loaded),
    "rung_order": HostilePlan(arrange=_never_rebooted),
    "rung_exhausted": HostilePlan(arrange=_rebooted(ONCE)),
    "cool_down": HostilePlan(arrange=_rebooted(OFTEN)),
    "requeue_limit": HostilePlan(arrange=_looping),
    "requeueable of what keeps no checkpoint": HostilePlan(arrange=_submitted(UNSAVED)),
    "min_serving": HostilePlan(arrange=_submitted(ONLY_REPLICA)),
    "hourly_loss": HostilePlan(arrange=_costly),
    "free_spares": HostilePlan(arrange=_taken_spare),
    "probation_cap": HostilePlan(arrange=_one_on_probation),
    "storm_brake": HostilePlan(arrange=_storm),
    "lease": HostilePlan(arrange=_lease_is_gone, setting=Setting(budget=WIDE, leases=Leases.HANDED_OVER)),
}
"""By the rule that the action would break; words after it tell two cases of one rule apart."""
