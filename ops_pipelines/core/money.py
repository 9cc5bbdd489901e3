"""Money: integer cents of one currency, and how a sum of them is shared out so that the parts add up again.

Prices and shares are whole numbers and fractions, never floats, and not decimals either: a third of a month's price has
no end in decimals, as a fraction it is exact. A number is rounded once, where it becomes cents, and here alone.
"""

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NewType, TypeVar

Cents = NewType("Cents", int)
"""Hundredths of the currency; below 0 for a credit."""
Amount = int | Fraction
Key = TypeVar("Key", bound=str | tuple[str, ...])
"""A name, or several: what ties are broken by."""
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
_HUNDRED = 100


def to_cents(amount: Amount) -> Cents:
    """Return an exact amount of cents as whole ones; a half goes away from 0."""
    doubled = 2 * abs(Fraction(amount)) + 1
    whole = doubled.numerator // (2 * doubled.denominator)
    return Cents(whole if amount >= 0 else -whole)


def share_cents(total: Cents, weights: Mapping[Key, Amount]) -> dict[Key, Cents]:
    """Return the total shared out by weight, in the order of the names; the shares add up to it exactly.

    Largest remainder: everyone gets his share rounded down, and the cents that are left go to those who lost most by
    that, ties to the smaller name. Who has weight 0 gets nothing. Raises ValueError on a weight below 0, and where
    there is something to share and nobody to bear it.
    """
    exact = {name: Fraction(weights[name]) for name in sorted(weights, key=_names)}
    wrong = [name for name, weight in exact.items() if weight < 0]
    if wrong:
        raise ValueError(f"weights below 0 for {wrong}; expected 0 or more")
    sum_of_weights = sum(exact.values(), Fraction(0))
    if sum_of_weights == 0:
        if total:
            raise ValueError(f"{total} cents and nobody to bear them; expected a weight above 0")
        return dict.fromkeys(exact, Cents(0))
    size = abs(total)
    ideal = {name: size * weight / sum_of_weights for name, weight in exact.items()}
    shares = {name: each.numerator // each.denominator for name, each in ideal.items()}
    left = size - sum(shares.values())
    # Sorting is stable and the names are in order already: that is the tie.
    for name in sorted(ideal, key=lambda each: shares[each] - ideal[each])[:left]:
        shares[name] += 1
    sign = 1 if total >= 0 else -1
    return {name: Cents(sign * share) for name, share in shares.items()}


def _names(key: str | tuple[str, ...]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def read_amount(text: str, *, what: str) -> Fraction:
    """Return a price as people write it (`0.1234`) exactly; raise ValueError unless it is a number of 0 or more."""
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{what} is {text!r}; expected a number of 0 or more, such as 0.1234")
    return Fraction(text)


def show_cents(cents: Cents) -> str:
    """Return cents as an amount of the currency: `-12.05`."""
    whole, rest = divmod(abs(cents), _HUNDRED)
    return f"{'-' if cents < 0 else ''}{whole}.{rest:02d}"
