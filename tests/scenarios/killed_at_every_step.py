"""A process dies before each of its steps; another one continues from the disk: the harness, and what is tried of it.

A step is a call of a port that changes something: in the ledger, in the cluster, or of a person's attention. The disk
(ledger, cluster, sent messages) is copied just before each one. Just before a step is just after the one before it, so
both sides of every write and of every command are covered; a ledger write that was rolled back is the disk before it.
A story is a row of acts; a new producer of actions is a new story, or one more act. Whatever is not known to only read
counts as a step, so that a new method of a port is covered without being named here.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, event

from ops_pipelines.core.action import ActionRecord
from ops_pipelines.core.identity import cause_of
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.notes import Message
from ops_pipelines.core.policy import Policy
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.journal import EntryKind
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.scenarios.small_autopilot import COMMANDS, POLICY, MessagesInMemory, SmallAutopilot
from tests.simulator.small_cluster import TRAINING

READS = frozenset(
    {
        "cursor", "conditions", "evidence_after", "rejected", "load", "load_snapshot", "read_state", "incident",
        "incidents_since", "plan", "records", "current_lease", "entries", "verify_chain", "heartbeats", "resent_at",
        "withheld", "held_lease", "why_refused", "untold_news", "history_until", "undecided",
        "read_nodes", "read_jobs", "read_limits", "inspect", "power_state", "read_check", "checks",
        "records_on", "rollout", "rollouts", "rollout_nodes", "rollout_plan", "rollout_count", "read_install",
        "read_versions", "proposal", "proposals", "read", "probe",
    }
)  # fmt: skip
READS_OF_LEDGER = READS | {"release"}
"""A ledger gives a release back; a scheduler lets a job go."""
IDLE_WRITES = frozenset(
    {"take_in", "take_in_conditions", "store", "store_snapshot", "store_release", "take_lease", "beat"}
)
"""Steps that are taken again and again: where nothing else was written since the last disk, it is the same disk."""
COMMIT = "commit"
"""Not a call, but the moment inside a ledger transaction when all is written and nothing is committed."""
AWAY_SECONDS = (1.0, 25.0)
"""How long nobody runs: within the witness limit of a scheduler command (10 s), and well beyond it and the lease."""
REPEATED_DISKS_A_STORY = 1
"""How many more disks a story tries whose kinds of step were tried already: evenly over the story."""

QUICK = replace(
    POLICY, durations=replace(POLICY.durations, soak=timedelta(seconds=1), run_patience=timedelta(seconds=3))
)
SMALL_TRAINING = replace(TRAINING, gpus_per_node=2)
FINAL = frozenset({IncidentState.RESOLVED, IncidentState.MERGED})

Kind = tuple[str, str, str]
"""Of a step: the act it belongs to, the port's method, and what it is about (a verb, a state)."""


@dataclass(frozen=True, kw_only=True)
class Act:
    """One thing that somebody does. Anyone who died in it does it again, so it must be possible to ask twice."""

    name: str
    do: Callable[[SmallAutopilot], None]
    is_by_person: bool = False
    """A person's command may have worked and died before its answer: then it is asked for again, too."""


def _leave_as_it_is(autopilot: SmallAutopilot) -> None:
    """The ports of a story that needs no others."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens on a small cluster, act after act."""

    acts: tuple[Act, ...]
    least_step_count: int
    """A story that has fewer steps than this is no longer the story that it was."""
    jobs: tuple[JobSpec, ...] = (SMALL_TRAINING,)
    node_count: int = 3
    policy: Policy = QUICK
    equip: Callable[[SmallAutopilot], None] = _leave_as_it_is
    """Puts other ports into every process of the story."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """What a process that died before a step left behind."""

    kind: Kind
    act_number: int
    directory: Path
    at: datetime
    messages: MessagesInMemory
    unrecorded_message_count: int
    """Messages that went out and are not in the ledger yet: they go out again. Twice is better than never."""

    @property
    def is_of_step(self) -> bool:
        return self.kind[1] != COMMIT

    @property
    def name(self) -> str:
        return f"{self.directory.name}, before {' '.join(self.kind)}"


class Watched:
    """A port that reports `before` and `after` of each call that may change something, and passes every call on."""

    def __init__(
        self,
        port: object,
        before: Callable[[str, str], None],
        after: Callable[[str], None] = lambda _: None,
        *,
        reads: frozenset[str] = READS,
    ) -> None:
        self._port = port
        self._reads = reads
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if name in self._reads or not callable(method):
            return method

        def call(*args: object, **options: object) -> object:
            self._before(name, _subject(args) or _subject(tuple(options.values())))
            answer = method(*args, **options)
            self._after(name)
            return answer

        return call


def _subject(values: Sequence[object]) -> str:
    """Return what a call is about, as far as its arguments tell."""
    for value in values:
        match value:
            case ActionRecord():
                return value.action.verb.value
            case Incident():
                return value.state.value
            case Message():
                return value.audience.value
            case tuple() | list():
                words = sorted({_subject([each]) for each in value} - {""})
                if words:
                    return " and ".join(words)
    return ""


class _Recorder:
    """Keeps a disk before every step of the process that it watches."""

    def __init__(self, autopilot: SmallAutopilot, directory: Path) -> None:
        self._autopilot = autopilot
        self._directory = directory
        self._unrecorded_message_count = 0
        self._written: object = None
        self._verb_of: dict[object, str] = {}
        self.act = Act(name="", do=_leave_as_it_is)
        self.act_number = 0
        self.disks: list[Disk] = []
        cluster = autopilot.cluster
        autopilot.cluster = replace(
            cluster,
            ledger=cast("Any", Watched(cluster.ledger, self.keep, self._after_ledger, reads=READS_OF_LEDGER)),
            scheduler=cast("Any", Watched(cluster.scheduler, self.keep)),
            fleet=cast("Any", Watched(cluster.fleet, self.keep)),
            notifier=cast("Any", Watched(cluster.notifier, self.keep, self._after_message)),
        )

    def keep(self, step: str, subject: str) -> None:
        state = self._autopilot.cluster.ledger.read_state(self._autopilot.clock.now())
        unfinished = [record.action.verb.value for record in state.records if record.outcome is None]
        entries, messages = self._autopilot.twin.entries(), self._autopilot.messages.messages
        written = (state.head_seq, state.evidence_head, state.decided_through, len(entries), len(messages))
        if written == self._written and step in IDLE_WRITES:
            return
        self._written = written
        # What is marked or finished is named by its key alone: it is the youngest without an outcome.
        about = subject or (unfinished[-1] if unfinished and step not in (*IDLE_WRITES, COMMIT) else "")
        directory = self._directory / f"{len(self.disks):03d}"
        shutil.copytree(self._autopilot.directory, directory)
        self.disks.append(
            Disk(
                kind=(self.act.name, step, about),
                act_number=self.act_number,
                directory=directory,
                at=self._autopilot.clock.now(),
                messages=MessagesInMemory(messages),
                unrecorded_message_count=self._unrecorded_message_count,
            )
        )

    @contextmanager
    def inside_transactions(self) -> Iterator[None]:
        """While the block runs, keep a disk inside every writing transaction, too: written, and not committed."""

        def before_commit(connection: Connection) -> None:
            if connection.get_execution_options().get("ledger_begin") == "BEGIN IMMEDIATE":
                self.keep(COMMIT, "")

        event.listen(Engine, "commit", before_commit)
        try:
            yield
        finally:
            event.remove(Engine, "commit", before_commit)

    def _after_message(self, step: str) -> None:
        self._unrecorded_message_count += 1

    def _after_ledger(self, step: str) -> None:
        if step not in IDLE_WRITES:
            self._unrecorded_message_count = 0


def tell(story: Story, directory: Path) -> tuple[SmallAutopilot, tuple[Disk, ...]]:
    """Let a story happen once without a kill; return how it ended, and the disks of its steps."""
    autopilot = SmallAutopilot(
        directory / "origin", *story.jobs, node_count=story.node_count, gpus_per_node=2, policy=story.policy
    )
    autopilot.let_pass(15)
    story.equip(autopilot)
    recorder = _Recorder(autopilot, directory)
    with recorder.inside_transactions():
        for number, act in enumerate(story.acts):
            recorder.act, recorder.act_number = act, number
            act.do(autopilot)
            if act.is_by_person:
                recorder.keep("answer", "")
    return autopilot, tuple(recorder.disks)


_tried: set[Kind] = set()
"""Kinds of step that a story of this test run has tried already."""


def choose(disks: Sequence[Disk]) -> tuple[Disk, ...]:
    """Return the disks to try: one at least of each kind of step, and some more, evenly.

    A kind that an earlier story of this run tried is not tried for its own sake again; a story that runs alone tries
    all of its kinds. So no kind of step is ever left out, however many stories there are.
    """
    chosen = {}
    for number, disk in enumerate(disks):
        if disk.kind not in _tried:
            _tried.add(disk.kind)
            chosen[number] = disk
    rest = [number for number in range(len(disks)) if number not in chosen]
    every = max(1, len(rest) // REPEATED_DISKS_A_STORY)
    chosen |= {number: disks[number] for number in rest[every // 2 :: every]}
    return tuple(chosen[number] for number in sorted(chosen))


def go_on(story: Story, disk: Disk, *, away_seconds: float) -> SmallAutopilot:
    """Let a new process continue from a disk to the end of the story, and return it."""
    after = SmallAutopilot.on_disk(disk.directory, at=disk.at, messages=disk.messages, policy=story.policy)
    story.equip(after)
    after.let_pass(away_seconds)
    for act in story.acts[disk.act_number :]:
        act.do(after)
    return after


def differences(story: Story, disks: Sequence[Disk], unkilled: SmallAutopilot) -> list[str]:
    """Return in words where a story that was killed at one of `disks` ends otherwise than without the kill."""
    expected, found_words = end_of(unkilled), []
    for number, disk in enumerate(disks):
        try:
            after = go_on(story, disk, away_seconds=AWAY_SECONDS[number % len(AWAY_SECONDS)])
        except Exception as problem:  # Whatever it raises: the other disks are tried, too.
            found_words.append(f"{disk.name}: {type(problem).__name__}: {problem}")
            continue
        found = end_of(after)
        found_words += [
            f"{disk.name}: {name}: {found[name]} instead of {expected[name]}"
            for name in expected
            if found[name] != expected[name]
        ]
        again_count = len(after.messages.messages) - len(unkilled.messages.messages)
        if not 0 <= again_count <= disk.unrecorded_message_count:
            found_words.append(f"{disk.name}: {again_count} messages more")
    return found_words


def end_of(autopilot: SmallAutopilot) -> dict[str, object]:
    """Return everything that must not depend on a crash."""
    cluster = autopilot.cluster
    rollouts = cluster.ledger.rollouts(final_since=autopilot.twin.began_at)
    causes = [each.incident for each in autopilot.incidents()] + [cause_of(each.rollout) for each in rollouts]
    records = [record for cause in causes for record in cluster.ledger.records(cause)]
    return {
        "nodes": [
            (node.node, node.state, node.is_drained, node.is_responding, node.reason)
            for node in cluster.scheduler.read_nodes()
        ],
        "boots": [(node.node, node.is_healthy, node.boot_count) for node in ground_truth.read_nodes(autopilot.twin)],
        "jobs": [
            (job.job, job.state, job.is_held, job.restart_count, job.nodes, job.excluded_nodes)
            for job in cluster.scheduler.read_jobs()
        ],
        "incidents": [
            # What a merged incident would have called for depends on how much was seen before it was merged.
            (each.incident, each.state, each.plan_count, None if each.state is IncidentState.MERGED else each.response)
            for each in autopilot.incidents()
        ],
        "rollouts": [
            (each.rollout, each.state, each.wave, node.node, node.stage, node.direction, node.failure)
            for each in rollouts
            for node in cluster.ledger.rollout_nodes(each.rollout)
        ],
        "actions": {(r.action.key, r.outcome.kind if r.outcome is not None else None) for r in records},
        "commands": _commands(autopilot),
        "split brains": ground_truth.read_split_brains(autopilot.twin),
        "chain": cluster.ledger.verify_chain().first_broken_seq,
    }


def _commands(autopilot: SmallAutopilot) -> list[tuple[object, ...]]:
    """Return what the cluster was reported. Tests and installations asked for again under their key begin once:
    reported once.

    So is a GPU reset that helped nothing and whose acceptance was never written down: it looks like one that never
    came, and is sent once more (docs/SAFETY.md).
    """
    told: dict[object, tuple[object, ...]] = {}
    for number, entry in enumerate(autopilot.received(*COMMANDS)):
        started = entry.check or entry.install
        key: object = number if started is None else started.key
        if entry.kind is EntryKind.RESET_GPU:
            key = (entry.kind, entry.nodes, entry.gpu)
        told.setdefault(key, (entry.kind, entry.nodes, entry.job, entry.gpu))
    return list(told.values())
