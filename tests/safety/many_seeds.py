"""Plays thousands of stories and shows what happened: `python -m tests.safety.many_seeds --seeds 10000 --jobs 2`.

`--without NAME` takes a guardrail out first: then violations are what is looked for, and their seeds are shown.
Exit code 1 where a rule was broken.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from ops_pipelines.core.action import MESSAGES, Verb
from tests.safety.moves import MoveKind
from tests.safety.mutations import ELSEWHERE, RELAXATIONS, without, without_in_ledger
from tests.safety.stories import Verdict, draw_story, play

_PROGRESS_EVERY = 25
_SHOWN_SEED_COUNT = 8


@dataclass(slots=True)
class Tally:
    """What many verdicts say together."""

    story_count: int = 0
    moves: Counter[MoveKind] = field(default_factory=Counter)
    commands: Counter[Verb] = field(default_factory=Counter)
    crash_count: int = 0
    failure_count: int = 0
    acting_count: int = 0
    """Stories in which at least one command was sent."""
    broken: list[Verdict] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        self.story_count += 1
        self.moves += verdict.moves
        self.commands += verdict.commands
        self.crash_count += verdict.crash_count
        self.failure_count += verdict.failure_count
        self.acting_count += bool(verdict.commands)
        if verdict.broken_rules:
            self.broken.append(verdict)

    @property
    def seeds_by_rule(self) -> dict[str, list[int]]:
        seeds: dict[str, list[int]] = {}
        for verdict in sorted(self.broken, key=lambda each: each.seed):
            for rule in sorted(verdict.broken_rules):
                seeds.setdefault(rule, []).append(verdict.seed)
        return seeds


def play_seed(seed: int, *, taken_out: tuple[str, ...] = ()) -> Verdict:
    """Play the story of one seed, with the named guardrails taken out."""
    with without(*taken_out):
        return play(draw_story(seed), seed=seed, dress=without_in_ledger(*taken_out))


def play_all(seeds: Sequence[int], *, job_count: int, taken_out: tuple[str, ...] = ()) -> Iterator[Verdict]:
    """Play every seed, in `job_count` processes, and yield the verdicts as they come in the order of the seeds."""
    one = partial(play_seed, taken_out=taken_out)
    if job_count == 1:
        yield from map(one, seeds)
        return
    with ProcessPoolExecutor(job_count) as pool:
        yield from pool.map(one, seeds, chunksize=4)


def count(verdicts: Iterable[Verdict]) -> Tally:
    tally = Tally()
    for verdict in verdicts:
        tally.add(verdict)
    return tally


def lines_of(tally: Tally) -> Iterator[str]:
    """Yield the table that a reader sees at the end."""
    yield f"{tally.story_count} stories, {tally.acting_count} of them with commands sent"
    yield f"{tally.crash_count} crashes and restarts, {tally.failure_count} passes ended by a source or a conflict"
    yield ""
    yield "moves made"
    yield from (f"  {kind.value:<22}{tally.moves[kind]:>8}" for kind in MoveKind)
    yield ""
    yield "commands that reached the cluster, each judged"
    yield from (f"  {verb.value:<22}{tally.commands[verb]:>8}" for verb in Verb if verb not in MESSAGES | {Verb.FENCE})
    yield f"  {'all':<22}{sum(tally.commands.values()):>8}"
    yield ""
    for rule, seeds in tally.seeds_by_rule.items():
        shown = ", ".join(str(seed) for seed in seeds[:_SHOWN_SEED_COUNT])
        yield f"BROKEN {rule}: {len(seeds)} stories, such as seeds {shown}"
    for verdict in tally.broken[:_SHOWN_SEED_COUNT]:
        yield from (f"  seed {verdict.seed}: {violation}" for violation in verdict.violations[:2])
    yield f"violations: {len(tally.broken)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.safety.many_seeds", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many stories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    parser.add_argument("--without", action="append", default=[], choices=sorted(RELAXATIONS.keys() | ELSEWHERE))
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    tally = Tally()
    for verdict in play_all(seeds, job_count=options.jobs, taken_out=tuple(options.without)):
        tally.add(verdict)
        for violation in verdict.violations[:1]:
            sys.stderr.write(f"\nseed {verdict.seed}: {violation}\n")
        if tally.story_count % _PROGRESS_EVERY == 0 or tally.story_count == options.seeds:
            sent = sum(tally.commands.values())
            sys.stderr.write(
                f"\r{tally.story_count} of {options.seeds} stories, {sent} commands judged, {len(tally.broken)} broken "
            )
            sys.stderr.flush()
    sys.stderr.write("\n")
    sys.stdout.writelines(f"{line}\n" for line in lines_of(tally))
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
