"""The verdict on the lab's drill: each act on its own, then what must hold over all of them together.

Judged on what others wrote down as well as on our ledger: Slurm's log, the twin's journal, the write logs of the jobs.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops_pipelines.core.action import NODE_VERBS, SOFT, ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.entries import Entry, EntryKind
from ops_pipelines.core.identity import JobId, NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.lab_act import NOTE_LENGTH, Act
from ops_pipelines_lab.drills.lab_alertmanager import AlertmanagerView
from ops_pipelines_lab.drills.lab_alerts import find_silences, find_unsent, read_notes
from ops_pipelines_lab.drills.lab_stage import Demand, LabView
from ops_pipelines_lab.drills.writer_watch import find_overlaps
from ops_pipelines_lab.simulator.journal import EntryKind as Received

_SWITCHED = {
    Verb.REBOOT: Received.REBOOT,
    Verb.POWER_OFF: Received.POWER_OFF,
    Verb.POWER_ON: Received.POWER_ON,
    Verb.RESET_GPU: Received.RESET_GPU,
    Verb.CHECK: Received.START_CHECK,
}
_REPAIRS = frozenset({Verb.RESET_GPU, Verb.REBOOT, Verb.POWER_OFF, Verb.POWER_ON})
"""What the machines are ordered, and how they wrote it down."""

_TOLD_SECONDS = 120.0
"""Six looks at the silences, on a loaded machine."""


def judge_drill(view: LabView, acts: Sequence[Act], console: Console) -> tuple[str, ...]:
    """Print the table and return every demand that is not met, in words; empty if the drill ended as stated.

    A loaded machine lets a node's metrics lapse for a moment: an incident that nobody acted on is given time to pass.
    """
    failures = list(judge_acts(acts, console))
    _broken_at_last("what nobody acted on to pass", lambda: _passing(view))
    for title, demands in _overall(view, acts):
        broken = _broken(demands)
        failures += [f"{title}: {words}" for words in broken]
        console.print(f"  {title}: {'; '.join(broken) or 'yes'}", markup=False, soft_wrap=True)
    return tuple(failures)


def judge_acts(acts: Sequence[Act], console: Console) -> tuple[str, ...]:
    """Print the table and return every demand of these acts that is not met, in words."""
    table = Table(title="the lab's drill", title_justify="left")
    for column in ("fault", "what was done", "seconds", "verdict"):
        table.add_column(column, overflow="fold")
    failures: list[str] = []
    for act in acts:
        broken = _broken(_demands_of(act))
        failures += [f"{act.fault}: {words}" for words in broken]
        seconds = f"{act.seconds:.0f}" if act.is_over else "-"
        table.add_row(Text(act.fault), Text(act.did), seconds, Text("as stated" if not broken else "; ".join(broken)))
    console.print(table)
    return tuple(failures)


def judge_telling(
    view: LabView, alertmanager: AlertmanagerView | None, console: Console, *, kept: Collection[str]
) -> tuple[str, ...]:
    """Print and return every demand on silences and messages that is not met; `kept`: ids of people's silences.

    What is not yet so is waited for: silences are looked after every 20 s, messages every 5 s.
    """
    judged: list[tuple[str, Callable[[], Iterator[Demand]]]] = [
        ("every message arrived", lambda: find_unsent(read_notes(view)))
    ]
    if alertmanager is not None:
        judged.append(("only people's silences are left", lambda: find_silences(alertmanager.silences(), kept=kept)))
    failures: list[str] = []
    for title, look in judged:
        broken = _broken_at_last(title, look)
        failures += [f"{title}: {words}" for words in broken]
        console.print(f"  {title}: {'; '.join(broken) or 'yes'}", markup=False, soft_wrap=True)
    return tuple(failures)


def _broken_at_last(title: str, look: Callable[[], Iterator[Demand]]) -> list[str]:
    """Return what is not met once everything is, or when it was waited for in vain."""
    with suppress(TimeoutError):
        wait_until(title, lambda: not _broken(look()), timeout_seconds=_TOLD_SECONDS, every_seconds=0.5)
    return _broken(look())


def _demands_of(act: Act) -> Iterator[Demand]:
    if act.began_at is None:
        yield Demand(is_so=False, otherwise="was not started")
        return
    yield Demand(is_so=act.is_over, otherwise=f"is not over: {act.how_it_stands()}")
    yield from act.demands()


def _broken(demands: Iterator[Demand]) -> list[str]:
    return [demand.otherwise for demand in demands if not demand.is_so]


def _overall(view: LabView, acts: Sequence[Act]) -> Iterator[tuple[str, Iterator[Demand]]]:
    ledger = view.stage.cluster.ledger
    incidents = view.incidents()
    records = tuple(record for incident in incidents for record in ledger.records(incident.incident))
    log = view.stage.slurm.read_controller_log()
    yield "never two writers", _one_writer_at_a_time(view, acts)
    yield "no action twice", _nothing_twice(view, records, log)
    left = {node for act in acts if act.ends_with is IncidentState.ESCALATED for node in act.nodes}
    yield "no action lost", find_losses(incidents, records, left_to_people=left)
    yield "room kept free was handed over", find_kept_room(records)
    yield "foreign drains kept", _only_ours_returned(acts, records, log)
    yield "the ledger's chain verifies", _chain_is_whole(view)


def _passing(view: LabView) -> Iterator[Demand]:
    ledger = view.stage.cluster.ledger
    for incident in view.incidents():
        is_passing = incident.is_open and not incident.is_watched and not ledger.records(incident.incident)
        yield Demand(is_so=not is_passing, otherwise=f"{incident.incident} is {incident.state.value}")


def _one_writer_at_a_time(view: LabView, acts: Sequence[Act]) -> Iterator[Demand]:
    yield Demand(is_so=view.watch.look_count > 0, otherwise="nobody watched")
    for act in acts:
        writes = act.writes()
        yield Demand(is_so=bool(writes), otherwise=f"no write of {act.name} is known")
        for overlap in find_overlaps(writes):
            yield Demand(is_so=False, otherwise=f"{act.name}: {overlap}")


def _nothing_twice(view: LabView, records: Sequence[ActionRecord], log: str) -> Iterator[Demand]:
    """Each action started once; machines and Slurm were ordered no oftener than the ledger says.

    What provably had no effect may be sent again, once the ledger says so.
    """
    begun = Counter(_what_is_begun(entry) for entry in view.entries() if entry.kind is EntryKind.ACTION_BEGUN)
    for what, count in begun.items():
        yield Demand(is_so=count == 1, otherwise=f"the ledger begins {count} times: {what}")
    resent = Counter(json.loads(entry.body)["key"] for entry in view.entries() if entry.kind is EntryKind.ACTION_RESENT)
    received = Counter(
        (verb, NodeName(node))
        for entry in view.stage.twin.entries()
        for verb, kind in _SWITCHED.items()
        if entry.kind is kind and entry.refusal is None
        for node in entry.nodes
    )
    yield from find_repetitions(records, resent=resent, received=received, log=log)


def find_repetitions(
    records: Sequence[ActionRecord],
    *,
    resent: Mapping[str, int],
    received: Mapping[tuple[Verb, NodeName], int],
    log: str,
) -> Iterator[Demand]:
    """Demand that machines (`received`) and slurmctld (`log`) were ordered as often as the records say, and no
    oftener.
    """
    told: Counter[tuple[Verb, str]] = Counter()
    for record in records:
        action = record.action
        target = action.node if action.verb in NODE_VERBS else action.attempt and action.attempt.job
        told[action.verb, target or ""] += 1 + resent.get(action.key, 0)
    for (verb, node), count in received.items():
        yield Demand(
            is_so=count <= told[verb, node],
            otherwise=f"{verb.value} of {node} was received {count} times, sent {told[verb, node]} times",
        )
    for node, count in reasons_set(log).items():
        allowed = told[Verb.DRAIN, node] + told[Verb.DECLARE_DOWN, node]
        yield Demand(
            is_so=count <= allowed, otherwise=f"Slurm was given {count} times a reason why {node} is out, not {allowed}"
        )
    for job, count in requeues(log).items():
        allowed = told[Verb.HOLD, job]
        yield Demand(is_so=count <= allowed, otherwise=f"Slurm requeued job {job} {count} times, not {allowed}")


def _what_is_begun(entry: Entry) -> str:
    """Return verb, target, cause and try of a before-entry: what its key is made from."""
    action = json.loads(entry.body)["action"]
    return json.dumps({key: value for key, value in action.items() if key != "text"}, sort_keys=True)


def find_losses(
    incidents: Sequence[Incident], records: Sequence[ActionRecord], *, left_to_people: Collection[NodeName]
) -> Iterator[Demand]:
    """Demand that every action has an outcome, and that every incident ended as it should.

    An action may only have failed where a person has the incident, where it was a repair and a stronger one followed,
    or where it was to keep room free, without which a plan continues.
    """
    climbed = {incident.incident for incident in incidents if incident.tries}
    mended = {incident.incident for incident in incidents if incident.mended_at is not None}
    in_hand = {incident.incident for incident in incidents if incident.nodes.intersection(left_to_people)}
    for record in records:
        name = f"{record.action.verb.value} of {record.action.target} ({record.action.incident})"
        if record.outcome is None:
            yield Demand(is_so=False, otherwise=f"{name} has no outcome")
            continue
        may_fail = record.action.verb in SOFT or (
            record.action.verb in _REPAIRS and record.action.incident in climbed | mended
        )
        yield Demand(
            is_so=record.outcome.kind is OutcomeKind.DONE or may_fail or record.action.incident in in_hand,
            otherwise=f"{name} ended {record.outcome.kind.value}: {record.outcome.witness}",
        )
    for incident in incidents:
        if incident.is_watched:
            continue  # The last words of a job that was moved: they trouble nobody, and are forgotten in time.
        wanted = IncidentState.ESCALATED if incident.incident in in_hand else IncidentState.RESOLVED
        yield Demand(
            is_so=incident.state is wanted,
            otherwise=f"{incident.incident} is {incident.state.value}, not {wanted.value}: "
            f"{incident.note[:NOTE_LENGTH]}",
        )


def find_kept_room(records: Sequence[ActionRecord]) -> Iterator[Demand]:
    """Demand that what was kept free for a job was handed over, and that any was kept where a job was moved."""
    done = [each.action for each in records if each.outcome is not None and each.outcome.kind is OutcomeKind.DONE]
    kept = {(each.incident, each.attempt): each for each in done if each.verb is Verb.RESERVE}
    handed_over = {(each.incident, each.attempt) for each in done if each.verb is Verb.UNRESERVE}
    is_moved = any(each.action.verb in (Verb.RESERVE, Verb.RELEASE) for each in records)
    yield Demand(is_so=bool(kept) or not is_moved, otherwise="no node was ever kept free for a job")
    for key, action in kept.items():
        yield Demand(
            is_so=key in handed_over,
            otherwise=f"{', '.join(action.spares)} stayed reserved for {action.target} ({action.incident})",
        )


def _only_ours_returned(acts: Sequence[Act], records: Sequence[ActionRecord], log: str) -> Iterator[Demand]:
    """Only we (and the drill, as an operator) returned nodes, and those that we had drained: Slurm's log is asked."""
    ours = Counter(record.action.node for record in records if record.action.verb is Verb.RESUME)
    ours.update(node for act in acts for node in act.returned_by_people)
    for node, count in returns(log).items():
        yield Demand(
            is_so=count <= ours[node], otherwise=f"{node} was returned {count} times, by us {ours[node]} times"
        )
    drained = {record.action.node for record in records if record.action.verb is Verb.DRAIN}
    for node in sorted(name for name in ours if name is not None):
        yield Demand(is_so=node in drained, otherwise=f"{node} was returned, but never drained by us")


def _chain_is_whole(view: LabView) -> Iterator[Demand]:
    verdict = view.stage.cluster.ledger.verify_chain()
    yield Demand(is_so=verdict.entry_count > 0, otherwise="the ledger is empty")
    yield Demand(is_so=verdict.first_broken_seq is None, otherwise=f"the ledger is broken: {verdict.problem}")


# -- what slurmctld wrote down (22.05) --


def reasons_set(log: str) -> Counter[NodeName]:
    """Return how often Slurm was given our reason for each node."""
    return Counter(
        NodeName(node) for node in re.findall(r"update_node: node (\S+) reason set to: ops_pipelines INC-", log)
    )


def requeues(log: str) -> Counter[JobId]:
    """Return how often each job was requeued on somebody's word."""
    return Counter(JobId(job) for job in re.findall(r"\] Requeuing JobId=(\S+)$", log, flags=re.MULTILINE))


def returns(log: str) -> Counter[NodeName]:
    """Return how often each node was put back into service by a command."""
    return Counter(
        NodeName(node)
        for node in re.findall(r"update_node: node (\S+) state set to (?:IDLE|MIXED|ALLOCATED)$", log, re.MULTILINE)
    )
