"""The judge: sees each command as it reaches the cluster, and what is true there, and says which rule it breaks.

Independent of the program: it reads the twin, what the sender had been reported, and the ledger only for which cause a
command belongs to and what people ordered. The rules themselves stand in `rules`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ops_pipelines.core.action import ActionRecord, Verb, reservation_of
from ops_pipelines.core.entries import LedgerState
from ops_pipelines.core.identity import JobAttempt, NodeName
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.release import Component
from ops_pipelines_lab.simulator import ground_truth
from ops_pipelines_lab.simulator.adapters import SimulatedScheduler
from ops_pipelines_lab.simulator.twin import Twin
from tests.safety.border import Command, Told
from tests.safety.rules import RULES
from tests.safety.scene import Orders, Scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One command that should not have been sent."""

    rule: str
    command: Command
    why: str

    def __str__(self) -> str:
        target = " ".join(str(each) for each in (self.command.node, self.command.job, self.command.gpu) if each)
        return f"{self.rule}: {self.command.process} sent {self.command.verb.value} {target}: {self.why}"


class Judge:
    """Watches the commands of every process on one twin."""

    def __init__(self, twin: Twin, orders: Orders, ledger: Ledger) -> None:
        self.orders = orders
        self.violations: list[Violation] = []
        self.watched: Counter[Verb] = Counter()
        self.declared_over: dict[Command, frozenset[JobAttempt]] = {}
        """Which attempts really had processes on the node that a command declares down."""
        self._twin = twin
        self._ledger = ledger
        self._accepted: list[tuple[Command, ActionRecord | None]] = []
        self._records: dict[Command, ActionRecord | None] = {}
        """Before-entries of commands that are on their way."""

    def watch(self, commands: tuple[Command, ...], told: Told) -> None:
        """Judge what is about to reach the cluster: one command, or a batch."""
        for position, command in enumerate(commands):
            self._watch_one(command, told, beside=commands[:position])

    def _watch_one(self, command: Command, told: Told, *, beside: tuple[Command, ...]) -> None:
        scheduler = SimulatedScheduler(self._twin)
        state = self._ledger.read_state(command.said_at)
        record = _record_of(command, state)
        if record is not None:
            self._records[command] = record
            command = replace(command, verb=record.action.verb)  # What was marked is released by the same words.
        scene = Scene(
            command=command,
            told=replace(told),
            orders=self.orders,
            record=record,
            state=state,
            plan=None if record is None or record.plan is None else self._ledger.plan(record.plan),
            proof=None if record is None or record.plan is None else self._ledger.proof(record.plan),
            lease=self._ledger.current_lease(command.said_at),
            nodes={each.node: each for each in scheduler.read_nodes()},
            jobs={each.job: each for each in scheduler.read_jobs()},
            progress={each.job: each for each in ground_truth.read_progress(self._twin)},
            truth={each.node: each for each in ground_truth.read_nodes(self._twin)},
            versions=self._versions(command),
            accepted=tuple(self._accepted),
            beside=beside,
        )
        self._records.setdefault(command, record)
        if command.verb is Verb.DECLARE_DOWN:
            self.declared_over[command] = scene.attempts_alive
        for name, rule in RULES.items():
            why = rule(scene)
            if why is not None:
                self.violations.append(Violation(rule=name, command=command, why=why))

    def _versions(self, command: Command) -> Mapping[NodeName, Mapping[Component, str]]:
        """Return what really runs on the node of a return; of other commands nobody asks."""
        if command.node is None or command.verb is not Verb.RESUME:
            return {}
        with self._twin.present() as world:
            return {command.node: dict(world.node(command.node).versions)}

    def accept(self, command: Command) -> None:
        """Note that the cluster took a command."""
        self.watched[command.verb] += 1
        self._accepted.append((command, self._records.pop(command, None)))

    @property
    def accepted(self) -> tuple[tuple[Command, ActionRecord | None], ...]:
        """Return every command that the cluster took, with its before-entry."""
        return tuple(self._accepted)

    @property
    def broken_rules(self) -> frozenset[str]:
        return frozenset(violation.rule for violation in self.violations)


_SENT_AS = {Verb.UNMARK: {Verb.UNMARK, Verb.RELEASE}}


def _record_of(command: Command, state: LedgerState) -> ActionRecord | None:
    """Return the before-entry of a command: the newest of its verb and target that has no outcome."""
    if command.verb in (Verb.RESERVE, Verb.UNRESERVE):
        return next((each for each in reversed(state.records) if _is_reservation(command, each)), None)
    fitting = [
        record
        for record in state.records
        if record.outcome is None
        and record.action.verb in _SENT_AS.get(command.verb, {command.verb})
        and record.action.node == command.node
        and record.action.gpu == command.gpu
        and (record.action.attempt.job if record.action.attempt is not None else None) == command.job
        and (not command.reason or record.action.text == command.reason)
    ]
    return fitting[-1] if fitting else None


def _is_reservation(command: Command, record: ActionRecord) -> bool:
    """Return whether a command keeps or gives back the spare nodes of a before-entry: it names the reservation."""
    action = record.action
    return (
        record.outcome is None
        and action.verb is command.verb
        and reservation_of(action) == command.reason
        and (command.node is None or command.node in action.spares)
    )
