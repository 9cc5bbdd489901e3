"""What people get of the demo: every page of the web process is asked for, and those worth reading are kept as files;
and the runs that a person launches in the Dagster UI: releases, versions, and each job of a morning once.

A proposed policy is replayed over the demo's own history first, so that there is a comparison to show.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.notes import NOT_SENT, NoteState
from ops_pipelines_lab.drills.dagster_api import ENDED, DagsterApi, DagsterApiError, Shown, open_page
from ops_pipelines_lab.drills.demo_setup import BAD, GOOD, MOST_OUT, PAGES_DIRECTORY, POLICY, PROPOSED_FILE

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


PLAN_ROLLOUT, LOOK_AT_VERSIONS = "plan_rollout", "look_at_versions"
REBALANCE, SET_QUOTAS = "rebalance_quotas", "set_quotas"
_PROVED = "gpu_quotas"
_LIMIT_SECONDS = 180.0


class UiRuns:
    """Runs of jobs that need nothing but a partition, each launched once."""

    def __init__(self, api: DagsterApi) -> None:
        self._api = api
        self._runs: dict[str, str] = {}
        self._over: set[str] = set()

    def launch(self, job: str, *, partition: str | None = None) -> None:
        self._runs[job] = self._api.launch_job(job, partition=partition)

    def launch_all(self, partitions: Mapping[str, str]) -> None:
        for job, partition in partitions.items():
            self.launch(job, partition=partition)

    def is_over(self, job: str) -> bool:
        """Return whether the run of a job that was launched has ended, well or not."""
        if job not in self._over and self._api.run_status(self._runs[job]) in ENDED:
            self._over.add(job)
        return job in self._over

    def is_over_after(self, job: str, *, first: str) -> bool:
        """Return whether a job has ended that is launched here as soon as the `first` has."""
        if not self.is_over(first):
            return False
        if job not in self._runs:
            self.launch(job)
        return self.is_over(job)

    def await_all(self, pass_time: Callable[[float], None]) -> None:
        """Let time pass until every run has ended, or is late."""
        until = monotonic() + _LIMIT_SECONDS
        while not all(self.is_over(job) for job in self._runs) and monotonic() < until:
            pass_time(0.5)

    def differences(self, pass_time: Callable[[float], None]) -> tuple[str, ...]:
        """Wait for every run; return those that did not end well, and proofs of quotas that did not pass."""
        self.await_all(pass_time)
        states = {job: self._api.run_status(run) for job, run in self._runs.items()}
        unproved = self._unproved() if REBALANCE in self._runs else ()
        return (*(f"{job} is {state}" for job, state in states.items() if state != "SUCCESS"), *unproved)

    def _unproved(self) -> Iterator[str]:
        proofs = self._api.check_states(_PROVED)
        if not proofs:
            yield f"{_PROVED} has no proofs"
        for name, state in proofs.items():
            if state != "SUCCEEDED":
                yield f"proof {name} of {_PROVED}: {state or 'not executed'}"


class InTurn:
    """Runs that follow a back-fill, one after the other: they read what it fills, and leave room for repairs."""

    def __init__(self, api: DagsterApi, *, backfill: str) -> None:
        self._api = api
        self._backfill = backfill
        self._runs = UiRuns(api)
        self._left: dict[str, str] | None = None
        self._running = ""

    def go_on(self, partitions: Callable[[], Mapping[str, str]]) -> None:
        """Launch the next job if it is its turn; `partitions` is asked for once, when the back-fill is over.

        A web server that does not answer is asked again at the next call.
        """
        with suppress(DagsterApiError):
            self._launch_next(partitions)

    def _launch_next(self, partitions: Callable[[], Mapping[str, str]]) -> None:
        if self._left is None:
            runs = self._api.runs_of(self._backfill)
            if not runs or any(run.status not in ENDED for run in runs):
                return
            self._left = dict(partitions())
        if self._running and not self._runs.is_over(self._running):
            return
        if self._left:
            job, partition = next(iter(self._left.items()))
            self._runs.launch(job, partition=partition)
            self._running = job
            del self._left[job]
