"""A week's advice as the values that JSON shows; nothing is measured or judged here."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ops_pipelines.efficiency.kept import AdviceReport


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceLine:
    team: str
    kind: str
    subject: str
    evidence: tuple[str, ...]
    counter_evidence: tuple[str, ...]
    gain_low_gpu_hours: float
    gain_gpu_hours: float
    gain_bytes: int
    gain_cents: int | None
    what_to_do: str
    confidence: str
    measure: float
    held_gpu_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceView:
    cluster: str
    week: str
    currency: str | None
    advice: tuple[AdviceLine, ...]
    withheld: tuple[Mapping[str, str], ...]
    not_known: tuple[str, ...]


def of_team(report: AdviceReport, team: str) -> AdviceReport:
    """Return what is about one team alone; of a team that nothing is about, nothing."""
    return replace(
        report,
        chosen=tuple(each for each in report.chosen if each.team == team),
        withheld=tuple(each for each in report.withheld if each.team == team),
    )


def view_advice(report: AdviceReport, *, cluster: str) -> AdviceView:
    """Return the document of `ops-pipelines advice --json`."""
    return AdviceView(
        cluster=cluster,
        week=report.week.name,
        currency=report.currency,
        advice=tuple(
            AdviceLine(
                team=each.team,
                kind=each.kind.value,
                subject=each.subject,
                evidence=each.evidence,
                counter_evidence=each.counter_evidence,
                gain_low_gpu_hours=each.gain.low_gpu_hours,
                gain_gpu_hours=each.gain.expected_gpu_hours,
                gain_bytes=each.gain.size_bytes,
                gain_cents=each.gain_cents,
                what_to_do=each.what_to_do,
                confidence=each.confidence.value,
                measure=each.measure,
                held_gpu_hours=each.held_gpu_hours,
            )
            for each in report.chosen
        ),
        withheld=tuple(
            {"team": each.team, "kind": each.kind.value, "subject": each.subject, "why": each.why}
            for each in report.withheld
        ),
        not_known=report.unknown,
    )
