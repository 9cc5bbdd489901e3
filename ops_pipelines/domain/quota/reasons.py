"""Why a quota changed or did not, in words and numbers for the team's lead, and what would be without that. Pure."""

from collections.abc import Sequence

from ops_pipelines.domain.quota.queue_chance import QueueChance
from ops_pipelines.domain.quota.rebalance import QuotaLine, Rebalanced

_SAME = 0.05
"""GPUs: less than that is told as no change."""
_HOURS = 24


def reason_of(line: QuotaLine, *, of: Rebalanced) -> str:
    """Return why this line is what it is, in one sentence or two."""
    change = line.after - line.before
    if abs(change) < _SAME:
        return _why_kept(line, of)
    if change > 0:
        return _why_more(line)
    return _why_less(line, of)


def counterfactual_of(line: QuotaLine, *, chance: QueueChance) -> str:
    """Return what the team is expected to miss in a day with its new quota, and what it would with the old one."""
    new, old = (_HOURS * chance.unserved(quota) for quota in (line.after, line.before))
    if abs(line.after - line.before) < _SAME:
        return f"expected to wait: {_gpu_hours(new)} a day"
    return f"expected to wait: {_gpu_hours(new)} a day; without the change {_gpu_hours(old)}"


def _why_more(line: QuotaLine) -> str:
    before, after = _share(line.wanted_before), _share(line.wanted_after)
    if line.before < line.terms.guarantee - _SAME and line.after <= line.terms.guarantee + _SAME:
        return f"raised to its guarantee of {_gpus(line.terms.guarantee)}"
    if not line.wanted_before:
        return f"{_gpus(line.after - line.before)} that no team is expected to want, shared out by weight"
    return f"it wants more than {_gpus(line.before)} in {before} of the time; more than {_gpus(line.after)} in {after}"


def _why_less(line: QuotaLine, of: Rebalanced) -> str:
    wants = f"it wants more than {_gpus(line.after)} in {_share(line.wanted_after)} of the time"
    if _total_before(of) > of.supply + _SAME:
        return f"nodes are lost: {_gpus(of.supply)} are healthy; {wants}, and what is least wanted is taken first"
    kept = ""
    if line.after <= line.floor + _SAME:
        ran = line.floor > line.terms.guarantee + _SAME
        kept = f"; it keeps {'what ran in the last hour' if ran else 'its guarantee'}"
    return f"{wants}, and others queue more often{kept}"


def _why_kept(line: QuotaLine, of: Rebalanced) -> str:
    wants = f"it wants more than {_gpus(line.before)} in {_share(line.wanted_before)} of the time"
    if line.after >= line.terms.most - _SAME:
        return f"it has the most that was agreed, {_gpus(line.terms.most)}; {wants}"
    if line.after <= line.floor + _SAME and not line.wanted_before:
        ran = line.floor > line.terms.guarantee + _SAME
        return f"it keeps {'what ran in the last hour' if ran else 'its guarantee'}, {_gpus(line.floor)}; {wants}"
    if not line.is_agreed_too_large and not line.wanted_before:
        return f"{wants}; too few days agree yet that it has too many"
    if of.moved >= of.step_cap - _SAME and line.wanted_before:
        return f"{wants}; the {_gpus(of.step_cap)} that may move in a day went where GPUs are wanted more"
    return f"{wants}; no move gains enough"


def headline_of(of: Rebalanced) -> str:
    """Return what came of the day in one sentence."""
    changed = [line for line in of.lines if abs(line.after - line.before) >= _SAME]
    if not changed:
        return "no quota changes"
    return (
        f"{_gpus(of.moved)} of {_gpus(of.supply)} move ({_gpus(of.step_cap)} may in a day): "
        f"{_named([line for line in changed if line.after > line.before], 'more')}; "
        f"{_named([line for line in changed if line.after < line.before], 'less')}"
    )


def _named(lines: Sequence[QuotaLine], word: str) -> str:
    if not lines:
        return f"nobody gets {word}"
    ordered = sorted(lines, key=lambda line: (-abs(line.after - line.before), line.team))
    return f"{word} for " + ", ".join(f"{line.team} ({line.after - line.before:+.3g})" for line in ordered)


def _total_before(of: Rebalanced) -> float:
    return sum(line.before for line in of.lines)


def _gpus(amount: float) -> str:
    return f"{amount:.4g} GPU{'' if amount == 1 else 's'}"


def _gpu_hours(amount: float) -> str:
    return f"{amount:.3g} GPU-hours"


def _share(ratio: float) -> str:
    return "none" if not ratio else f"{max(1, round(100 * ratio))} %"
