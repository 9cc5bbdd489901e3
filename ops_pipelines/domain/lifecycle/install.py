"""One installation on one node: how it is ordered, from a release and what the node ran before, and how it is reported.

What it does on the machine is the site's; when it is ordered is `engine`'s.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum

from ops_pipelines.domain.identity import ActionKey, NodeName
from ops_pipelines.domain.lifecycle.release import Change, Component, Release
from ops_pipelines.domain.lifecycle.rollout import Direction, RolloutNode
from ops_pipelines.domain.lifecycle.way import wanted_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOrder:
    """One step of a release on one node: all of it or nothing."""

    changes: tuple[Change, ...]
    """Of one step, in their order; backwards on the way back."""
    direction: Direction
    versions: Mapping[Component, str]
    """What each component is to run afterwards: the release's version, or the one that the node had."""


class InstallState(Enum):
    RUNNING = "running"
    WAITING = "waiting"
    """A part of it is done; what is left begins when it is asked for again under the same key."""
    INSTALLED = "installed"
    """What was ordered lies on the node (or is staged in its BMC); it need not run yet."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """How far an installation is. What a BMC says of its own progress is shown, and never believed."""

    key: ActionKey
    node: NodeName
    state: InstallState
    said: str
    """What the command or the BMC said last. Untrusted: never reaches a shell or markup."""
    progress_ratio: float | None = None
    changed_at: datetime | None = None


class UnorderableError(ValueError):
    """A step of a release cannot be ordered for a node. The message says what is missing."""


def order_for(release: Release, node: RolloutNode, *, step: int, direction: Direction) -> InstallOrder:
    """Return the order of one step of a release for a node, there or back; `step` counts along that way.

    Raises UnorderableError where the release has no such step, where a part of it cannot go back, and where it is
    not known what the node ran before: half a step is no step.
    """
    is_forward = direction is Direction.FORWARD
    groups = release.steps if is_forward else release.steps[::-1]
    if not 0 <= step < len(groups):
        raise UnorderableError(f"{release.name} has {len(groups)} steps; there is no step {step}")
    changes = groups[step] if is_forward else groups[step][::-1]
    wanted = wanted_versions(replace(node, direction=direction), release)
    unknown = [change.component.value for change in changes if change.component not in wanted]
    if unknown:
        raise UnorderableError(
            f"{', '.join(unknown)} of {node.node} has no way back: it cannot go back, or nobody knows what ran before"
        )
    versions = {change.component: wanted[change.component] for change in changes}
    return InstallOrder(changes=changes, direction=direction, versions=versions)


def step_of(part: str) -> tuple[int, Direction]:
    """Return which step of a release an act is about, and which way: the last two words of what `way` writes."""
    try:
        number, direction = part.split()[-2:]
        return int(number), Direction(direction)
    except ValueError:
        raise UnorderableError(f"{part!r} names no step; expected a number and forward or back") from None
