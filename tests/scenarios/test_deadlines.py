"""Nothing stays without a deadline and an owner: what never ends is handed to a human, once, with the reason.

One row a situation: what never happens, and the limit that ends the wait. Anyone who waits for somebody else (approval,
budget, metrics) is not given up: a person is notified once, and it continues when it may.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import Message
from ops_pipelines.core.observation import JobState, PowerState
from ops_pipelines.core.policy import Mode, Policy
from ops_pipelines.core.sources import Sample, SourceRefused, SourceUnavailable
from ops_pipelines.observe.intake import take_in_conditions
from ops_pipelines.people import orders
from ops_pipelines.remediate.oversight import page_if_blind
from ops_pipelines_lab.simulator.commands import ImpossibleFaultError
from ops_pipelines_lab.simulator.journal import EntryKind, FaultKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.small_autopilot import POLICY, MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import SESSION, TRAINING

SMALL_TRAINING = replace(TRAINING, gpus_per_node=2)
ENDLESS_SESSION = replace(SESSION, work_seconds=None, gpus_per_node=2)
LIMITS = replace(
    POLICY.durations,
    run_patience=timedelta(seconds=2),
    job_end_limit=timedelta(seconds=100),
    waiting_limit=timedelta(seconds=60),
)
PATIENT = replace(POLICY, durations=LIMITS)


# -- a world in which something never happens -------------------------------------------------------------------------


class Port:
    """A port that does as the one behind it, but for what it is given; `None` accepts and does nothing."""

    def __init__(self, port: object, **instead: Callable[..., object] | None) -> None:
        self._port = port
        self._instead = instead

    def __getattr__(self, name: str) -> Any:
        if name not in self._instead:
            return getattr(self._port, name)
        return self._instead[name] or (lambda *_, **__: None)


def unanswered(*_: object, **__: object) -> object:
    raise SourceUnavailable("no answer within 5 s")


def refused(*_: object, **__: object) -> object:
    raise SourceRefused("access denied")


def scheduler(**instead: Callable[..., object] | None) -> Callable[[SmallAutopilot], None]:
    def equip(autopilot: SmallAutopilot) -> None:
        port = cast("Any", Port(autopilot.cluster.scheduler, **instead))
        autopilot.cluster = replace(autopilot.cluster, scheduler=port)

    return equip


def fleet(**instead: Callable[..., object] | None) -> Callable[[SmallAutopilot], None]:
    def equip(autopilot: SmallAutopilot) -> None:
        autopilot.cluster = replace(autopilot.cluster, fleet=cast("Any", Port(autopilot.cluster.fleet, **instead)))

    return equip


def power_switch_lies(node: NodeName) -> PowerState:
    return PowerState.ON


def no_metrics_after(kind: EntryKind) -> Callable[[SmallAutopilot], None]:
    """A metrics source that goes dark with the first command of this kind."""

    def equip(autopilot: SmallAutopilot) -> None:
        telemetry = autopilot.cluster.telemetry

        def read_samples(at: datetime) -> tuple[Sample, ...]:
            if autopilot.received(kind):
                raise SourceUnavailable("prometheus did not answer within 5 s")
            return telemetry.read_samples(at)

        port = cast("Any", Port(telemetry, read_samples=read_samples))
        autopilot.cluster = replace(autopilot.cluster, telemetry=port)

    return equip


def steps_never_end(autopilot: SmallAutopilot) -> None:
    """A scheduler that shows a job as completing for ever once it is held."""
    port = autopilot.cluster.scheduler

    def read_jobs() -> object:
        held = {JobId(str(entry.job)) for entry in autopilot.received(EntryKind.HOLD)}
        return tuple(replace(job, state=JobState.COMPLETING) if job.job in held else job for job in port.read_jobs())

    scheduler(read_jobs=read_jobs)(autopilot)


def reboot_breaks_again(autopilot: SmallAutopilot) -> None:
    """A node that logs another fault whenever it is looked at after its reboot: it is never quiet."""
    port = autopilot.cluster.fleet

    def inspect(node: NodeName) -> object:
        if autopilot.received(EntryKind.REBOOT):
            with suppress(ImpossibleFaultError):
                autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, node, gpu=0)
        return port.inspect(node)

    fleet(inspect=inspect)(autopilot)


# -- what never ends is escalated -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hopeless:
    """A situation that never ends by itself."""

    equip: Callable[[SmallAutopilot], None]
    says: Sequence[str]
    """What the page must say."""
    limit_seconds: float
    """When it is handed over at the latest, of simulated time since the fault."""
    fault: FaultKind = FaultKind.GPU_FELL_OFF_BUS
    jobs: tuple[JobSpec, ...] = ()
    never: tuple[EntryKind, ...] = (EntryKind.RESUME,)
    is_drained: bool = True
    policy: Policy = field(default=PATIENT)
    state: IncidentState = IncidentState.ESCALATED
    """Or IN_REPAIR, where every rung was tried."""


def nothing(autopilot: SmallAutopilot) -> None:
    """The ports stay as they are."""


HOPELESS = {
    "a node that never drains": Hopeless(
        equip=scheduler(drain=None), says=["drain of gpu001", "the drain flag is not set"], limit_seconds=60,
        is_drained=False, never=(EntryKind.REBOOT,),
    ),
    "a drain that is never answered": Hopeless(
        equip=scheduler(drain=unanswered), says=["drain of gpu001"], limit_seconds=90,
        is_drained=False, never=(EntryKind.REBOOT,),
    ),
    "a job that must not be requeued and never ends": Hopeless(
        equip=nothing, jobs=(ENDLESS_SESSION,), says=["reboot of gpu001 waited", "still runs job(s) 1001"],
        limit_seconds=160, never=(EntryKind.REBOOT, EntryKind.RESUME),
    ),
    "a hold that is refused": Hopeless(
        equip=scheduler(hold=refused), jobs=(SMALL_TRAINING,), says=["hold of job 1001", "access denied"],
        limit_seconds=60, never=(EntryKind.REBOOT, EntryKind.RELEASE, EntryKind.RESUME),
    ),
    "a hold that never shows": Hopeless(
        equip=scheduler(hold=None), jobs=(SMALL_TRAINING,), says=["hold of job 1001", "not held"],
        limit_seconds=60, never=(EntryKind.REBOOT, EntryKind.RELEASE, EntryKind.RESUME),
    ),
    "processes that never end": Hopeless(
        equip=steps_never_end, jobs=(SMALL_TRAINING,), says=["fence of job 1001", "still completing", "Still held"],
        limit_seconds=100, never=(EntryKind.RELEASE, EntryKind.REBOOT, EntryKind.RESUME),
    ),
    "a release that never shows": Hopeless(
        equip=scheduler(release=None), jobs=(SMALL_TRAINING,), says=["release of job 1001", "still held"],
        limit_seconds=90, never=(EntryKind.REBOOT, EntryKind.RESUME),
    ),
    "reboots and power cycles that never return": Hopeless(
        equip=fleet(reboot=None, power_on=None), state=IncidentState.IN_REPAIR, limit_seconds=220,
        says=["reboot of gpu001", "no witness within 60 s", "power_on of gpu001", "needs hands"],
    ),
    "reboots and power switches that are never answered": Hopeless(
        equip=fleet(reboot=unanswered, power_off=unanswered), state=IncidentState.IN_REPAIR, limit_seconds=220,
        says=["reboot of gpu001", "no witness within 60 s", "power_off of gpu001"],
    ),
    "a reset that never ends, and nothing stronger does": Hopeless(
        equip=fleet(reset_gpu=None, reboot=refused, power_off=refused), fault=FaultKind.UNCORRECTABLE_ECC,
        state=IncidentState.IN_REPAIR, says=["reset_gpu of gpu001", "no witness within 30 s", "access denied"],
        limit_seconds=100,
    ),
    "a power switch that does nothing": Hopeless(
        equip=fleet(power_off=None), fault=FaultKind.NODE_UNREACHABLE,
        state=IncidentState.IN_REPAIR, says=["power_off of gpu001", "reads on"],
        limit_seconds=100, never=(EntryKind.DECLARE_DOWN, EntryKind.POWER_ON, EntryKind.RESUME),
    ),
    "a power switch that lies": Hopeless(
        equip=fleet(power_state=power_switch_lies), fault=FaultKind.NODE_UNREACHABLE,
        state=IncidentState.IN_REPAIR, says=["power_off of gpu001"],
        limit_seconds=100, never=(EntryKind.DECLARE_DOWN, EntryKind.POWER_ON, EntryKind.RESUME),
    ),
    "a power switch that never answers": Hopeless(
        equip=fleet(power_off=unanswered, power_state=unanswered), fault=FaultKind.NODE_UNREACHABLE,
        state=IncidentState.IN_REPAIR,
        says=["power_off of gpu001"], limit_seconds=120, never=(EntryKind.DECLARE_DOWN, EntryKind.RESUME),
    ),
    "a power switch that gives no power back": Hopeless(
        equip=fleet(power_on=None), fault=FaultKind.NODE_UNREACHABLE,
        state=IncidentState.IN_REPAIR, says=["power_on of gpu001"], limit_seconds=180,
    ),
    "a verification for which the metrics never come": Hopeless(
        equip=no_metrics_after(EntryKind.REBOOT), says=["could not be proven well", "no metrics since the repair"],
        limit_seconds=160,
    ),
    "a verification that is never quiet": Hopeless(
        equip=reboot_breaks_again, says=["gpu001 is not well"], limit_seconds=140, state=IncidentState.IN_REPAIR,
    ),
    "a return that never shows": Hopeless(
        equip=scheduler(resume=None), says=["gpu001 is well but could not be returned", "still drained"],
        limit_seconds=120,
    ),
}  # fmt: skip


def begin(directory: Path, row: Hopeless) -> SmallAutopilot:
    autopilot = SmallAutopilot(directory, *row.jobs, node_count=3, gpus_per_node=2, policy=row.policy)
    autopilot.let_pass(15)
    row.equip(autopilot)
    gpu = None if row.fault is FaultKind.NODE_UNREACHABLE else 1
    node = sorted(autopilot.job(row.jobs[0].name).nodes)[0] if row.jobs else "gpu001"
    autopilot.twin.inject(row.fault, node, gpu=gpu)
    return autopilot


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in HOPELESS.items()])
def test_what_never_ends_is_handed_to_a_human_once_with_the_reason(tmp_path: Path, row: Hopeless) -> None:
    autopilot = begin(tmp_path, row)

    autopilot.run_until(row.state, seconds=row.limit_seconds)
    commands_before = autopilot.commands()
    autopilot.run_for(30)
    autopilot.let_pass(200)
    autopilot.run_for(6)

    (page,) = autopilot.pages()
    assert [words for words in row.says if words not in page.body.replace("gpu003", "gpu001")] == []
    assert autopilot.incident().state is row.state
    assert any(node.is_drained for node in autopilot.cluster.scheduler.read_nodes()) is row.is_drained
    assert autopilot.received(*row.never) == ()
    assert autopilot.commands() == commands_before


def test_new_evidence_again_and_again_does_not_put_a_deadline_off(tmp_path: Path) -> None:
    autopilot = begin(tmp_path, HOPELESS["a job that must not be requeued and never ends"])

    for number in range(8):
        autopilot.run_for(3)
        with suppress(ImpossibleFaultError):
            autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu001", gpu=0)
        autopilot.let_pass(15 + number % 2)
    autopilot.run_for(3)

    assert autopilot.incident().state is IncidentState.ESCALATED
    assert len(autopilot.pages()) == 1


class SilentOnce:
    """A command that is not answered the first time, and does nothing then."""

    def __init__(self, command: Callable[..., object]) -> None:
        self._command = command
        self._is_first = True

    def __call__(self, *args: object, **options: object) -> object:
        if self._is_first:
            self._is_first = False
            raise SourceUnavailable("no answer within 5 s")
        return self._command(*args, **options)


@pytest.mark.parametrize("command", ["drain", "hold", "exclude", "release", "resume"])
def test_command_that_is_not_answered_once_is_sent_again_and_all_heals(tmp_path: Path, command: str) -> None:
    autopilot = SmallAutopilot(tmp_path, SMALL_TRAINING, node_count=3, gpus_per_node=2, policy=PATIENT)
    autopilot.let_pass(15)
    scheduler(**{command: SilentOnce(getattr(autopilot.cluster.scheduler, command))})(autopilot)
    autopilot.twin.inject(FaultKind.GPU_FELL_OFF_BUS, "gpu001", gpu=1)

    autopilot.run_until(IncidentState.RESOLVED)

    assert autopilot.pages() == []


# -- what waits for somebody is notified, once
# ----------------------------------------------------------------------------


def no_budget(autopilot: SmallAutopilot) -> None:
    policy = autopilot.cluster.rules.policy
    autopilot.use_policy(replace(policy, drain_budget=replace(policy.drain_budget, max_out_count=0)))


def nobody_approves(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(autopilot.cluster.rules.policy, mode=Mode.APPROVE))


def only_observe(autopilot: SmallAutopilot) -> None:
    autopilot.use_policy(replace(autopilot.cluster.rules.policy, mode=Mode.OBSERVE))


def paused(autopilot: SmallAutopilot) -> None:
    orders.pause(autopilot.cluster, actor="day-shift", reason="moving racks")


WAITS = {
    "budget that never frees": (no_budget, "drain_budget: 1 nodes would be out of service"),
    "an approval that never comes": (nobody_approves, "approval: policy.yaml says mode: approve"),
    "a mode that never acts": (only_observe, "mode: policy.yaml says mode: observe"),
    "a pause that never ends": (paused, "pause: "),
    "metrics that are gone in the middle of a plan": (no_metrics_after(EntryKind.DRAIN), "fresh_telemetry"),
}


@pytest.mark.parametrize(("equip", "why"), WAITS.values(), ids=WAITS)
def test_what_waits_for_somebody_is_told_once_and_goes_on_waiting(
    tmp_path: Path, equip: Callable[[SmallAutopilot], None], why: str
) -> None:
    autopilot = begin(tmp_path, Hopeless(equip=equip, says=(), limit_seconds=0))

    autopilot.run_for(57)
    before = autopilot.pages()
    autopilot.run_for(35)

    assert before == []
    (page,) = autopilot.pages()
    assert "has waited for 1 min" in page.body
    assert f"What it waits for: {why}" in page.body
    assert autopilot.incident().state in (IncidentState.OPEN, IncidentState.ACTING)


def test_what_was_told_goes_on_by_itself_when_it_may(tmp_path: Path) -> None:
    autopilot = begin(tmp_path, Hopeless(equip=no_budget, says=(), limit_seconds=0))
    autopilot.run_for(70)
    autopilot.use_policy(PATIENT)

    autopilot.run_until(IncidentState.RESOLVED)

    assert len(autopilot.pages()) == 1


def test_wait_for_jobs_to_end_has_its_own_limit_and_no_reminder(tmp_path: Path) -> None:
    durations = replace(LIMITS, job_end_limit=timedelta(hours=24))
    row = replace(
        HOPELESS["a job that must not be requeued and never ends"], policy=replace(POLICY, durations=durations)
    )
    autopilot = begin(tmp_path, row)

    autopilot.run_for(6)
    autopilot.let_pass(600)
    autopilot.run_for(6)

    assert autopilot.pages() == []
    assert autopilot.incident().state is IncidentState.ACTING


class NobodyTakes(MessagesInMemory):
    """A notifier of which no channel works until `is_back`."""

    is_back = False

    def send(self, message: Message) -> str:
        if not self.is_back:
            raise SourceUnavailable("no channel took the message")
        return super().send(message)


def test_reminder_and_escalation_that_no_channel_takes_go_out_when_one_does(tmp_path: Path) -> None:
    for equip in (no_budget, fleet(reboot=refused, power_off=refused)):
        autopilot = begin(Path(tempfile.mkdtemp(dir=tmp_path)), Hopeless(equip=equip, says=(), limit_seconds=0))
        notifier = NobodyTakes()
        autopilot.messages = notifier
        autopilot.cluster = replace(autopilot.cluster, notifier=notifier)

        autopilot.run_for(75)
        before = autopilot.incident().state
        notifier.is_back = True
        autopilot.run_for(9)

        assert before in (IncidentState.OPEN, IncidentState.ACTING)
        assert len(autopilot.pages()) == 1


def test_owner_who_cannot_be_told_in_time_leaves_no_incident_open(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, SMALL_TRAINING, node_count=3, gpus_per_node=2, policy=PATIENT)
    only_observe(autopilot)
    autopilot.let_pass(15)
    autopilot.twin.inject(FaultKind.APPLICATION_XID31, "gpu001", gpu=0)

    autopilot.run_for(55)
    before = autopilot.incident().state
    autopilot.run_for(15)

    assert before is IncidentState.OPEN
    assert autopilot.incident().state is IncidentState.RESOLVED
    assert autopilot.messages.messages == []


# -- a source that is silent ------------------------------------------------------------------------------------------


def look(autopilot: SmallAutopilot) -> None:
    """What the sensor does every few seconds."""
    page_if_blind(autopilot.cluster, take_in_conditions(autopilot.cluster), lease=autopilot.lease)


@pytest.mark.parametrize(
    ("equip", "source"),
    [
        pytest.param(
            scheduler(read_nodes=unanswered, read_jobs=unanswered),
            "scheduler",
            id="scheduler",
        ),
        pytest.param(no_metrics_after(EntryKind.FAULT), "metrics source", id="metrics"),
    ],
)
def test_source_that_is_silent_beyond_the_limit_is_paged_once_and_closed_when_it_answers(
    tmp_path: Path, equip: Callable[[SmallAutopilot], None], source: str
) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=2, gpus_per_node=2, policy=PATIENT)
    autopilot.twin.inject(FaultKind.UNCORRECTABLE_ECC, "gpu002", gpu=0)
    answers = autopilot.cluster
    equip(autopilot)

    look(autopilot)
    autopilot.let_pass(60)
    look(autopilot)
    before = autopilot.pages()
    for _ in range(3):
        autopilot.let_pass(5)
        look(autopilot)
    during = autopilot.incident()
    autopilot.cluster = answers
    look(autopilot)

    assert before == []
    (page,) = autopilot.pages()
    assert f"the {source} has not answered since 2026-11-21 07:00:00 UTC" in page.body
    assert during.state is IncidentState.ESCALATED
    assert autopilot.incident().state is IncidentState.RESOLVED


# -- whatever happens -------------------------------------------------------------------------------------------------

Fault = tuple[FaultKind, int, int, float]
"""Kind, node, GPU, and the seconds until the next one."""
FAULTS = st.lists(
    st.tuples(st.sampled_from(FaultKind), st.integers(1, 4), st.integers(0, 1), st.sampled_from([0.0, 2.0, 7.0])),
    min_size=1,
    max_size=4,
)
HURDLES = st.sampled_from(
    [nothing, fleet(reboot=None), fleet(power_on=None), scheduler(release=None), no_metrics_after(EntryKind.DRAIN)]
)
LONGEST = LIMITS.job_end_limit + LIMITS.reboot_limit + LIMITS.soak + LIMITS.fence_limit
SLACK_SECONDS = 60.0


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(FAULTS, HURDLES)
@example([(FaultKind.GPU_FELL_OFF_BUS, 1, 0, 0.0)], no_budget)
def test_no_incident_stays_ours_beyond_the_longest_deadline(
    faults: list[Fault], equip: Callable[[SmallAutopilot], None]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        autopilot = SmallAutopilot(
            Path(directory), SMALL_TRAINING, ENDLESS_SESSION, node_count=4, gpus_per_node=2, policy=PATIENT
        )
        autopilot.let_pass(12)
        equip(autopilot)
        for kind, node, gpu, pause_seconds in faults:
            needs_gpu = kind not in (FaultKind.NODE_UNREACHABLE, FaultKind.NETWORK_PARTITION)
            seconds = 12.0 if kind is FaultKind.NETWORK_PARTITION else None
            with suppress(ImpossibleFaultError):
                autopilot.twin.inject(kind, f"gpu00{node}", gpu=gpu if needs_gpu else None, seconds=seconds)
            autopilot.run_once()
            autopilot.let_pass(pause_seconds)

        for _ in range(16):
            autopilot.run_once()
            autopilot.let_pass((LONGEST.total_seconds() + SLACK_SECONDS) / 16)
        autopilot.run_once()

        told = {message.thread for message in autopilot.pages()}
        for incident in autopilot.incidents():
            is_ours = incident.is_open and incident.state is not IncidentState.ESCALATED
            # What waits for budget stays ours, and somebody knows.
            assert not is_ours or (incident.state is IncidentState.OPEN and incident.incident in told), incident
            if incident.state is IncidentState.ESCALATED and incident.response is not Response.MONITOR:
                assert incident.incident in told
