"""Projects that begin or end on a day: what the past cannot tell of tomorrow. Pure.

A project that went on yesterday is in the remembered hours already, and is no news.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.teams.projects import Project


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """What changes on one day, for one type of GPU."""

    expected: Mapping[TeamName, float] = field(default_factory=dict)
    """GPUs of what goes on today and did not yesterday, each times how likely it comes about."""
    ended: Mapping[TeamName, float] = field(default_factory=dict)
    """GPUs of what went on yesterday and does not today, counted in the same way."""
    words: Mapping[TeamName, str] = field(default_factory=dict)
    """The projects behind both, for the reason of a quota."""


def launches_on(day: date, projects: Sequence[Project], *, gpu_type: GpuType) -> Launches:
    """Return what begins and what ends on this local day."""
    yesterday = day - timedelta(days=1)
    expected: dict[TeamName, float] = defaultdict(float)
    ended: dict[TeamName, float] = defaultdict(float)
    words: dict[TeamName, list[str]] = defaultdict(list)
    for each in sorted(projects, key=lambda project: (project.team, project.name)):
        if each.gpu_type != gpu_type or each.is_on(day) == each.is_on(yesterday):
            continue
        if each.is_on(day):
            expected[each.team] += each.expected_gpus(day)
            likely = "" if each.probability == 1 else f", {each.probability:.0%} likely"
            words[each.team].append(f"project {each.name} begins ({each.gpus:g} GPUs{likely})")
        else:
            ended[each.team] += each.expected_gpus(yesterday)
            words[each.team].append(f"project {each.name} ended ({each.gpus:g} GPUs)")
    return Launches(
        expected=dict(expected), ended=dict(ended), words={team: "; ".join(said) for team, said in words.items()}
    )
