"""The answer of `replay --json`: counts first, then what they count."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from ops_pipelines.review.replay.replay import proof_sentence, sentences_of
from ops_pipelines.review.replay.result import ComparedAct, Difference, KeyDifference, Lesson, Replay, Stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayView:
    """Field names are the keys of the JSON document."""

    cluster: str
    policy: str
    since: datetime
    until: datetime
    summary: Mapping[str, object]
    sentences: tuple[str, ...]
    policy_differences: tuple[KeyDifference, ...]
    stretches: tuple[Stretch, ...]
    reproduction: Mapping[str, object]
    acts: tuple[Mapping[str, object], ...]
    lessons: tuple[Lesson, ...]
    cautions: tuple[str, ...]


def view_replay(found: Replay) -> ReplayView:
    """Return what is shown of a replay."""
    return ReplayView(
        cluster=found.cluster,
        policy=found.proposed,
        since=found.since,
        until=found.until,
        summary={
            **{each.value: found.count(each) for each in Difference},
            "counterfactual": sum(act.is_counterfactual for act in found.acts),
            "then": asdict(found.then),
            "new": asdict(found.new),
            "understanding_differences": found.understanding_difference_count,
            "plan_differences": found.plan_difference_count,
            "refused_when_due": dict(found.refused_when_due),
            "follow_ups_not_replayed": found.follow_up_count,
            "by_hand": found.by_hand_count,
        },
        sentences=(*sentences_of(found), proof_sentence(found)),
        policy_differences=found.policy_differences,
        stretches=found.stretches,
        reproduction=asdict(found.reproduction),
        acts=tuple(_view_act(act) for act in found.acts),
        lessons=found.lessons,
        cautions=found.cautions,
    )


def _view_act(act: ComparedAct) -> Mapping[str, object]:
    return {**asdict(act), "nodes": sorted(act.nodes)}
