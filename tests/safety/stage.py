"""The stage: a small twin, one or two processes of the program on it, each behind its border, and the judge.

What happens on it is `moves`' business; whether what the program then does is safe, the judge's.
"""

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, cast

from ops_pipelines.clock import Clock
from ops_pipelines.core.action import DRAIN_MARK, ActionRecord, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import Entry as LedgerEntry
from ops_pipelines.core.entries import EntryKind as LedgerEntryKind
from ops_pipelines.core.entries import LedgerConflict
from ops_pipelines.core.identity import ActionKey, IncidentId, JobAttempt, JobId, NodeName, Place, PlanId, Topology
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.notes import Audience
from ops_pipelines.core.observation import (
    MAY_HAVE_PROCESSES,
    Checkpointing,
    JobState,
    Observation,
    Signal,
    Workload,
    has_moved_on,
)
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    Policy,
    RecoveryLimits,
    WeeklyWindow,
)
from ops_pipelines.core.rollout import IN_HAND, NodeStage
from ops_pipelines.core.sources import SourceError
from ops_pipelines.observe.intake import take_in_conditions, take_in_logs
from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.remediate.overlaps import see_to_overlaps
from ops_pipelines.remediate.reflex import react, see_to_marks
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.state_files import PauseFile
from ops_pipelines.rollouts.cycle import advance_rollouts
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.jobs import SplitBrain
from ops_pipelines_lab.simulator.scenario import SHORT_DURATIONS, JobSpec
from ops_pipelines_lab.simulator.versions import ReleaseFault
from tests.safety.border import Border, Command, Crash, Mischief, Told
from tests.safety.judge import Judge
from tests.safety.quick_database import QuickDatabase
from tests.safety.quick_ledger import Memory, QuickLedger, StoryLedger, empty_ledger
from tests.safety.scene import PERSON, Orders
from tests.scenarios.rollout_stage import LIMITS, MODEL, FilesInMemory, quick_judge_of
from tests.scenarios.small_autopilot import POLICY, SmallAutopilot
from tests.simulator.fake_clock import BEGINNING
from tests.simulator.small_cluster import SERVICE, SESSION, TRAINING

RARE_STEP_SECONDS = 2.0
"""A process looks at its witnesses no more often than this: a story has to be cheap."""
STARTS_AFTER_SECONDS = 12.0
RENEWED_EVERY_SECONDS = 10
_PAGES_AT_MOST = 8
"""Of one incident in one story: a plan that ends with a page, a reminder, a node handed over and repaired in vain."""
FREEZE = FreezeWindow(name="a visit", begins_at=BEGINNING, ends_at=BEGINNING + timedelta(days=1))


class Leases(Enum):
    """How processes come by the right to act."""

    SHARED = "shared"
    """None was given one: anyone who runs uses the lease that runs, as jobs launched by hand do."""
    HANDED_OVER = "handed_over"
    """Each takes it for itself, and has it until it runs out: as code servers and their runs do."""


class Training(Enum):
    """How the training job of a stage saves its work."""

    QUICK = "quick"
    """Every 10 s."""
    SLOW = "slow"
    """Every 90 s, declared, with a day before it: a fault that lets it continue is worth waiting for."""
    UNTOLD = "untold"
    """Every 40 s, and with a time limit: nobody knows when the next one comes."""
    NEVER = "never"


@dataclass(slots=True, kw_only=True)
class GivenLink:
    """One link that somebody was sent, as the person knows it."""

    token: str
    plan: PlanId
    until: datetime
    is_used: bool = False

    @property
    def why_dead(self) -> str:
        return "used before" if self.is_used else f"good until {self.until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a stage begins with."""

    node_count: int = 4
    job_count: int = 1
    has_session: bool = False
    """One that may not be requeued."""
    has_movable_session: bool = False
    mode: Mode = Mode.AUTO
    consents: Mapping[ActionClass, Consent] = field(default_factory=dict)
    budget: DrainBudget = DrainBudget(max_out_count=2, max_out_per_rack_count=2, min_in_service_ratio=0.3)
    caps: BlastCaps = BlastCaps()
    ladder: LadderLimits = LadderLimits()
    recovery: RecoveryLimits = RecoveryLimits()
    mass_event: MassEvent = POLICY.mass_event
    freezes: tuple[FreezeWindow, ...] = ()
    windows: tuple[WeeklyWindow, ...] | None = None
    """When rollouts may begin a node; None: always."""
    probation_seconds: float = 0.0
    training: Training = Training.QUICK
    replica_count: int = 0
    """Of a service of which `min_serving_count` must serve."""
    gpus_per_replica: int = 1
    min_serving_count: int = 1
    nodes_per_domain_count: int = 1
    untouchable: int | None = None
    """Index of the node that the operator wants left alone."""
    undeclared: int | None = None
    leases: Leases = Leases.SHARED
    release_fault: ReleaseFault | None = None
    """What is wrong with the release that somebody may roll out."""
    most_updated_count: int = 1
    """How many nodes rollouts may have out."""
    has_reflex: bool = False
    """Whether a tick of the sensor decides and drains before each pass, as it does where Dagster runs."""
    has_start_guard: bool = False
    """Whether the scheduler itself keeps restarts back until the nodes of the last attempt are clear."""
    slurmd_timeout_seconds: float = SHORT_DURATIONS.slurmd_timeout_seconds


class OwnClock:
    """The clock of one process: the true one, off by whatever somebody set it to."""

    def __init__(self, true_clock: Clock) -> None:
        self._true_clock = true_clock
        self.ahead = timedelta(0)

    def now(self) -> datetime:
        return self._true_clock.now() + self.ahead

    def wait(self, seconds: float) -> None:
        self._true_clock.wait(max(seconds, RARE_STEP_SECONDS))


class StoryAutopilot(SmallAutopilot):
    """One whose processes all have their ledger in the database of the story."""

    def __init__(self, directory: Path, database: QuickDatabase, *jobs: JobSpec, **options: Any) -> None:
        self._database = database
        super().__init__(directory, *jobs, **options)

    def _open_ledger(self) -> SqlLedger:
        return StoryLedger(self._database, pause_file=PauseFile(self.directory))


class Stage:
    """One story's world. `dress` may change a process before it runs, for a program with a guardrail less."""

    def __init__(
        self, directory: Path, setting: Setting, *, dress: Callable[[SmallAutopilot], None] = lambda _: None
    ) -> None:
        self.setting = setting
        self.failure_count = 0
        self.crash_count = 0
        self.suspension_count = 0
        """How often a process stood still after a before-entry: another may have reported the same meanwhile."""
        self.has_rollout = False
        """Whether somebody has ever started one: else no pass looks for any."""
        self.shown: dict[tuple[NodeName, Signal], Observation] = {}
        """What the detectors see: the twin has no switch, and no job of it hangs by a single rank."""
        self.given_links: list[GivenLink] = []
        self.link_faults: list[str] = []
        """Yeses that were taken with a link that was dead."""
        self.untold: list[str] = []
        self._running_since: dict[JobAttempt, datetime] = {}
        self._seen_at_work: set[JobAttempt] = set()
        """Attempts that anyone who looks has seen at work."""
        self._nodes_of: dict[JobAttempt, frozenset[NodeName]] = {}
        """On which nodes each attempt was seen at work."""
        self._seen_silent: set[NodeName] = set()
        self._first_look = True
        self._border_told: dict[str, Told] = {}
        self.mischief = Mischief()
        self._dress = dress
        jobs = _jobs_of(setting)
        policy = replace(
            POLICY,
            mode=setting.mode,
            consents=setting.consents,
            drain_budget=setting.budget,
            blast_caps=setting.caps,
            ladder=setting.ladder,
            recovery=setting.recovery,
            mass_event=setting.mass_event,
            freeze_windows=setting.freezes,
            maintenance_windows=setting.windows,
            rollouts=replace(LIMITS, max_out_count=setting.most_updated_count, soak=timedelta(seconds=2)),
            untouchable_nodes=frozenset() if setting.untouchable is None else frozenset({name_of(setting.untouchable)}),
            durations=replace(
                POLICY.durations,
                run_patience=timedelta(seconds=6),
                soak=timedelta(seconds=2),
                check_limit=timedelta(seconds=30),
                probation=timedelta(seconds=setting.probation_seconds),
            ),
        )
        self.database = QuickDatabase(empty_ledger())
        first = self._begin(
            directory,
            *jobs,
            node_count=setting.node_count,
            gpus_per_node=2,
            policy=policy,
            release_faults=() if setting.release_fault is None else (setting.release_fault,),
            durations=replace(SHORT_DURATIONS, slurmd_timeout_seconds=setting.slurmd_timeout_seconds),
            has_start_guard=setting.has_start_guard,
        )
        first.let_pass(STARTS_AFTER_SECONDS)
        self.twin, self.true_clock = first.twin, first.clock
        declared = [name_of(index) for index in range(setting.node_count) if index != setting.undeclared]
        topology = Topology(
            places={
                name: Place(
                    rack=f"r{index // 2 + 1}",
                    nvlink_domain=_domain_of(name, index, setting),
                    leaf_switch="leaf1",
                    model=MODEL,
                )
                for index, name in enumerate(declared)
            },
            gpus_per_node=2,
        )
        self.orders = Orders(policy=policy, topology=topology)
        self._memory = Memory(self.database)
        self.ledger = self._quick(first)
        self.judge = Judge(self.twin, self.orders, self.ledger)
        self.own_clock = OwnClock(self.true_clock)
        self.processes: dict[str, SmallAutopilot] = {}
        self._heard: dict[ActionKey, NodeCheck | None] = {}
        """What tests of nodes instructed to any process."""
        self._add_process("first", first)

    def close(self) -> None:
        """Give back what is open."""
        self.database.own.close()

    def _begin(self, directory: Path, *jobs: JobSpec, **options: Any) -> SmallAutopilot:
        return StoryAutopilot(directory, self.database, *jobs, **options)

    def _add_process(self, name: str, autopilot: SmallAutopilot) -> None:
        self.processes[name] = autopilot
        if self.setting.leases is Leases.HANDED_OVER and name != PERSON:
            self.orders.tokens[name] = None
        self._put_behind_border(name)

    def process(self, name: str) -> SmallAutopilot:
        """Return a process of that name, started on the same disk if it is not there yet."""
        if name not in self.processes:
            other = copy.copy(self.processes["first"])
            other.restart()
            other.lease = Lease(holder=name, given=None)
            self._add_process(name, other)
        return self.processes[name]

    def _put_behind_border(self, name: str) -> None:
        autopilot = self.processes[name]
        border = Border(
            name,
            self.mischief,
            true_clock=self.true_clock,
            own_clock=self.own_clock,
            judge=self.judge.watch,
            accepted=self.judge.accept,
            heard=self._heard,
        )
        self._border_told[name] = border.told
        cluster = autopilot.cluster
        autopilot.cluster = replace(
            cluster,
            scheduler=border.around(cluster.scheduler),
            fleet=border.around(cluster.fleet),
            telemetry=border.around(cluster.telemetry),
            logs=(*(border.around(log) for log in cluster.logs), self.mischief.rumours),
            ledger=border.around_ledger(self._quick(autopilot)),
            clock=self.own_clock,
            rollout_files=FilesInMemory(),
            rules=replace(cluster.rules, policy=self.orders.policy, topology=self.orders.topology),
        )
        self._dress(autopilot)

    def _quick(self, autopilot: SmallAutopilot) -> Ledger:
        ledger = autopilot.cluster.ledger
        assert isinstance(ledger, SqlLedger)
        return cast("Ledger", QuickLedger(ledger, self._memory))

    def run_pass(self, name: str = "first", *, renews_lease: bool = True, starts_after_seconds: int = 0) -> None:
        """Let one process see, decide and act once; what it does not survive is a crash and a restart.

        Its run may start long after the tick that requested it.
        """
        autopilot = self.process(name)
        if renews_lease:
            self.renew_lease(name)
        if name in self.orders.tokens:
            autopilot.lease = Lease(holder=name, given=self.orders.tokens[name] or "none yet")
        try:
            if self.setting.has_reflex:
                take_in_logs(autopilot.cluster)
                take_in_conditions(autopilot.cluster)
                react(autopilot.cluster, lease=autopilot.lease)
                see_to_marks(autopilot.cluster, lease=autopilot.lease)
            self.let_pass(starts_after_seconds, keeps_lease_of=name)
            autopilot.run_once()
            if self.has_rollout:
                advance_rollouts(autopilot.cluster, lease=autopilot.lease, judging=quick_judge_of)
            if not self.setting.has_start_guard:
                see_to_overlaps(autopilot.cluster, take_in_conditions(autopilot.cluster), lease=autopilot.lease)
                self._witness_overlaps(name)
        except (SourceError, LedgerConflict):
            self.failure_count += 1
        except Crash:
            self.restart(name)
        present = self.ledger.read_state(self.own_clock.now()).incidents
        self.orders.waiting_for_hands.update(each.incident for each in present if each.state is IncidentState.IN_REPAIR)

    def let_pass(self, seconds: int, *, keeps_lease_of: str | None) -> None:
        """Let time pass; a code server may renew the lease of its process all the while."""
        for _ in range(seconds // RENEWED_EVERY_SECONDS if keeps_lease_of is not None else 0):
            self.true_clock.wait(float(RENEWED_EVERY_SECONDS))
            self.renew_lease(keeps_lease_of or "")
        rest = seconds % RENEWED_EVERY_SECONDS if keeps_lease_of is not None else seconds
        if rest:
            self.true_clock.wait(float(rest))

    def _witness_overlaps(self, name: str) -> None:
        """Note where two copies of a job run now, and nobody was notified though this process has just looked.

        What it cannot know is let be: lies, a clock that was set, an attempt that it may never have seen at work, one
        whose nodes were silent between two looks only, and where it has no right to page.
        """
        told, now = self._border_told[name], self.true_clock.now()
        running = {each.attempt for each in told.jobs.values() if each.state is JobState.RUNNING}
        if not told.is_honest or self.own_clock.ahead or self.mischief.failing:
            return
        lease = self.ledger.current_lease(self.own_clock.now())
        if lease is None or self.processes[name].lease.token(self.ledger, self.own_clock.now()) != lease:
            return  # Also who got a new lease in mid-pass: what it does until the next one it does with the old.
        self._running_since = {
            each: self._running_since.get(each, now) for each in running | self._seen_at_work if each
        }
        self._seen_at_work |= {
            each
            for each, since in self._running_since.items()
            if self._first_look or now - since > timedelta(minutes=1)
        }
        self._first_look = False
        self._nodes_of |= {
            each.attempt: each.nodes
            for each in told.jobs.values()
            if each.state is JobState.RUNNING and each.attempt is not None
        }
        self._seen_silent |= {each.node for each in told.nodes.values() if not each.is_responding}
        for progress in ground_truth.read_progress(self.twin):
            older = sorted(progress.writers)[:-1]
            pages = [
                each.body for each in self.processes["first"].messages.messages if each.audience is Audience.ON_CALL
            ]
            is_told = any(f"wo copies of job {progress.job} " in each for each in pages)
            known = self._seen_at_work.intersection(older)
            if any(self._nodes_of.get(each, frozenset()) & self._seen_silent for each in known) and not is_told:
                self.untold.append(f"untold_overlap: two copies of job {progress.job} run, and nobody was notified")

    def renew_lease(self, name: str) -> None:
        """Take or renew the lease of a process that has one of its own, as its code server does."""
        if name in self.orders.tokens:
            token = self.ledger.take_lease(holder=name, ttl=TTL, now=self.own_clock.now())
            self.orders.tokens[name] = token or self.orders.tokens[name]

    def use_policy(self, policy: Policy) -> None:
        """Let the operator change the policy: the program and the judge both work by the new one."""
        self.orders = replace(self.orders, policy=policy)
        self.judge.orders = self.orders
        for process in self.processes.values():
            process.use_policy(policy)

    def restart(self, name: str) -> None:
        """Begin a process again that has just died."""
        self.crash_count += 1
        self.processes[name].restart()
        self._put_behind_border(name)

    @property
    def desk(self) -> Cluster:
        """The cluster as a person at the command line has it: a process of their own that nothing disturbs."""
        return replace(self.processes["first"].cluster, ledger=self.ledger)

    def node(self, index: int) -> NodeName:
        return name_of(index % self.setting.node_count)

    def waiting_plans(self) -> tuple[PlanId, ...]:
        """Return the newest plans first."""
        entries = self.ledger.entries(after=0, limit=10_000)
        plans = [
            self.ledger.plan(self.plan_of(entry)) for entry in reversed(entries) if entry.kind is LedgerEntryKind.PLAN
        ]
        waiting = {
            each.incident
            for each in self.ledger.read_state(self.own_clock.now()).incidents
            if each.state is IncidentState.OPEN
        }
        return tuple(plan.plan for plan in plans if plan is not None and plan.incident in waiting)

    @staticmethod
    def plan_of(entry: LedgerEntry) -> PlanId:
        """Return the plan that a line of the ledger made known."""
        return PlanId(_quoted(entry.body, "plan"))

    def _stranded(self) -> list[str]:
        """Return the jobs that we hold for an incident that nobody works on any more, and of which nobody was notified.

        A job is ours to release where our hold came last. What is OPEN or ACTING still has its plan, or will have one.
        """
        if self.mischief.has_denied_jobs:
            return []
        last: dict[JobId, tuple[Command, ActionRecord | None]] = {}
        for command, record in self.judge.accepted:
            if command.job is not None and command.verb in (Verb.HOLD, Verb.MARK, Verb.UNMARK, Verb.RELEASE):
                last[command.job] = (command, record)
        at_work = (IncidentState.OPEN, IncidentState.ACTING)
        found = []
        for job in SimulatedScheduler(self.twin).read_jobs():
            command, record = last.get(job.job, (None, None))
            if command is None or record is None or command.verb in (Verb.UNMARK, Verb.RELEASE) or not job.is_held:
                continue
            if command.verb is Verb.MARK:
                continue  # It is taken off by the tick that sees the nodes answer: `_mark_of_a_silence` judges when.
            attempt = record.action.attempt
            is_over = job.state not in MAY_HAVE_PROCESSES | {JobState.PENDING}
            ends_by_itself = job.state is JobState.COMPLETING and job.ended_at is not None
            if is_over or ends_by_itself or attempt is None or has_moved_on(job, attempt):
                continue
            incident = self.ledger.incident(record.action.incident)
            if incident is None or incident.state in at_work or self._is_told_of(job.job, incident.incident):
                continue
            found.append(f"stranded: job {job.job} is held for {incident.incident}, which is {incident.state.value}")
        return found

    def _ownerless(self) -> list[str]:
        """Return the nodes that a rollout drained and that nobody has: neither it, nor people who were handed them."""
        out = IN_HAND | {NodeStage.PULLED, NodeStage.LOST}
        drained = {
            each.node: each.reason or "" for each in SimulatedScheduler(self.twin).read_nodes() if each.is_drained
        }
        return [
            f"ownerless: {each.node} is drained ({drained[each.node]}), and {each.stage.value} in {rollout.rollout}"
            for rollout in self.ledger.rollouts(final_since=BEGINNING)
            for each in self.ledger.rollout_nodes(rollout.rollout)
            if each.stage not in out
            and f"{DRAIN_MARK} {rollout.rollout}:" in drained.get(each.node, "")
            and not self._is_foreign(each.node)
        ]

    def _is_foreign(self, node: NodeName) -> bool:
        return any(each[0] == node for each in self.orders.foreign_drains)

    def _is_told_of(self, job: JobId, incident: IncidentId) -> bool:
        return any(
            each.audience is Audience.ON_CALL and each.thread == incident and job in each.body
            for each in self.processes["first"].messages.messages
        )

    def _floods(self) -> list[str]:
        """Return the messages that came too often.

        One that may have been lost in a crash may come once more, and so may one on a node that was repaired in vain.
        """
        sent = Counter(self.processes["first"].messages.messages)
        found = [
            f"flood: {count} times the same to {message.recipient} of {message.thread}: {message.body[:120]}"
            for message, count in sent.items()
            if count
            > 1 + self.crash_count + self.suspension_count + self.orders.called_mended[IncidentId(message.thread)]
        ]
        pages = Counter(message.thread for message in sent if message.audience is Audience.ON_CALL)
        found += [f"flood: {count} pages of {thread}" for thread, count in pages.items() if count > _PAGES_AT_MOST]
        return found

    def faults_at_the_end(self) -> list[str]:
        """Return what must never be found after a story: two writers after a release of ours, or a broken chain."""
        found = []
        for brain in ground_truth.read_split_brains(self.twin):
            job = next(iter(brain.attempts)).job
            if self.setting.has_start_guard or self._is_ours(brain):
                found.append(f"split_brain: job {job} has {len(brain.attempts)} writers since {brain.seen_at}")
        found += self._floods()
        found += self._stranded()
        found += self._ownerless()
        found += [f"dead_link: {each}" for each in self.link_faults]
        found += self.untold
        broken = self.ledger.verify_chain()
        if broken.first_broken_seq is not None:
            found.append(f"chain: broken at {broken.first_broken_seq}")
        return found

    def _is_ours(self, brain: SplitBrain) -> bool:
        """Return whether a command of ours let the second copy start: the scheduler alone gives nodes up, too."""
        *earlier, newest = sorted(brain.attempts)
        for command, record in self.judge.accepted:
            attempt = None if record is None else record.action.attempt
            is_of_job = attempt in earlier or (record is None and command.job == newest.job)
            if command.verb is Verb.RELEASE and is_of_job and command.at <= brain.seen_at:
                return True
            is_of_node = command.verb is Verb.DECLARE_DOWN and command.at <= brain.seen_at
            if is_of_node and self.judge.declared_over.get(command, frozenset()).intersection(earlier):
                return True
        return newest in earlier


def _domain_of(name: NodeName, index: int, setting: Setting) -> str:
    return name if setting.nodes_per_domain_count == 1 else f"d{index // setting.nodes_per_domain_count}"


def _jobs_of(setting: Setting) -> list[JobSpec]:
    training = replace(TRAINING, gpus_per_node=2, node_count=min(2, setting.node_count - 1), **_SAVES[setting.training])
    jobs: list[JobSpec] = [training]
    if setting.job_count > 1:
        jobs.append(replace(training, name="batch", node_count=1, workload=Workload.BATCH))
    if setting.has_session:
        jobs.append(SESSION)
    if setting.has_movable_session:
        jobs.append(replace(SESSION, name="console", is_requeueable=True))
    replica = replace(
        SERVICE,
        node_count=1,
        gpus_per_node=setting.gpus_per_replica,
        service="chat",
        min_serving_count=setting.min_serving_count,
        time_limit_seconds=200_000.0,
    )
    jobs += [replace(replica, name=f"chat-{number}") for number in range(setting.replica_count)]
    return jobs


_SAVES: Mapping[Training, Mapping[str, Any]] = {
    Training.QUICK: {},
    Training.SLOW: {
        "checkpoint_interval_seconds": 90.0,
        "checkpoint_phase_seconds": 75.0,
        "checkpointing": Checkpointing.YES,
        "time_limit_seconds": 200_000.0,
    },
    Training.UNTOLD: {"checkpoint_interval_seconds": 40.0, "time_limit_seconds": 200_000.0},
    Training.NEVER: {"checkpoint_interval_seconds": None, "checkpointing": Checkpointing.NO},
}


def name_of(index: int) -> NodeName:
    return NodeName(f"gpu{index + 1:03d}")


def _quoted(body: str, key: str) -> str:
    return body.split(f'"{key}":"', 1)[1].split('"', 1)[0]
