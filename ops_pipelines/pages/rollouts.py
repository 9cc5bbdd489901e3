"""The page that lists rollouts, under way and over, and the releases that lie ready to become one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import RolloutId
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import FINAL, OF_PEOPLE, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.report.document import clipped
from ops_pipelines.report.html import render

MOST_ROLLOUTS, MOST_RELEASES = 30, 50
"""More than these nobody reads; `ops-pipelines rollout history` and the directory have them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LyingRelease:
    """One file of the directory of releases."""

    name: str
    release: Release | None
    """None: it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    rollout: Rollout
    state: str
    mood: str
    nodes: str
    why: str


def write_rollouts(
    *,
    cluster: str,
    rollouts: Sequence[Rollout],
    nodes: Mapping[RolloutId, Sequence[RolloutNode]],
    releases: Sequence[LyingRelease],
    policy: Policy,
    now: datetime,
) -> str:
    """Return the page: of `rollouts` the newest first, with the nodes of those that `nodes` names."""
    newest = list(reversed(rollouts))
    return render(
        "rollouts.html",
        {
            "cluster": cluster,
            "rows": [_row(each, nodes.get(each.rollout, ())) for each in newest[:MOST_ROLLOUTS]],
            "left_out_count": max(0, len(newest) - MOST_ROLLOUTS),
            "releases": releases[:MOST_RELEASES],
            "example": next((each.name for each in releases if each.release is not None), None),
            "left_out_release_count": max(0, len(releases) - MOST_RELEASES),
            "why_not": why_nothing_starts(policy),
            "now": now,
        },
    )


def why_nothing_starts(policy: Policy) -> str:
    """Return why no rollout can be begun under this policy; empty if one can."""
    if policy.mode is Mode.OBSERVE:
        return "policy.yaml says mode: observe: a plan is shown, and nothing starts."
    if policy.consent_to(ActionClass.UPDATE) is Consent.FORBID:
        return "policy.yaml says consents.update: forbid: a plan is shown, and nothing starts."
    return ""


def mood_of(state: RolloutState) -> str:
    """Return the class of base.html for a state: bad, warn or good; empty for neither."""
    if state in (RolloutState.STUCK, RolloutState.GOING_BACK):
        return "bad"
    if state in OF_PEOPLE or state is RolloutState.WENT_BACK:
        return "warn"
    return "good" if state is RolloutState.DONE else ""


def stage_counts(nodes: Sequence[RolloutNode]) -> str:
    """Return how many nodes stand where, in the order of their way."""
    counts = Counter(each.stage for each in nodes)
    return ", ".join(f"{counts[stage]} {stage.value}" for stage in NodeStage if counts[stage])


def _row(rollout: Rollout, nodes: Sequence[RolloutNode]) -> _Row:
    why = rollout.stopped_because if rollout.state in FINAL and rollout.stopped_because else rollout.reason
    return _Row(
        rollout=rollout,
        state=rollout.state.value.replace("_", " "),
        mood=mood_of(rollout.state),
        nodes=stage_counts(nodes),
        why=clipped(why),
    )
