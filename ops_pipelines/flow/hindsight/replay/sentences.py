"""What changes, for whom, in a few sentences: for whoever decides on a policy and reads no tables."""

from collections import Counter
from collections.abc import Sequence

from ops_pipelines.core.action import Verb
from ops_pipelines.flow.hindsight.replay.result import ComparedAct, Difference, Replay

_TEAMS_NAMED = 3


def sentences_of(found: Replay) -> tuple[str, ...]:
    """Return five sentences: the acts, the jobs of which teams, the operators, the guardrails, what was learned."""
    return (
        _on_acts(found),
        _on_jobs(found),
        _on_operators(found),
        _on_guardrails(found),
        _on_lessons(found),
    )


def proof_sentence(found: Replay) -> str:
    """Return how far the record itself could be reproduced: what the comparison rests on."""
    again = found.reproduction
    if not again.decision_count:
        return "The ledger holds no decision of this time; nothing could be reproduced."
    left = again.decision_count - again.same_count
    if not left:
        return f"All {again.decision_count} recorded decisions came out the same again under the rules of then."
    reasons = []
    if again.without_rules_count:
        reasons.append(f"{again.without_rules_count} whose rules were not kept")
    if again.unreadable_count:
        reasons.append(f"{again.unreadable_count} unreadable lines or snapshots")
    reason = f" ({', '.join(reasons)})" if reasons else ""
    return (
        f"{again.same_count} of {again.decision_count} recorded decisions came out the same again under the rules of "
        f"then; {left} did not, or could not be tried{reason}."
    )


def _on_acts(found: Replay) -> str:
    total = len(found.acts)
    if not total:
        return "Neither policy would have done anything in this time."
    same = found.count(Difference.SAME)
    if same == total:
        return f"Nothing changes: both policies do the same {_counted(total, 'act')}."
    counterfactual = sum(act.is_counterfactual for act in found.acts)
    followed = (
        f"{counterfactual} {'follows' if counterfactual == 1 else 'follow'} an earlier difference on the same node"
    )
    mark = f"; {followed}, where history would have gone otherwise (counterfactual)" if counterfactual else ""
    return (
        f"Of {_counted(total, 'act')}, {same} stay the same, {found.count(Difference.ONLY_THEN)} would no longer be "
        f"done, {found.count(Difference.ONLY_NEW)} would be new, and {found.count(Difference.OTHER_MOMENT)} would come "
        f"at another moment{mark}."
    )


def _on_jobs(found: Replay) -> str:
    then, new = _interruptions(found, "plan_then"), _interruptions(found, "plan_new")
    unknown = (
        f" (without jobs whose loss nobody knows: {found.then.unknown_loss_count} → {found.new.unknown_loss_count})"
        if found.then.unknown_loss_count or found.new.unknown_loss_count
        else ""
    )
    teams = sorted(
        {team for team in then | new if then[team] != new[team]}, key=lambda team: (-abs(new[team] - then[team]), team)
    )
    named = ", ".join(f"{team or 'unknown team'} {then[team]} → {new[team]}" for team in teams[:_TEAMS_NAMED])
    more = f" and {len(teams) - _TEAMS_NAMED} more" if len(teams) > _TEAMS_NAMED else ""
    who = f"by team: {named}{more}" if teams else "no team sees a difference"
    return (
        f"Jobs interrupted: {then.total()} → {new.total()}; {who}; GPU-hours expected to be lost by our own acts: "
        f"{found.then.lost_gpu_hours:.2f} → {found.new.lost_gpu_hours:.2f}{unknown}."
    )


def _interruptions(found: Replay, side: str) -> Counter[str]:
    return Counter(act.team for act in found.acts if act.verb is Verb.HOLD and getattr(act, side) is not None)


def _on_operators(found: Replay) -> str:
    then, new = found.then, found.new
    return (
        f"For operators: pages {then.page_count} → {new.page_count}, plans that ask for a yes {then.approval_count} → "
        f"{new.approval_count}, messages to job owners {then.owner_message_count} → {new.owner_message_count}."
    )


def _on_guardrails(found: Replay) -> str:
    names = sorted({*found.then.refusals, *found.new.refusals})
    changed = [
        f"{name} {found.then.refusals.get(name, 0)} → {found.new.refusals.get(name, 0)}"
        for name in names
        if found.then.refusals.get(name, 0) != found.new.refusals.get(name, 0)
    ]
    if not changed:
        return "Each guardrail holds back as many incidents under the new policy as it did."
    return f"Incidents held back at least once, by guardrail: {', '.join(changed)}."


def _on_lessons(found: Replay) -> str:
    judged = [lesson for lesson in found.lessons if lesson.verdict.value != "unknown"]
    if not judged:
        return (
            f"Of {_counted(len(found.lessons), 'incident')} nothing was learned later that would tell real ones from "
            "false alarms."
        )
    return (
        f"Of {_counted(len(found.lessons), 'incident')}, {len(judged)} {'was' if len(judged) == 1 else 'were'} found "
        f"real or false later: false alarms acted on {found.then.false_count} → {found.new.false_count}, real ones on "
        f"which nothing was begun {found.then.missed_count} → {found.new.missed_count}."
    )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def differing(found: Replay) -> Sequence[ComparedAct]:
    """Return the acts that are not the same on both sides, by time."""
    return tuple(act for act in found.acts if act.difference is not Difference.SAME)
