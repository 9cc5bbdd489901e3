"""An incident in two sentences: what happened and what it cost; and in one, how it stands and what comes next."""

from collections.abc import Collection, Sequence

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.incident import Incident, IncidentState, asked_of_person
from ops_pipelines.core.overlap import Certainty
from ops_pipelines.core.policy import Mode
from ops_pipelines.flow.hindsight.story.cost import Cost, Victim
from ops_pipelines.flow.hindsight.story.milestones import Milestone, MilestoneKind
from ops_pipelines.flow.hindsight.story.words import counted, gpu_hours_words, names_words, span_words

_LONGEST_CAUSE = 220


def headline_of(
    incident: Incident,
    records: Collection[ActionRecord],
    milestones: Sequence[Milestone],
    victims: Collection[Victim],
    cost: Cost,
) -> str:
    """Return what happened, what was done, and what was lost."""
    reached = {each.kind: each for each in milestones}
    noticed = reached[MilestoneKind.NOTICED]
    cause = _cause(incident)
    after = span_words(noticed.since_began_seconds)
    parts = [f"{_where(incident)}: {cause}, noticed {'at once' if after == '0 s' else f'after {after}'}."]
    parts.append(_deeds(records, victims))
    twice = sorted({each.later.job for each in incident.overlaps if each.certainty is not Certainty.EXCLUDED})
    if twice:
        parts.append(
            f"There were, or may have been, two copies of {names_words([f'job {job}' for job in twice])} at once."
        )
    if incident.state is IncidentState.MERGED:
        parts.append(f"It was {incident.note}." if incident.note else "It was part of another incident.")
    returned = reached.get(MilestoneKind.RETURNED)
    if returned is not None:
        parts.append(f"Back in service after {span_words(returned.since_began_seconds)}.")
    elif incident.closed_at is not None and incident.state is IncidentState.RESOLVED:
        parts.append(
            f"Over after {span_words((incident.closed_at - reached[MilestoneKind.BEGAN].at).total_seconds())}."
        )
    if any(each.held_at is not None for each in victims):
        parts.append(f"Jobs lost {gpu_hours_words(cost.lost)} GPU-hours.")
    elif victims and cost.not_counted:
        parts.append(f"{counted(len(victims), 'job')} ran on it; what was lost is not known.")
    return " ".join(each for each in parts if each)


def standing_of(incident: Incident, *, waiting_plan: str | None, mode: Mode) -> str:
    """Return how it stands now and what comes next, in one sentence."""
    if waiting_plan is not None:
        return f"{waiting_plan} waits for somebody's yes."
    match incident.state:
        case IncidentState.OPEN if incident.is_watched:
            return "It is only watched: its evidence is too weak to act on."
        case IncidentState.OPEN if mode is Mode.OBSERVE:
            return "Nothing is done by us: the mode is observe."
        case IncidentState.OPEN:
            return "Its plan has not begun yet."
        case IncidentState.ACTING:
            return "Its plan is being carried out."
        case IncidentState.VERIFYING:
            return "The node proves itself; then it is returned to service."
        case IncidentState.PROBATION:
            return "The node is in service as last choice, and watched until its probation is over."
        case IncidentState.IN_REPAIR:
            return "The node waits for repair by hands."
        case IncidentState.ESCALATED:
            return f"A person has it: {asked_of_person(incident)}"
        case IncidentState.MERGED:
            return f"Nothing is left here: {incident.note}"
        case _:
            return f"It is over: {_clipped(incident.note)}" if incident.note else "It is over."


def _where(incident: Incident) -> str:
    if incident.suspect is not None:
        return str(incident.suspect)
    names = sorted(incident.nodes)
    if not names:
        jobs = [f"job {each.job}" for each in sorted(incident.victims)]
        return names_words(jobs) or "The cluster"
    return names_words([str(each) for each in names])


def _cause(incident: Incident) -> str:
    cause = incident.cause if incident.hypothesis is None else incident.hypothesis.statement
    return _clipped(cause).rstrip(".")


def _clipped(text: str) -> str:
    """Return a text on one line, no longer than a head line bears: the tests of a healed node fill a page."""
    told = " ".join(text.split())
    return told if len(told) <= _LONGEST_CAUSE else f"{told[: _LONGEST_CAUSE - 1]}…"


def _deeds(records: Collection[ActionRecord], victims: Collection[Victim]) -> str:
    """Return what was done, as one sentence about the autopilot."""
    done = [each.action.verb for each in records if each.took_effect]
    words: list[str] = []
    if Verb.DRAIN in done:
        words.append("took the node out of service")
    moved = sum(each.held_at is not None for each in victims)
    if Verb.RELEASE in done and moved:
        words.append(f"moved {counted(moved, 'job')}")
    elif moved:
        words.append(f"stopped {counted(moved, 'job')}")
    words += [said for verb, said in _REPAIRS.items() if verb in done]
    if not words and Verb.PAGE_HUMAN in done:
        return "We touched nothing and paged a person."
    if not words and Verb.NOTIFY_OWNER in done:
        return "We told the owner and touched nothing."
    if Verb.PAGE_HUMAN in done:
        words.append("paged a person")
    if not words:
        return "Nothing was done by us."
    return f"We {', '.join(words[:-1])}{' and ' if len(words) > 1 else ''}{words[-1]}."


_REPAIRS = {
    Verb.RESET_GPU: "reset the GPU",
    Verb.REBOOT: "rebooted it",
    Verb.POWER_ON: "power-cycled it",
    Verb.REIMAGE: "installed it anew",
}
