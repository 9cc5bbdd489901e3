"""Spans, GPU-hours and lists of names as a report says them: short, and never more exact than is known."""

from collections.abc import Sequence

_SHOWN = 4


def span_words(seconds: float) -> str:
    """Return a span in its two largest units, as `2 h 5 min`."""
    whole = round(seconds)
    if whole < 0:
        return f"-{span_words(-seconds)}"
    parts = [(whole // 86_400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number) or "0 s"


def gpu_hours_words(hours: float) -> str:
    """Return GPU-hours with as many digits as a person compares: `1,204`, `37.5`, `0.03`, `0`."""
    size = abs(hours)
    if size >= 100:
        return f"{hours:,.0f}"
    if size >= 1:
        return f"{hours:.1f}"
    return f"{hours:.2f}" if size >= 0.005 else ("under 0.01" if hours > 0 else "0")


def names_words(names: Sequence[str], *, at_most: int = _SHOWN) -> str:
    """Return the first few names, and how many more there are."""
    rest = len(names) - at_most
    return ", ".join(names[:at_most]) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, what: str) -> str:
    """Return `1 job`, `2 jobs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"
