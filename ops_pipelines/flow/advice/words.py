"""A week's advice in sentences, for pages and the command line. Plain text, unescaped."""

from collections.abc import Sequence

from ops_pipelines.domain.advice.following import Followed
from ops_pipelines.domain.advice.weighing import shown_bytes, shown_hours
from ops_pipelines.flow.advice.report import AdviceReport, FollowedUp

_WORDS = {
    Followed.FOLLOWED: "followed",
    Followed.NOT_FOLLOWED: "not followed",
    Followed.NOT_RUN_AGAIN: "of jobs that did not run again",
    Followed.UNKNOWN: "not known",
}


def sentences(report: AdviceReport, followed: Sequence[FollowedUp]) -> tuple[str, ...]:
    """Return what was found, what it would gain, what was followed, and what is not known."""
    said = [_found(report)]
    if report.chosen:
        said.append(_gains(report))
    if followed:
        counts = [
            f"{number} {_WORDS[each]}"
            for each in Followed
            if (number := sum(one.outcome.followed is each for one in followed))
        ]
        saved = sum(each.outcome.saved_gpu_hours for each in followed)
        said.append(f"Of what was told two weeks ago: {', '.join(counts)}; it saved {shown_hours(saved)}.")
    if report.unknown:
        said.append(f"Not known: {'; '.join(report.unknown)}.")
    return tuple(said)


def _found(report: AdviceReport) -> str:
    if not report.found_count:
        return f"{report.week.name}: nothing was seen that could be done better."
    seen, said, kept = report.found_count, len(report.chosen), len(report.withheld)
    teams = "1 team" if len(report.by_team) == 1 else f"{len(report.by_team)} teams"
    return (
        f"{report.week.name}: {seen} {'thing was' if seen == 1 else 'things were'} seen, "
        f"{said} {'is' if said == 1 else 'are'} said to {teams}, "
        f"{kept} {'is' if kept == 1 else 'are'} withheld, each with its reason."
    )


def _gains(report: AdviceReport) -> str:
    low = sum(each.gain.low_gpu_hours for each in report.chosen)
    expected = sum(each.gain.expected_gpu_hours for each in report.chosen)
    size = sum(each.gain.size_bytes for each in report.chosen)
    freed = f", and {shown_bytes(size)} of storage" if size else ""
    return f"Followed, they would gain {low:,.1f} to {shown_hours(expected)} a week{freed}."
