"""What people get of the demo: every page of the web process is asked for, and those worth reading are kept as files.

A proposed policy is replayed over the demo's own history first, so that there is a comparison to show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import NOT_SENT, NoteState
from ops_pipelines_lab.drills.browser import Shown, open_page
from ops_pipelines_lab.drills.demo_releases import BAD, GOOD, MOST_OUT
from ops_pipelines_lab.drills.demo_setup import PAGES_DIRECTORY, POLICY, PROPOSED_FILE

_ASKED_FOR_TOO = ("", "metrics", "calendar.ics", "rollouts")
_PROPOSED_CHANGES = (
    ("max_out_count: 14, max_out_per_rack_count: 6", "max_out_count: 2, max_out_per_rack_count: 1"),
    (f"rollouts:\n  max_out_count: {MOST_OUT}", "rollouts:\n  max_out_count: 1"),
    (
        "consents: {reboot: approve, quotas: approve}",
        "consents: {reboot: approve, power: approve, reset_gpu: forbid, quotas: forbid}",
    ),
)
_MOST_NOTES = 10_000
_BEING_MADE, _ASKED_AGAIN, _ASK_EVERY_SECONDS = 503, 12, 5.0
"""Pages that are made of weeks of the lake answer so until they are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPages:
    """Which pages there are to read."""

    lines: tuple[str, ...]
    """Sentences for the end of the demo."""
    differences: tuple[str, ...]
    """What was not answered as it should; empty if all was."""


def show_pages(
    cluster: Cluster,
    *,
    url: str,
    state: Path,
    since: datetime,
    call: Callable[[Sequence[str]], str],
    pass_time: Callable[[float], None],
) -> ShownPages:
    """Ask for every page that `url` serves, keep ten below `state`, and say where they are."""
    problems = _compare_policies(state, since=since, call=call)
    kept = {
        "incident report": f"incidents/{_richest_incident(cluster, since)}",
        "weekly review": "weekly",
        "policy comparison": "policy-comparison",
        "rollout": f"rollouts/{_rollout_of(GOOD, cluster, since)}",
        "stopped rollout": f"rollouts/{_rollout_of(BAD, cluster, since)}",
        "quotas": "quotas",
        "chargeback": "chargeback",
        "advice": "advice",
        "placement": "placement",
        "capacity": "capacity",
    }
    folder = state / PAGES_DIRECTORY
    folder.mkdir(exist_ok=True)
    lines = [_message_words(cluster)]
    for title, path in kept.items():
        shown = _once_made(f"{url}/{path}", pass_time=pass_time)
        if not shown.is_ok:
            problems.append(f"/{path} was answered {shown.status}")
            continue
        file = folder / f"{title.replace(' ', '-')}.html"
        file.write_text(shown.page, encoding="utf-8")
        lines.append(f"{title}: {file}")
    problems += [
        f"/{path} was answered {answer.status}"
        for path in _ASKED_FOR_TOO
        if not (answer := open_page(f"{url}/{path}")).is_ok
    ]
    return ShownPages(lines=tuple(lines), differences=tuple(problems))


def _once_made(url: str, *, pass_time: Callable[[float], None]) -> Shown:
    """Return a page; one that is still being made is asked for again, as its answer says."""
    shown = open_page(url)
    for _ in range(_ASKED_AGAIN):
        if shown.status != _BEING_MADE:
            break
        pass_time(_ASK_EVERY_SECONDS)
        shown = open_page(url)
    return shown


def proposed_policy() -> str:
    """Return the demo's policy as somebody more careful would have it; raise ValueError if they do not differ."""
    text = POLICY
    for now, then in _PROPOSED_CHANGES:
        if now not in text:
            raise ValueError(f"the demo's policy has no {now!r} any more; mend what is proposed instead")
        text = text.replace(now, then)
    return text


def _compare_policies(state: Path, *, since: datetime, call: Callable[[Sequence[str]], str]) -> list[str]:
    proposed = state / PROPOSED_FILE
    proposed.write_text(proposed_policy())
    try:
        call(("replay", "--policy", str(proposed), "--since", since.isoformat(), "--publish"))
    except RuntimeError as problem:
        return [str(problem)]
    return []


def _richest_incident(cluster: Cluster, since: datetime) -> str:
    """Return the incident about which most was done: its report has most to show. Empty if there was none."""
    told = [each for each in cluster.ledger.incidents_since(since) if each.state is not IncidentState.MERGED]
    return max((each.incident for each in told), key=lambda incident: len(cluster.ledger.records(incident)), default="")


def _rollout_of(release: str, cluster: Cluster, since: datetime) -> str:
    """Return the rollout of a release. Empty if there was none."""
    rollouts = cluster.ledger.rollouts(final_since=since)
    return next((each.rollout for each in rollouts if each.release == release), "")


def _message_words(cluster: Cluster) -> str:
    """Return how many notes became how many messages."""
    outbox = cluster.outbox
    if outbox is None:
        return "messages: no outbox is kept"
    notes = outbox.recent_notes(limit=_MOST_NOTES)
    sent = [each for each in notes if each.state is NoteState.SENT and not each.receipt.startswith(NOT_SENT)]
    waiting_count = sum(each.state is NoteState.WAITING for each in notes)
    batch_count = len({each.batch for each in sent})
    later = f"; {waiting_count} wait for the digest or for the day" if waiting_count else ""
    return f"messages: {len(sent)} notes became {batch_count} messages{later} (`ops-pipelines messages`)"
