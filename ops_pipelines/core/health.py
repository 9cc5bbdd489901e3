"""The program's own health: does it see, may it act, and what must a person do first. One word, then reasons.

Pure: what is judged was read elsewhere. How a beat is stored is the ledger's business, how a word is shown the edges'.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.policy import Mode

WATCHER = "fault_sensor"
"""The beat without which nothing is noticed."""
SILENT_AFTER = timedelta(seconds=60)
"""A tick comes every 10 s at the latest; six missed ones are no slow tick. The shipped Prometheus rule says so too."""
BESIDE = " beside the lease: "
"""Between the name and the holder in the beat of a watching process that another one keeps from acting."""
STUCK_AFTER = timedelta(minutes=30)
"""# Assumption: longer than any witness of an act may take by default (a reboot: 20 min)."""

_NAMED_COUNT = 4


class HealthWord(Enum):
    """What the autopilot is at now; an earlier one outranks a later one."""

    BLIND = "blind"
    """Nothing is noticed, or not everything: whatever it decides, it decides without some of its eyes."""
    PAUSED = "paused"
    OBSERVING = "observing"
    """It sees and plans; it acts on nothing, or only on plans that a person approved."""
    ACTING = "acting"
    """It sees, and acts within the limits by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """The last tick of one beating process."""

    name: str
    at: datetime
    holder: str
    """Which process it was: host and process id."""
    note: str
    """What came of the tick, in words."""
    mode: Mode
    """The mode that it worked with: of the file as it was then, or less where that could not be, or it was late."""
    answers: Mapping[str, str | None]
    """Each source that was asked: None if it answered, else what went wrong, in words."""
    is_lease_held: bool

    @property
    def is_beside(self) -> bool:
        """Return whether another process had the right to act, and this one only looked on."""
        return BESIDE in self.name

    @property
    def failing_sources(self) -> tuple[str, ...]:
        """Return the names of the sources that did not answer."""
        return tuple(sorted(source for source, problem in self.answers.items() if problem is not None))

    def is_silent(self, now: datetime) -> bool:
        """Return whether it is too old to count, or dated so far ahead that its age says nothing."""
        return abs(now - self.at) >= SILENT_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class VitalSigns:
    """Everything that is known of the program itself at one instant."""

    taken_at: datetime
    mode: Mode
    """The mode that holds by the policy file, as the process that asks has read it."""
    heartbeats: tuple[Heartbeat, ...]
    is_lease_held: bool
    """Whether any process has the right to act."""
    pause: str | None
    """Who paused, since when and why, in words; None if nobody did."""
    head_seq: int
    """Lines of the ledger."""
    newest_evidence_at: datetime | None
    """When the evidence taken in last was observed; None before the first."""
    undecided_evidence_count: int
    open_incidents: Mapping[tuple[IncidentState, Response], int]
    unfinished_action_count: int
    """Actions started, without an outcome yet."""
    oldest_unfinished_begun_at: datetime | None
    lateness: str | None = None
    """Why we are too late for the scheduler's limits, so that `auto` is `approve` for now; None if we are not."""
    bystanders: tuple[Heartbeat, ...] = ()
    """Beats of processes that watch on beside the one that acts: nobody needs a second daemon."""
    refusal: str | None = None
    """Why nothing is started on this ledger: it is not the one that was seen before. None if it is."""
    troubles: tuple[str, ...] = ()
    """Configuration that cannot be used, and files that a process would have to be restarted for, in words."""

    @property
    def working_mode(self) -> Mode:
        """Return the mode that the running autopilot works with; the file's where none runs."""
        watcher = self.heartbeat(WATCHER)
        return self.mode if watcher is None or watcher.is_silent(self.taken_at) else watcher.mode

    def heartbeat(self, name: str) -> Heartbeat | None:
        """Return the last beat of one process; None if it never beat."""
        return next((beat for beat in self.heartbeats if beat.name == name), None)

    def source_problems(self) -> Mapping[str, str | None]:
        """Return each source that a living process asks, with what is wrong with it; None if nothing is."""
        problems: dict[str, str | None] = {}
        for beat in self.heartbeats:
            if not beat.is_silent(self.taken_at):
                for source, problem in beat.answers.items():
                    problems[source] = problems.get(source) or problem
        return dict(sorted(problems.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The verdict: one word, and why, what a person must see to first coming first."""

    word: HealthWord
    reasons: tuple[str, ...]


def judge_health(signs: VitalSigns) -> Health:
    """Return how the program is. Blind outranks paused, and paused outranks what the mode allows."""
    blind = (*_why_blind(signs), *_why_nobody_acts(signs))
    if signs.refusal is not None:
        blind = (signs.refusal, *_why_blind(signs))
    paused = () if signs.pause is None else (signs.pause,)
    if blind:
        word = HealthWord.BLIND
    elif paused:
        word = HealthWord.PAUSED
    else:
        word = HealthWord.ACTING if signs.working_mode is Mode.AUTO else HealthWord.OBSERVING
    return Health(word=word, reasons=(*blind, *paused, *_what_to_see_to(signs), *_what_the_mode_means(signs, word)))


def blind_without_ledger(problem: str) -> Health:
    """Return the verdict where the ledger itself cannot be read: nobody can tell whether anything runs."""
    return Health(word=HealthWord.BLIND, reasons=(problem,))


def _why_blind(signs: VitalSigns) -> Iterator[str]:
    watcher = signs.heartbeat(WATCHER)
    if watcher is None:
        yield f"no heartbeat of {WATCHER}, ever; start the code server and dagster-daemon"
    elif watcher.is_silent(signs.taken_at):
        yield _silence(watcher, signs.taken_at)
    for source, problem in signs.source_problems().items():
        if problem is not None:
            yield f"{source} does not answer: {problem}"


def _why_nobody_acts(signs: VitalSigns) -> Iterator[str]:
    """Yield why what should act by itself does not: anyone who holds no lease begins nothing."""
    watcher = signs.heartbeat(WATCHER)
    is_watching = watcher is not None and not watcher.is_silent(signs.taken_at)
    if is_watching and signs.pause is None and signs.working_mode is Mode.AUTO and not signs.is_lease_held:
        yield (
            "no process holds the lease, so nothing is started; it is taken with the next tick: see whether the code "
            "server and dagster-daemon run, and whether ticks are late"
        )


def _silence(beat: Heartbeat, now: datetime) -> str:
    seconds = int((now - beat.at).total_seconds())
    if seconds < 0:
        return f"the heartbeat of {beat.name} ({beat.holder}) is {-seconds} s in the future; compare the clocks"
    return (
        f"no heartbeat of {beat.name} for {seconds} s, the last by {beat.holder} at {_in_utc(beat.at)}; see whether "
        "the code server and dagster-daemon run, and what they log"
    )


def _what_to_see_to(signs: VitalSigns) -> Iterator[str]:
    now = signs.taken_at
    begun_at = signs.oldest_unfinished_begun_at
    if begun_at is not None and now - begun_at >= STUCK_AFTER:
        yield (
            f"{signs.unfinished_action_count} action(s) without an outcome, the oldest started at {_in_utc(begun_at)}; "
            "`ops-pipelines incidents` names them"
        )
    for beat in signs.heartbeats:
        if beat.name != WATCHER and beat.is_silent(now):
            yield _silence(beat, now)
    if signs.bystanders:
        named = ", ".join(sorted({each.holder for each in signs.bystanders})[:_NAMED_COUNT])
        yield (
            f"{len(signs.bystanders)} more process(es) watch on this ledger beside the one that holds the lease: "
            f"{named}; stop the second code server or dagster-daemon, or give it a ledger of its own"
        )
    yield from signs.troubles
    if signs.lateness is not None and signs.mode is Mode.AUTO:
        yield f"mode auto is approve until we have been on time for a while: {signs.lateness}"
    elif signs.working_mode is not signs.mode:
        yield (
            f"the autopilot that runs works in mode {signs.working_mode.value} and by policy.yaml it is "
            f"{signs.mode.value} now; it reads the file again with its next tick"
        )


def _what_the_mode_means(signs: VitalSigns, word: HealthWord) -> Iterator[str]:
    if word is HealthWord.ACTING:
        yield "acts within its limits by itself"
    if word is HealthWord.OBSERVING:
        is_asking = signs.working_mode is Mode.APPROVE
        yield "acts only on approved plans" if is_asking else "plans, and acts on nothing"


def _in_utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
