"""What is known of similar jobs, and one piece of advice: which is sent, and whether it was followed.

Advice never acts. Unknown is None or 0 hours seen, and never taken for good or bad. What is found and not sent is kept
with its reason (`Withheld`), and may be chosen another week. The rules are `advice_on_running` and `advice_on_holding`.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.money import Cents
from ops_pipelines.core.observation import Workload
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.report.numbers import bytes_words
from ops_pipelines.teams.desk import AdviceSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class UseHours:
    """GPU-hours of one verdict, and how the GPUs were used in them."""

    gpu_hours: float
    utilisation_ratio: float | None = None
    sm_active_ratio: float | None = None
    memory_used_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt that ended in the time looked at."""

    elapsed_hours: float
    limit_hours: float | None
    """None: it had none, or it is not known."""
    state: str
    """Slurm's first word."""
    restart_count: int = 0
    gpu_count: int = 0
    node_count: int = 1
    asked_memory_bytes: float | None = None
    used_memory_bytes: float | None = None
    """The most that its steps had in use at once, of all tasks; None: not recorded."""
    waited_hours: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saves:
    """What the lines of long attempts tell of checkpoints."""

    has_lines: bool = False
    """Some lines of the jobs are at hand."""
    is_training: bool = False
    """They show steps of a training."""
    save_count: int = 0
    intervals_hours: tuple[float, ...] = ()
    """Times between two saves of one attempt."""
    save_seconds: tuple[float, ...] = ()
    """How long saves took that tell of both ends."""
    is_asynchronous: bool = False
    """Saves continue beside the training."""
    node_count: int = 1
    longest_hours: float = 0.0
    """The longest attempt that the lines are of, as far as it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWork:
    """What jobs that are alike did."""

    team: TeamName
    subject: str
    since: datetime
    until: datetime
    held_gpu_hours: float
    seen_gpu_hours: float = 0.0
    """Of these somebody measured the use, and a rule could say what bounds it."""
    uses: Mapping[str, UseHours] = field(default_factory=dict)
    """By verdict, outside the first hour of each attempt."""
    early_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    """By verdict, in that first hour."""
    idle_gpu_hours: float = 0.0
    """All GPUs of the node did nothing; outside the grace of young attempts."""
    half_idle_gpu_hours: float = 0.0
    """Half of the GPUs or more did nothing."""
    early_idle_gpu_hours: float = 0.0
    longest_idle_hours: float = 0.0
    hung_gpu_hours: float = 0.0
    """They spun in a collective that nobody finished: a hang, not a way of working."""
    straggler_gpu_hours: Mapping[str, float] = field(default_factory=dict)
    """By rule of catalogue/efficiency_rules.csv."""
    straggler_gpus: frozenset[str] = frozenset()
    mean_utilisation_ratio: float | None = None
    most_memory_used_ratio: float | None = None
    workloads: frozenset[Workload] = frozenset()
    is_interactive: bool = False
    """By what it declares, its name, or its partition."""
    attempts: tuple[Attempt, ...] = ()
    gpu_counts: frozenset[int] = frozenset()
    """GPUs of its attempts."""
    gpu_type: GpuType = GpuType("")
    """Empty: not reported, or several."""
    device_memory_bytes: float | None = None
    """Of one GPU."""
    host_memory_bytes_per_gpu: float | None = None
    saves: Saves = field(default_factory=Saves)

    @property
    def weeks(self) -> float:
        return (self.until - self.since) / timedelta(days=7)

    @property
    def is_service(self) -> bool:
        return Workload.INFERENCE in self.workloads

    def ratio_of(self, verdict: str) -> float:
        """Return the share of the measured time that has a verdict, the first hours left out of the verdict."""
        use = self.uses.get(verdict)
        return 0.0 if use is None or self.seen_gpu_hours <= 0 else min(1.0, use.gpu_hours / self.seen_gpu_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFailures:
    """How often nodes failed under jobs, over all that ran: what the mean time between failures is made of."""

    failure_count: int
    node_hours: float

    def hours_between(self, node_count: int) -> float | None:
        """Return the mean time between failures of a job on so many nodes; None where what was seen reports none.

        No failure reports none, and so does less than one node-hour, whatever failed in it.
        """
        if self.failure_count < 1 or self.node_hours < 1:
            return None
        return self.node_hours / self.failure_count / max(1, node_count)


# -- one piece of advice --


_TEXT_LENGTH = 160
_ROUNDING = 1e-6


class AdviceKind(Enum):
    """What could be done better."""

    IDLE_ALLOCATION = "idle_allocation"
    INPUT_STALL = "input_stall"
    COMMUNICATION_BOUND = "communication_bound"
    SMALL_BATCH = "small_batch"
    WRONG_GPU_TYPE = "wrong_gpu_type"
    OVER_ASKED_MEMORY = "over_asked_memory"
    WALL_TIME_FAR_ABOVE_NEED = "wall_time_far_above_need"
    STRAGGLER = "straggler"
    NO_CHECKPOINTS = "no_checkpoints"
    WRONG_CHECKPOINT_INTERVAL = "wrong_checkpoint_interval"
    STALE_CHECKPOINTS = "stale_checkpoints"
    UNUSED_DATASETS = "unused_datasets"


OF_STORAGE = frozenset({AdviceKind.STALE_CHECKPOINTS, AdviceKind.UNUSED_DATASETS})
"""They gain bytes; all others gain GPU-hours."""


class Confidence(Enum):
    """How sure it is that the gain is there."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What following it would gain in a week."""

    low_gpu_hours: float = 0.0
    """Of this much the evidence leaves little doubt."""
    expected_gpu_hours: float = 0.0
    size_bytes: int = 0
    """Storage that it frees, once; 0 for all that is not storage."""

    def __post_init__(self) -> None:
        if not 0 <= self.low_gpu_hours <= self.expected_gpu_hours < math.inf or self.size_bytes < 0:
            raise ValueError(
                f"a gain of {self.low_gpu_hours:g} to {self.expected_gpu_hours:g} GPU-hours and {self.size_bytes} "
                "bytes; expected 0 or more, and the low one not above the expected one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One piece of advice to one team about one subject."""

    kind: AdviceKind
    team: TeamName
    subject: str
    """`user/name` of jobs that are alike, or a path. Already on one line and short; untrusted all the same."""
    since: datetime
    until: datetime
    """What was looked at: [since, until)."""
    evidence: tuple[str, ...]
    counter_evidence: tuple[str, ...]
    """What is evidence against it that did not suffice to withhold it."""
    gain: Gain
    gain_cents: Cents | None = None
    """Of the expected gain; None: no prices are stated."""
    what_to_do: str
    confidence: Confidence
    measure: float
    """What it is judged by later: smaller is better, and 0 is as good as it gets."""
    held_gpu_hours: float
    """What the subject held in that time: no gain is larger."""

    def __post_init__(self) -> None:
        if not self.evidence:
            raise ValueError(f"{self.kind.value} for {self.subject} has no evidence; expected a sentence at least")
        if self.gain.expected_gpu_hours > self.held_gpu_hours + _ROUNDING:
            raise ValueError(
                f"{self.kind.value} for {self.subject} gains {self.gain.expected_gpu_hours:g} of "
                f"{self.held_gpu_hours:g} GPU-hours that it held; expected no more than that"
            )

    @property
    def key(self) -> tuple[TeamName, AdviceKind, str]:
        return self.team, self.kind, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Withheld:
    """Something that was seen, and why nothing is sent about it."""

    kind: AdviceKind
    team: TeamName
    subject: str
    why: str


Finding = Advice | Withheld


def withhold(advice: Advice, why: str) -> Withheld:
    """Return that nothing is reported, and why."""
    return Withheld(kind=advice.kind, team=advice.team, subject=advice.subject, why=why)


def one_line(text: str, *, at_most: int = _TEXT_LENGTH) -> str:
    """Return a text of a user on one line, without control characters, short; long ones stay distinct by a digest."""
    flat = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    if len(flat) <= at_most:
        return flat
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{flat[: at_most - 14]}… {digest}"


def subject_of_jobs(user: str, name: str) -> str:
    """Return what jobs that differ in a number at the end alone are called together: `ada/train_#`."""
    flat = " ".join("".join(each if each.isprintable() else " " for each in name).split())
    stem = flat.rstrip("0123456789")
    if stem != flat and stem[-1:] in {"-", "_", ".", " ", "["}:
        flat = f"{stem}#"
    return f"{one_line(user, at_most=40)}/{one_line(flat or 'without a name', at_most=100)}"


# -- what every rule does at its end --


def weigh(advice: Advice, settings: AdviceSettings, *, against: Sequence[str | None]) -> Finding:
    """Return the advice, or why it is not given: the first of `against` that holds, else a gain that is too small."""
    for why in against:
        if why is not None:
            return withhold(advice, why)
    if advice.kind in OF_STORAGE:
        if advice.gain.size_bytes < settings.least_gain_bytes:
            return withhold(advice, f"it would free {bytes_words(advice.gain.size_bytes)}, too little to say")
    elif advice.gain.expected_gpu_hours < settings.least_gain_gpu_hours:
        return withhold(advice, f"it would gain {shown_hours(advice.gain.expected_gpu_hours)}, too little to say")
    return advice


def of_work(
    kind: AdviceKind,
    work: JobWork,
    *,
    evidence: Sequence[str],
    low: float,
    expected: float,
    do: str,
    confidence: Confidence,
    measure: float,
    but: Sequence[str | None] = (),
) -> Advice:
    """Return advice about jobs. The gain is bounded by what they held, and the low one by the expected one."""
    most = min(max(0.0, expected), work.held_gpu_hours)
    return Advice(
        kind=kind,
        team=work.team,
        subject=work.subject,
        since=work.since,
        until=work.until,
        evidence=tuple(evidence),
        counter_evidence=tuple(each for each in (*but, _unmeasured(work)) if each is not None),
        gain=Gain(low_gpu_hours=min(max(0.0, low), most), expected_gpu_hours=most),
        what_to_do=do,
        confidence=confidence,
        measure=measure,
        held_gpu_hours=work.held_gpu_hours,
    )


def not_measured(work: JobWork, settings: AdviceSettings) -> str | None:
    """Return that too little of what they held was measured to judge how it was used; None if enough was."""
    if work.seen_gpu_hours >= settings.least_seen_ratio * work.held_gpu_hours:
        return None
    return f"only {work.seen_gpu_hours / work.held_gpu_hours:.0%} of what they held was measured"


def serves(work: JobWork) -> str | None:
    """Return that they wait for requests, as services do; None if they are no service."""
    return "it is a service: it waits for requests, and is there for them" if work.is_service else None


def is_a_session(work: JobWork) -> str | None:
    """Return that somebody works at it; None if nobody is known to."""
    return "it is an interactive session" if work.is_interactive else None


def shown_hours(gpu_hours: float) -> str:
    """Return GPU-hours in words."""
    return f"{gpu_hours:,.0f} GPU-hours" if gpu_hours >= 10 else f"{gpu_hours:.1f} GPU-hours"


def _unmeasured(work: JobWork) -> str | None:
    dark = 1 - work.seen_gpu_hours / work.held_gpu_hours if work.held_gpu_hours > 0 else 0.0
    return f"{dark:.0%} of what they held was not measured" if dark >= 0.1 else None


# -- which of all advice is sent --


_WEEK = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Advice that was given before."""

    kind: AdviceKind
    team: TeamName
    subject: str
    week_end: datetime
    measure: float

    @property
    def key(self) -> tuple[TeamName, AdviceKind, str]:
        return self.team, self.kind, self.subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is reported, and what is not."""

    chosen: tuple[Advice, ...]
    """By team, the largest gain first."""
    withheld: tuple[Withheld, ...]


def choose(advices: Iterable[Advice], settings: AdviceSettings, *, said: Sequence[Said], week_end: datetime) -> Choice:
    """Return at most `per_team_count` for each team, never two about one subject, none that was sent lately."""
    newest = _newest(said, before=week_end, since=week_end - settings.quiet_weeks * _WEEK)
    chosen: list[Advice] = []
    withheld: list[Withheld] = []
    count: Counter[TeamName] = Counter()
    subjects: set[tuple[TeamName, str]] = set()
    for advice in sorted(advices, key=_rank):
        before = newest.get(advice.key)
        if before is not None and advice.measure <= before.measure * settings.worse_ratio:
            withheld.append(withhold(advice, f"it was sent in the week that ended on {before.week_end:%Y-%m-%d}"))
        elif (advice.team, advice.subject) in subjects:
            withheld.append(withhold(advice, "advice that gains more is sent on the same jobs"))
        elif count[advice.team] >= settings.per_team_count:
            withheld.append(withhold(advice, f"{settings.per_team_count} that gain more are sent to the team"))
        else:
            chosen.append(advice)
            count[advice.team] += 1
            subjects.add((advice.team, advice.subject))
    return Choice(chosen=tuple(sorted(chosen, key=lambda each: (each.team, _rank(each)))), withheld=tuple(withheld))


def _newest(said: Sequence[Said], *, before: datetime, since: datetime) -> dict[tuple[TeamName, AdviceKind, str], Said]:
    """Return what was reported of each lately; a week that is looked at again is not its own past."""
    within = [each for each in said if since <= each.week_end < before]
    return {each.key: each for each in sorted(within, key=lambda each: each.week_end)}


def _rank(advice: Advice) -> tuple[float, float, float, TeamName, str, str]:
    """Money first where it is known of both, which prices decide for all at once; else hours, then bytes."""
    gain = advice.gain
    return (
        -float(advice.gain_cents or 0),
        -gain.expected_gpu_hours,
        -float(gain.size_bytes),
        advice.team,
        advice.subject,
        advice.kind.value,
    )


# -- was advice followed --


class Followed(Enum):
    """What became of advice."""

    FOLLOWED = "followed"
    NOT_FOLLOWED = "not_followed"
    NOT_RUN_AGAIN = "not_run_again"
    """Nothing like it ran in the weeks after: nobody knows what it would have done."""
    UNKNOWN = "unknown"
    """It ran, and what it is judged by was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceResult:
    """What became of one piece of advice, and the numbers behind it."""

    followed: Followed
    measure_after: float | None
    saved_gpu_hours: float
    """In the weeks after, against continuing as before; never more than was held then. 0 unless it was followed."""


def judge_following(
    *,
    measure_before: float,
    measure_after: float | None,
    expected_gpu_hours: float,
    held_before_gpu_hours: float,
    held_after_gpu_hours: float,
    settings: AdviceSettings,
) -> AdviceResult:
    """Return what became of it. `held_*`: GPU-hours of the week before, and of the weeks after."""
    if held_after_gpu_hours <= 0:
        return AdviceResult(followed=Followed.NOT_RUN_AGAIN, measure_after=None, saved_gpu_hours=0.0)
    if measure_after is None:
        return AdviceResult(followed=Followed.UNKNOWN, measure_after=None, saved_gpu_hours=0.0)
    if measure_after > measure_before * settings.followed_ratio:
        return AdviceResult(followed=Followed.NOT_FOLLOWED, measure_after=measure_after, saved_gpu_hours=0.0)
    gone = 1.0 if measure_before <= 0 else 1 - measure_after / measure_before
    gained_ratio = 0.0 if held_before_gpu_hours <= 0 else min(1.0, expected_gpu_hours / held_before_gpu_hours)
    return AdviceResult(
        followed=Followed.FOLLOWED,
        measure_after=measure_after,
        saved_gpu_hours=min(held_after_gpu_hours, held_after_gpu_hours * gained_ratio * gone),
    )
