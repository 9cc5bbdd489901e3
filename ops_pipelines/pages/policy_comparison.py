"""The page that lays two policies side by side over recorded history: attached to every proposal of a policy.

Shows what `review.replay` found; decides nothing.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, cast

from ops_pipelines.core.action import Verb
from ops_pipelines.report.html import drawn, render
from ops_pipelines.review.replay import differing, proof_sentence, sentences_of
from ops_pipelines.review.replay_result import Assessment, ComparedAct, Difference, Replay

if TYPE_CHECKING:
    from ops_pipelines.report.charts import Mark

T = TypeVar("T")

_TEXT_AT_MOST = 600
SHOWN_ROWS = 300
"""More rows than this nobody reads; `replay --json` has them all."""
_WORDS: Mapping[Difference, str] = {
    Difference.SAME: "same",
    Difference.ONLY_THEN: "no longer done",
    Difference.ONLY_NEW: "new",
    Difference.OTHER_MOMENT: "other moment",
}
_CLASSES: Mapping[Difference, str] = {
    Difference.SAME: "soft",
    Difference.ONLY_THEN: "bad",
    Difference.ONLY_NEW: "good",
    Difference.OTHER_MOMENT: "warn",
}


def write_policy_comparison(found: Replay, *, now: datetime) -> str:
    """Return the whole page. Words of others come out on one line, printable, and cut where they do not end."""
    found = _plain(found)
    groups = _groups(differing(found))
    return render(
        "policy_comparison.html",
        {
            "found": found,
            "now": now,
            "sentences": sentences_of(found),
            "proof": proof_sentence(found),
            "is_proven": not found.reproduction.different and not found.reproduction.unreadable_count,
            "tiles": _tiles(found),
            "picture": drawn(_picture(found)),
            "rows": [_row(acts) for acts in groups[:SHOWN_ROWS]],
            "left_out_count": sum(map(len, groups[SHOWN_ROWS:])),
            "counts": _counts(found),
            "guardrails": _guardrails(found),
            "lessons": [each for each in found.lessons if each.verdict is not Assessment.UNKNOWN],
            "unknown_lessons": _count_alike(found),
        },
    )


def _tiles(found: Replay) -> tuple[tuple[str, str], ...]:
    counts = [(_WORDS[each], str(found.count(each))) for each in Difference]
    return (
        *counts,
        ("GPU-hours at stake", f"{found.then.lost_gpu_hours:.1f} → {found.new.lost_gpu_hours:.1f}"),
        ("pages", f"{found.then.page_count} → {found.new.page_count}"),
    )


def _counts(found: Replay) -> tuple[tuple[str, str, str], ...]:
    then, new = found.then, found.new
    return (
        ("acts started", str(then.act_count), str(new.act_count)),
        ("of them on nodes and jobs", str(then.node_act_count), str(new.node_act_count)),
        ("plans started", str(then.plan_count), str(new.plan_count)),
        ("GPU-hours expected to be lost by them", f"{then.lost_gpu_hours:.2f}", f"{new.lost_gpu_hours:.2f}"),
        ("jobs of unknown loss", str(then.unknown_loss_count), str(new.unknown_loss_count)),
        ("pages to people", str(then.page_count), str(new.page_count)),
        ("messages to job owners", str(then.owner_message_count), str(new.owner_message_count)),
        ("plans that ask for approval", str(then.approval_count), str(new.approval_count)),
        ("false alarms acted on", str(then.false_count), str(new.false_count)),
        ("real incidents missed", str(then.missed_count), str(new.missed_count)),
    )


def _guardrails(found: Replay) -> tuple[tuple[str, int, int, int], ...]:
    names = sorted({*found.then.refusals, *found.new.refusals, *found.refused_when_due})
    return tuple(
        (
            name,
            found.then.refusals.get(name, 0),
            found.new.refusals.get(name, 0),
            found.refused_when_due.get(name, 0),
        )
        for name in names
    )


def _groups(acts: Sequence[ComparedAct]) -> list[Sequence[ComparedAct]]:
    """Return the acts of one plan that differ in the same way together: nobody reads nine rows about one node."""
    groups: dict[Hashable, list[ComparedAct]] = {}
    for act in acts:
        alike = (act.source, act.incident, act.at, act.difference, act.why, act.is_counterfactual)
        groups.setdefault(alike, []).append(act)
    return list(groups.values())


def _row(acts: Sequence[ComparedAct]) -> Mapping[str, object]:
    first = acts[0]
    losses = [act.lost_gpu_hours for act in acts if act.lost_gpu_hours is not None]
    where = sorted(first.nodes)
    return {
        "at": first.at,
        "words": _WORDS[first.difference],
        "style": _CLASSES[first.difference],
        "incident": first.incident,
        "where": ", ".join(where[:4]) + (f" and {len(where) - 4} more" if len(where) > 4 else ""),
        "acts": [_act_words(act) for act in acts],
        "cause": first.cause,
        "why": first.why,
        "outcome": _outcome(acts),
        "lost": f"{sum(losses):.2f}" if losses else "",
        "source": first.source.value,
        "is_counterfactual": first.is_counterfactual,
    }


def _act_words(act: ComparedAct) -> str:
    verb = act.verb.value.replace("_", " ")
    return verb if act.verb is Verb.PAGE_HUMAN else f"{verb} {act.target}"


def _outcome(acts: Sequence[ComparedAct]) -> str:
    outcomes = Counter("not started" if act.done_at is None else act.outcome or "under way" for act in acts)
    return ", ".join(word if len(acts) == 1 else f"{count} {word}" for word, count in sorted(outcomes.items()))


def _count_alike(found: Replay) -> tuple[tuple[str, int], ...]:
    alike: dict[str, int] = {}
    for lesson in found.lessons:
        if lesson.verdict is Assessment.UNKNOWN:
            alike[lesson.how] = alike.get(lesson.how, 0) + 1
    return tuple(sorted(alike.items(), key=lambda item: (-item[1], item[0])))


def _picture(found: Replay) -> str:
    from ops_pipelines.report.charts import policy_columns

    return policy_columns([_mark(act) for act in found.acts], since=found.since, until=found.until)


def _mark(act: ComparedAct) -> "Mark":
    from ops_pipelines.report.charts import Mark, Part

    return Mark(
        at=act.at,
        part=Part[act.difference.name],
        is_above=act.plan_new is not None,
        is_below=act.plan_then is not None,
    )


def _plain(value: T) -> T:
    """Return a value with each of its texts on one line, printable and not endless."""
    plain: object = value
    if isinstance(value, str) and not isinstance(value, Enum):
        flat = " ".join("".join(char if char.isprintable() else " " for char in value).split())
        plain = flat if len(flat) <= _TEXT_AT_MOST else f"{flat[: _TEXT_AT_MOST - 1]}…"
    elif is_dataclass(value) and not isinstance(value, type):
        plain = replace(value, **{field.name: _plain(getattr(value, field.name)) for field in fields(value)})
    elif isinstance(value, tuple):
        plain = tuple(_plain(each) for each in value)
    return cast("T", plain)
