"""The border between one process of the program and its cluster: what it was reported and what it sent passes here.

Answers are bent and lost here, and the process may die here. What was reported is kept, what is sent is shown to the
judge first. Nothing here knows why the program does anything.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ops_pipelines.clock import Clock
from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import ActionKey, JobId, NodeName
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines.core.observation import JobStatus, NodeInspection, NodeStatus
from ops_pipelines.core.sources import Sample, SourceError, SourceNonsense, SourceRefused, SourceUnavailable
from tests.safety.lies import (
    NO_ANSWER,
    CheckLie,
    Rumours,
    SchedulerLie,
    TelemetryLie,
    bend_check,
    bend_jobs,
    bend_nodes,
    bend_samples,
)

COMMANDS = {verb.value: verb for verb in Verb} | {"start_check": Verb.CHECK, "start_install": Verb.INSTALL}
"""Ports name their commands as the domain names its verbs; what continues by itself is started."""
READS = frozenset(
    {
        "read_nodes",
        "read_jobs",
        "read_limits",
        "inspect",
        "power_state",
        "read_samples",
        "read_new",
        "read_check",
        "read_install",
        "read_versions",
    }
)
LEDGER_READS = frozenset(
    {
        "load",
        "load_snapshot",
        "cursor",
        "conditions",
        "evidence_after",
        "undecided",
        "rejected",
        "read_state",
        "incident",
        "incidents_since",
        "plan",
        "records",
        "current_lease",
        "entries",
        "verify_chain",
        "resent_at",
        "withheld",
        "held_lease",
        "heartbeats",
        "checks",
        "records_on",
        "release",
        "rollout",
        "rollout_count",
        "rollout_nodes",
        "rollout_plan",
        "rollouts",
    }
)
"""Everything else that a ledger can do is a write, and the process may die before it."""
BEGINS = frozenset({"begin", "begin_all", "begin_again"})
"""Writes of before-entries: a command follows."""
PROBLEMS: tuple[SourceError, ...] = (
    SourceUnavailable("no answer within 5 s"),
    SourceRefused("access denied"),
    SourceNonsense("<html>502</html>"),
)


class Crash(BaseException):
    """The process dies here; nothing of the program may catch it."""


@dataclass(slots=True)
class Told:
    """The last answer of each source to one process."""

    nodes: dict[NodeName, NodeStatus] = field(default_factory=dict)
    jobs: dict[JobId, JobStatus] = field(default_factory=dict)
    nodes_at: datetime | None = None
    jobs_at: datetime | None = None
    is_honest: bool = True
    """Whether neither nodes nor jobs were bent."""
    samples: tuple[Sample, ...] | None = None
    """None if the metrics source did not answer when last asked."""
    samples_at: datetime | None = None
    inspections: dict[NodeName, tuple[NodeInspection | None, datetime]] = field(default_factory=dict)
    """What each node last stated of itself, None if nothing, and when (true time)."""
    checks: dict[ActionKey, NodeCheck | None] = field(default_factory=dict)
    """What was last read of each test of a node."""
    heard: dict[ActionKey, NodeCheck | None] = field(default_factory=dict)
    """The same, by any process: that tests of a rollout passed is in the ledger, for anyone who continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One verb on one target, as it crosses the border. A batch is several commands."""

    verb: Verb
    process: str
    node: NodeName | None = None
    job: JobId | None = None
    gpu: str | None = None
    reason: str = ""
    """Or the name of a reservation."""
    until: datetime | None = None
    """Of a reservation: when it runs out."""
    at: datetime
    """True time."""
    said_at: datetime
    """What the clock of the process says."""


@dataclass(slots=True)
class Mischief:
    """What is bent, lost or cut short now, for every process."""

    telemetry: TelemetryLie | None = None
    scheduler: SchedulerLie | None = None
    has_denied_jobs: bool = False
    """Whether the scheduler ever stated that it knows no job: who is reported so has nothing left to release."""
    checks: CheckLie | None = None
    about: NodeName = NodeName("gpu001")
    """The node that the lies of one node are about."""
    yesterday_nodes: tuple[NodeStatus, ...] = ()
    yesterday_jobs: tuple[JobStatus, ...] = ()
    failing: dict[str, SourceError] = field(default_factory=dict)
    """Calls that fail without effect, by the name of the method, until taken out."""
    lost_answer_count: int = 0
    """The next so many commands take effect, and their answers are lost."""
    steps_to_crash: int | None = None
    calls_to_interruption: int | None = None
    interruption: Callable[[], None] | None = None
    """What somebody else does while a process is in the middle of something."""
    begins_to_suspension: int | None = None
    suspension: Callable[[str], None] | None = None
    """The process of that name has stopped right after a before-entry, and whatever happens meanwhile."""
    rumours: Rumours = field(default_factory=Rumours)


class Border:
    """The border of one process."""

    def __init__(
        self,
        process: str,
        mischief: Mischief,
        *,
        true_clock: Clock,
        own_clock: Clock,
        judge: Callable[[tuple[Command, ...], Told], None],
        accepted: Callable[[Command], None],
        heard: dict[ActionKey, NodeCheck | None],
    ) -> None:
        self.told = Told(heard=heard)
        self._process = process
        self._mischief = mischief
        self._true_clock = true_clock
        self._own_clock = own_clock
        self._judge = judge
        self._accepted = accepted

    def around(self, port: object) -> Any:
        """Return `port` as the process sees it through this border."""
        return _Guarded(port, self)

    def around_ledger(self, ledger: object) -> Any:
        """Return the ledger as the process has it: it commands nobody, though it shares words with those that do."""
        return _GuardedLedger(ledger, self)

    def read(self, name: str, ask: Callable[[], Any], **about: Any) -> Any:
        self._let_others_in()
        mischief = self._mischief
        if name in mischief.failing:
            self._note_no_answer(name)
            raise mischief.failing[name]
        if name == "read_samples":
            return self._read_samples(ask, at=about["at"])
        if name == "read_check":
            self.told.checks[about["key"]] = bend_check(ask(), mischief.checks)
            self.told.heard[about["key"]] = self.told.checks[about["key"]]
            return self.told.checks[about["key"]]
        if name == "inspect":
            return self._inspect(about["node"], ask)
        return self._bent(name, ask())

    def _inspect(self, node: NodeName, ask: Callable[[], NodeInspection]) -> NodeInspection:
        now = self._true_clock.now()
        self.told.inspections[node] = (None, now)
        inspection = ask()
        self.told.inspections[node] = (inspection, now)
        return inspection

    def write(self, write: Callable[[], Any]) -> Any:
        self._maybe_crash()
        return write()

    def begin(self, begin: Callable[[], Any]) -> Any:
        """Write a before-entry; the process may then stand still before it sends the command."""
        begun = self.write(begin)
        mischief = self._mischief
        if mischief.begins_to_suspension is not None and mischief.suspension is not None:
            mischief.begins_to_suspension -= 1
            if mischief.begins_to_suspension <= 0:
                suspend, mischief.suspension, mischief.begins_to_suspension = mischief.suspension, None, None
                suspend(self._process)
        return begun

    def send(
        self, verb: Verb, send: Callable[[], Any], *args: object, reason: str = "", until: datetime | None = None
    ) -> Any:
        self._maybe_crash()
        mischief = self._mischief
        if verb.value in mischief.failing:
            raise mischief.failing[verb.value]
        commands = self._commands(verb, *args, reason=reason, until=until)
        self._judge(commands, self.told)
        receipt = send()
        for command in commands:
            self._accepted(command)
        self._maybe_crash()
        if mischief.lost_answer_count > 0:
            mischief.lost_answer_count -= 1
            raise SourceUnavailable("the connection broke before the answer came")
        return receipt

    def _commands(self, verb: Verb, *args: object, reason: str, until: datetime | None) -> tuple[Command, ...]:
        at, said_at = self._true_clock.now(), self._own_clock.now()

        def command(node: str | None, job: str | None = None, gpu: str | None = None) -> Command:
            return Command(
                verb=verb,
                process=self._process,
                node=None if node is None else NodeName(node),
                job=None if job is None else JobId(job),
                gpu=gpu,
                reason=reason,
                until=until,
                at=at,
                said_at=said_at,
            )

        target, *rest = args
        if verb in (Verb.HOLD, Verb.RELEASE):
            return (command(None, job=str(target)),)
        if verb in (Verb.MARK, Verb.UNMARK):
            return tuple(command(None, job=str(getattr(each, "job", each))) for each in target)  # type: ignore[attr-defined]  # attempts, jobs
        if verb is Verb.EXCLUDE:
            return tuple(command(node, job=str(target)) for node in _names(rest[0]))
        if verb is Verb.UNRESERVE:
            return (command(None),)
        if verb is Verb.RESET_GPU:
            return (command(str(target), gpu=str(rest[0])),)
        return tuple(command(node) for node in _names(target))

    def _read_samples(self, ask: Callable[[], Any], *, at: datetime) -> Any:
        mischief, told = self._mischief, self.told
        told.samples, told.samples_at = None, at  # As old as the question: the answer may be long in coming.
        lie = mischief.telemetry
        if lie is not None and lie in NO_ANSWER:
            raise PROBLEMS[0] if lie is TelemetryLie.SILENT else PROBLEMS[2]
        samples = ask()
        told.samples = samples if lie is None else bend_samples(samples, lie, node=mischief.about)
        return told.samples

    def _bent(self, name: str, answer: Any) -> Any:
        mischief, told, now = self._mischief, self.told, self._true_clock.now()
        lie = mischief.scheduler
        if name == "read_nodes":
            if lie is not None:
                answer = bend_nodes(answer, lie, yesterday=mischief.yesterday_nodes, node=mischief.about)
            told.nodes, told.nodes_at = {each.node: each for each in answer}, now
        elif name == "read_jobs":
            if lie is not None:
                answer = bend_jobs(answer, lie, yesterday=mischief.yesterday_jobs)
            told.jobs, told.jobs_at = {each.job: each for each in answer}, now
        if name in ("read_nodes", "read_jobs"):
            told.is_honest = lie is None
        return answer

    def _note_no_answer(self, name: str) -> None:
        if name == "read_samples":
            self.told.samples, self.told.samples_at = None, self._own_clock.now()

    def _let_others_in(self) -> None:
        mischief = self._mischief
        if mischief.calls_to_interruption is None or mischief.interruption is None:
            return
        mischief.calls_to_interruption -= 1
        if mischief.calls_to_interruption <= 0:
            interrupt, mischief.interruption, mischief.calls_to_interruption = mischief.interruption, None, None
            interrupt()

    def _maybe_crash(self) -> None:
        mischief = self._mischief
        if mischief.steps_to_crash is None:
            return
        mischief.steps_to_crash -= 1
        if mischief.steps_to_crash <= 0:
            mischief.steps_to_crash = None
            raise Crash


_ABOUT = {"inspect": "node", "read_samples": "at"}
"""What the first argument of a question is."""


class _Guarded:
    """A port seen through a border."""

    def __init__(self, port: object, border: Border) -> None:
        self._port = port
        self._border = border

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        border = self._border
        if not callable(method):
            return method

        def call(*args: object, **options: Any) -> Any:
            if name in COMMANDS:
                said = options.get("reason", options.get("name", str(args[0]) if name == "unreserve" else ""))
                until = options.get("until")
                return border.send(COMMANDS[name], lambda: method(*args, **options), *args, reason=said, until=until)
            if name in READS:
                about = {_ABOUT[name]: args[0]} if name in _ABOUT else {"key": options.get("key")}
                return border.read(name, lambda: method(*args, **options), **about)
            return border.write(lambda: method(*args, **options))

        return call


class _GuardedLedger:
    """A ledger seen through a border."""

    def __init__(self, ledger: object, border: Border) -> None:
        self._ledger = ledger
        self._border = border

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._ledger, name)
        if name in LEDGER_READS or not callable(method):
            return method
        pass_on = self._border.begin if name in BEGINS else self._border.write
        return lambda *args, **options: pass_on(lambda: method(*args, **options))


def _names(target: object) -> tuple[str, ...]:
    return (target,) if isinstance(target, str) else tuple(target)  # type: ignore[arg-type]  # str or names
