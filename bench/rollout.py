"""How our rollouts meet good and bad releases, beside peers in the same worlds; exits 1 where a promise is not kept.

Prints the tables of docs/ROLLOUT_BENCH.md. Run it with `python -m bench.rollout`: half an hour on two cores; a look at
less with `--seeds 40 --good-seeds 100`.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from ops_pipelines_lab.whatif.lifecycle.scenario import (
    Scenario,
    Site,
    altered,
    policy_of,
    read_scenarios,
    read_site,
)
from ops_pipelines_lab.whatif.lifecycle.trials import OURS, Summary, Trial, play_trials, summarise, ways_of

COST_GPU_HOURS = 3.2
"""Of an upgraded node on a good release; the upgrade itself is 2.67."""
FALSE_STOP_RATIO = 1 / 500
TOUCHED_COUNT = 30
DECIDED_DAYS = 7.0
BOUNDED_RATIO = 0.9
"""So many releases that do less harm than is claimed are stopped before the share of the nodes that bounds it."""
ALL_SECONDS = 30 * 60.0
_MOST_REASONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One scenario, played by everybody."""

    scenario: Scenario
    trials: Mapping[str, Sequence[Trial]]

    def summary(self, way: str = OURS) -> Summary:
        return summarise(self.scenario, self.trials[way])


def bounded(site: Site) -> Mapping[str, tuple[Scenario, float]]:
    """Return releases that do less harm than is claimed, each with the share of the nodes that it may reach."""
    good = read_scenarios()["good"]

    def worse(*, failures: float | None = None, slower: float | None = None) -> Scenario:
        return altered(good, site, failure_factor=failures, slowdown_ratio=slower)

    return {
        "failures x5": (worse(failures=5.0), 0.1),
        "failures x3": (worse(failures=3.0), 0.3),
        "steps 3 % slower": (worse(slower=0.03), 0.1),
    }


def within(result: Result, share: float) -> float:
    """Return how many of our rollouts the gate itself stopped before more than this share of the nodes was touched."""
    ours = result.trials[OURS]
    return sum(each.is_stopped and not each.has_asked and each.touched_ratio <= share for each in ours) / len(ours)


def table_of_bounded(results: Mapping[str, tuple[Result, float]]) -> str:
    """Return how soon releases are stopped that do less harm than is claimed."""
    rows = []
    for name, (result, share) in results.items():
        ours = result.summary()
        cells = (
            f"{within(result, share):.1%}",
            f"{ours.asked_ratio:.1%}",
            f"{ours.stopped_ratio:.1%}",
            f"{ours.days:.1f}",
        )
        rows.append((name, f"{ours.seed_count}", f"{share:.0%}", *cells))
    heading = ("release", "seeds", "may reach", "stopped before", "asked", "stopped or asked", "days")
    return _table(heading, rows)


def promises_broken(result: Result, *, site: Site) -> Iterator[str]:
    """Say what a scenario was to show and did not."""
    ours, name = result.summary(), result.scenario.name
    if any(not (each.is_done or each.is_stopped) for each in result.trials[OURS]):
        yield f"{name}: a rollout came to no end"
    if result.scenario.is_good:
        if ours.gpu_hours_per_upgraded_node is None or ours.gpu_hours_per_upgraded_node > COST_GPU_HOURS:
            yield f"{name}: {ours.gpu_hours_per_upgraded_node} GPU-hours a node; promised are {COST_GPU_HOURS:g}"
        if ours.stopped_ratio > FALSE_STOP_RATIO:
            yield f"{name}: {ours.stopped_ratio:.2%} stopped or asked about; promised are {FALSE_STOP_RATIO:.2%}"
        return
    if ours.stopped_ratio < 1:
        yield f"{name}: {1 - ours.stopped_ratio:.1%} were never stopped"
    if ours.rolled_back_ratio is None or ours.rolled_back_ratio < 1:
        yield f"{name}: not everyone that stopped rolled back ({ours.rolled_back_ratio})"
    if (ours.touched_ratio_when_stopped or 1.0) * site.node_count > TOUCHED_COUNT:
        yield f"{name}: {ours.touched_ratio_when_stopped:.1%} of the nodes touched; promised are {TOUCHED_COUNT} nodes"
    if ours.deciding_days > DECIDED_DAYS:
        yield f"{name}: {ours.deciding_days} days to decide; promised are {DECIDED_DAYS:g}"


def table_of_ours(results: Sequence[Result], *, site: Site) -> str:
    """Return how our rollouts came out, a row a scenario."""
    rows = [
        (
            result.scenario.name,
            f"{ours.seed_count}",
            _cost(ours),
            _number(ours.touched_ratio_when_stopped, site.node_count),
            f"{max(_touched(result, site), default=0)}" if not result.scenario.is_good else "",
            f"{ours.stopped_ratio:.1%}",
            _share(ours.rolled_back_ratio),
            f"{ours.deciding_days:.1f}",
            "" if ours.decided_days is None else f"{ours.decided_days:.1f}",
            f"{ours.days:.1f}",
        )
        for result in results
        for ours in (result.summary(),)
    ]
    return _table(
        (
            "release",
            "seeds",
            "GPU-hours a node",
            "touched, 95 %",
            "most",
            "stopped",
            "rolled back",
            "canaries watched, days, 95 %",
            "decided after, days, 95 %",
            "days",
        ),
        rows,
    )


def table_of_peers(results: Sequence[Result], *, site: Site) -> str:
    """Return what everybody touches before they stop, and what a good release costs them."""
    ways = list(results[0].trials)
    rows = []
    for way in ways:
        cells = []
        for result in results:
            found = result.summary(way)
            if result.scenario.is_good:
                cells.append(_cost(found))
            else:
                back = found.rolled_back_ratio or 0.0
                cells.append(
                    _number(found.touched_ratio_when_stopped, site.node_count) + (", back" if back == 1 else "")
                )
        rows.append((way, str(len(results[0].trials[way])), *cells))
    return _table(("way", "seeds", *(result.scenario.name for result in results)), rows)


def _touched(result: Result, site: Site) -> list[int]:
    return [round(each.touched_ratio * site.node_count) for each in result.trials[OURS]]


def _cost(summary: Summary) -> str:
    if summary.gpu_hours_per_upgraded_node is None or summary.gpu_hours_ci95 is None:
        return ""
    low, high = summary.gpu_hours_ci95
    return f"{summary.gpu_hours_per_upgraded_node:.2f} ({low:.2f} to {high:.2f})"


def _number(ratio: float | None, count: int) -> str:
    return "" if ratio is None else f"{round(ratio * count):,}"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.0%}"


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _say(text: str, *, stderr: bool = False) -> None:
    Console(stderr=stderr, soft_wrap=True, markup=False, highlight=False, emoji=False).print(text)


def _play(site: Site, scenario: Scenario, *, seeds: int, workers: int) -> Result:
    def shown(done: int, total: int) -> None:
        if done % 50 == 0 or done == total:
            _say(f"{scenario.name}: {done} of {total}", stderr=True)

    trials = play_trials(site, policy_of(site), scenario, ways=ways_of(seeds), workers=workers, on_progress=shown)
    return Result(scenario=scenario, trials=trials)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a promise is not kept, else 0."""
    parser = argparse.ArgumentParser(description="Rollouts of good and bad releases, beside peers.")
    parser.add_argument("--seeds", type=int, default=200, help="of each bad release")
    parser.add_argument("--good-seeds", type=int, default=500, help="of the good release")
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    options = parser.parse_args(arguments)
    site, began = read_site(options.nodes), time.perf_counter()
    results = [
        _play(site, each, seeds=options.good_seeds if each.is_good else options.seeds, workers=options.jobs)
        for each in read_scenarios().values()
    ]
    less = {
        name: (_play(site, scenario, seeds=options.seeds // 2, workers=options.jobs), share)
        for name, (scenario, share) in bounded(site).items()
    }
    seconds = time.perf_counter() - began
    _say(table_of_ours(results, site=site))
    _say(f"\n{table_of_bounded(less)}\n")
    _say(f"{table_of_peers(results, site=site)}\n")
    _say(f"{seconds / 60:.1f} minutes on {options.jobs} processes.")
    broken = [said for result in results for said in promises_broken(result, site=site)]
    broken += [
        f"{name}: {within(result, share):.1%} stopped before {share:.0%} of the nodes; promised are {BOUNDED_RATIO:.0%}"
        for name, (result, share) in less.items()
        if within(result, share) < BOUNDED_RATIO
    ]
    if seconds > ALL_SECONDS:
        broken.append(f"it took {seconds / 60:.0f} minutes; promised are {ALL_SECONDS / 60:.0f}")
    reasons = [
        f"{result.scenario.name}: {each.reason}"
        for result in results
        for each in result.trials[OURS]
        if each.is_stopped and (result.scenario.is_good or each.has_asked)
    ]
    for said in (*broken, *reasons[:_MOST_REASONS]):
        _say(said, stderr=True)
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
