"""What every rule does at its end: advice is said, or withheld for what speaks against it or because it gains little.

And what all rules ask of the evidence. The rules themselves stand by family: `allocation`, `throughput`, `limits`,
`checkpoints`, `storage`.
"""

from collections.abc import Sequence

from ops_pipelines.domain.advice.advice import OF_STORAGE, Advice, AdviceKind, Confidence, Finding, Gain, withhold
from ops_pipelines.domain.advice.work import JobWork
from ops_pipelines.teams.settings import AdviceSettings


def weigh(advice: Advice, settings: AdviceSettings, *, against: Sequence[str | None]) -> Finding:
    """Return the advice, or why it is not given: the first of `against` that holds, else a gain that is too small."""
    for why in against:
        if why is not None:
            return withhold(advice, why)
    if advice.kind in OF_STORAGE:
        if advice.gain.size_bytes < settings.least_gain_bytes:
            return withhold(advice, f"it would free {shown_bytes(advice.gain.size_bytes)}, too little to say")
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


def shown_bytes(size: float) -> str:
    """Return a size in the largest unit that leaves a number above 1."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size:,.0f} B"


def _unmeasured(work: JobWork) -> str | None:
    dark = 1 - work.seen_gpu_hours / work.held_gpu_hours if work.held_gpu_hours > 0 else 0.0
    return f"{dark:.0%} of what they held was not measured" if dark >= 0.1 else None
