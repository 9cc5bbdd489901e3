"""How often the bounds of a wear-out forecast hold: made-up wear whose true rate and last day are known.

Shown for 30, 60 and 90 daily readings: the share of cases in which a nominal 95 % interval holds the true rate (Theil
and Sen's alone, and widened to what ten stretches say), and in which the day on which the limit was met lay within the
bounds that were reported. Then how often a link with a steady rate of errors is given a date.
Run it with `python -m bench.wear`.
"""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ops_pipelines.diagnose.wear import (
    WEAR_LIMITS,
    Outlook,
    Readings,
    WearLimit,
    forecast,
    theil_sen,
    widen_by_stretches,
)

Steps = Callable[[np.random.Generator, int], NDArray[np.float64]]
WEARS: Mapping[str, tuple[float, Steps]] = {
    "remaps, Poisson 0.3 a day": (0.3, lambda random, days: random.poisson(0.3, days).astype(np.float64)),
    "remaps, Poisson 3 a day": (3.0, lambda random, days: random.poisson(3.0, days).astype(np.float64)),
    "wear, log-normal days": (math.exp(0.5), lambda random, days: random.lognormal(0.0, 1.0, days)),
    "wear, nearly even days": (0.4, lambda random, days: random.normal(0.4, 0.05, days)),
}
_LIFE_DAYS, _ALL_DAYS = 250, 1500


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 0."""
    parser = argparse.ArgumentParser(description="How often the bounds of wear-out forecasts hold.")
    parser.add_argument("--trials", type=int, default=300, help="made-up parts for each row")
    options = parser.parse_args(arguments)
    table = Table(title=f"Share of cases that hold, {options.trials} each")
    for heading in ("wear", "readings", "Sen's interval", "ours", "date reported", "date within bounds"):
        table.add_column(heading, justify="left" if heading == "wear" else "right")
    for name in WEARS:
        for days in (30, 60, 90):
            table.add_row(name, str(days), *measure(name, days=days, trials=options.trials))
    console = Console()
    console.print(table)
    told = count_false_dates(trials=options.trials)
    console.print(f"{told} of {options.trials} links with a steady rate of errors (Poisson, 60 days) got a date")
    return 0


def measure(name: str, *, days: int, trials: int) -> tuple[str, str, str, str]:
    """Return the shares of one row, as text."""
    rate, steps = WEARS[name]
    random = np.random.default_rng(days)
    at: NDArray[np.float64] = np.arange(_ALL_DAYS, dtype=np.float64) * 86_400
    limit = WearLimit(
        column="made_up", table="made_up", limit=rate * _LIFE_DAYS, is_rate=False, what="", unit="a", source="made up"
    )
    sen = ours = told = held = 0
    for _ in range(trials):
        values = np.cumsum(steps(random, _ALL_DAYS))
        slope = theil_sen(at[:days], values[:days])
        wide = widen_by_stretches(slope, at[:days], values[:days])
        sen += slope.low <= rate / 86_400 <= slope.high
        ours += wide.low <= rate / 86_400 <= wide.high
        now = datetime.fromtimestamp(at[days - 1], tz=UTC)
        found = forecast(Readings(part="made up", at_seconds=at, values=values), limit, now=now)
        if found.outlook is Outlook.WEARS_OUT and found.earliest_at is not None:
            met = float(at[int(np.argmax(values >= limit.limit))])
            latest = math.inf if found.latest_at is None else found.latest_at.timestamp()
            told += 1
            held += found.earliest_at.timestamp() <= met <= latest
    return f"{sen / trials:.0%}", f"{ours / trials:.0%}", f"{told / trials:.0%}", f"{held / max(1, told):.0%}"


def count_false_dates(*, trials: int) -> int:
    """Return how many links without a trend are given a date."""
    random = np.random.default_rng(7)
    limit = next(each for each in WEAR_LIMITS if each.is_rate)
    at: NDArray[np.float64] = np.arange(61, dtype=np.float64) * 86_400
    now = datetime.fromtimestamp(at[-1], tz=UTC)
    counters = [np.concatenate(([0.0], np.cumsum(random.poisson(20.0, 60) * 24.0))) for _ in range(trials)]
    found = [forecast(Readings(part="made up", at_seconds=at, values=each), limit, now=now) for each in counters]
    return sum(each.outlook is Outlook.WEARS_OUT for each in found)


if __name__ == "__main__":
    sys.exit(main())
