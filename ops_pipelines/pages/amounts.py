"""Numbers as the pages of teams show them: GPUs, hours, money, signed changes. A dash is what nobody knows."""

import math

from ops_pipelines.core.money import Cents

DASH = "-"
_MINUS = "\u2212"


def gpus(count: float | None) -> str:
    """Return a number of GPUs: whole ones without a decimal."""
    if count is None:
        return DASH
    if not math.isfinite(count):
        return "no end"
    rounded = round(count, 1)
    return f"{rounded:,.0f}" if rounded == int(rounded) else f"{rounded:,.1f}"


def hours(count: float | None) -> str:
    """Return GPU-hours: small ones with a decimal, large ones whole."""
    if count is None:
        return DASH
    return f"{count:,.1f}" if abs(count) < 1_000 else f"{count:,.0f}"


def signed(count: float) -> str:
    """Return a change with its sign; `0` for none."""
    shown = gpus(abs(count))
    return shown if shown == "0" else f"{'+' if count > 0 else _MINUS}{shown}"


def money(cents: Cents | int | None) -> str:
    """Return cents as an amount with thousands apart, exactly."""
    if cents is None:
        return DASH
    whole, rest = divmod(abs(cents), 100)
    return f"{_MINUS if cents < 0 else ''}{whole:,}.{rest:02d}"


def span(seconds: float | None) -> str:
    """Return a wait: seconds below a minute, minutes below two hours, then hours, then days."""
    if seconds is None:
        return DASH
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3_600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3_600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:.1f} d"


def part_of(value: float, whole: float) -> float:
    """Return where a value stands between 0 and a whole, as percent that a picture can take."""
    return 0.0 if whole <= 0 else round(min(100.0, max(0.0, 100.0 * value / whole)), 2)
