"""Probabilities and shares in words: whole percent, and more digits where a limit is near."""

from ops_pipelines.domain.capacity.outlook import LEVELS

_NEAR = 0.01


def percent(ratio: float) -> str:
    """Return a share as percent; what is neither nothing nor all is not called so."""
    if 0 < ratio <= 0.005:
        return "below 1 %"
    if 0.995 <= ratio < 1:
        return "above 99 %"
    return f"{100 * ratio:.0f} %"


def chance_of_short(probability: float) -> str:
    """Return how likely a week is short; beyond the outermost levels of a peak nothing is told apart."""
    if probability < LEVELS[0]:
        return f"at most {percent(LEVELS[0])}"
    if probability > LEVELS[-1]:
        return f"at least {percent(LEVELS[-1])}"
    return percent(probability)


def against(ratio: float, limit: float) -> str:
    """Return a probability and the limit it is held against, such as `with 10.3 %, limit 10 %`.

    The limit is told as people wrote it.
    """
    is_near = abs(ratio - limit) < _NEAR or not _NEAR <= limit <= 1 - _NEAR
    told = f"{100 * ratio:.4g} %" if is_near else percent(ratio)
    return f"with {told}, limit {100 * limit:g} %"
