"""Attempts and their waits as weighed stretches of time, numbered by team and type of GPU.

An attempt on nodes of two types weighs in both, by its nodes. Sums over the stretches are `sweep`'s.
"""

from dataclasses import dataclass

import numpy as np

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.frames.demand.attempts import NEVER, Attempts
from ops_pipelines.frames.demand.gpu_types import GpuTypes, shares_of
from ops_pipelines.frames.demand.recorded_rows import Floats, Whole
from ops_pipelines.frames.demand.sweep import Stretches
from ops_pipelines.frames.demand.waits import Waits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weighed:
    """What ran and what waited: `group` counts in `groups`."""

    groups: tuple[tuple[TeamName, GpuType], ...]
    """By team and type: all that any attempt names, whenever it was."""
    running: Stretches
    waiting: Stretches
    """A row for each wait, in their order."""


def weigh(attempts: Attempts, waits: Waits, *, types: GpuTypes) -> Weighed:
    """Return stretches that weigh the GPUs of attempts and waits. What has no end lasts for ever."""
    teams = attempts.texts["account"]
    names, kinds = sorted(teams.words), types.names
    place_of = {name: place for place, name in enumerate(names)}
    rank = np.array([place_of[word] for word in teams.words], np.int64) * len(kinds)
    run_of, kind, share = _split(attempts, types)
    ran_as = rank[teams.codes[run_of]] + kind
    partitions = attempts.texts["partition"]
    wanted = np.array([kinds.index(types.wanted_in(word)) for word in partitions.words], np.int64)
    waited_as = rank[teams.codes[waits.of]] + wanted[partitions.codes[waits.of]]
    present, group = np.unique(np.concatenate((ran_as, waited_as)), return_inverse=True)
    return Weighed(
        groups=tuple((TeamName(names[each // len(kinds)]), kinds[each % len(kinds)]) for each in present.tolist()),
        running=Stretches(
            group=group[: len(ran_as)],
            weight=attempts.gpus[run_of] * share,
            begin=attempts.started[run_of],
            end=attempts.ended[run_of],
        ),
        waiting=Stretches(group=group[len(ran_as) :], weight=attempts.gpus[waits.of], begin=waits.begin, end=waits.end),
    )


def _split(attempts: Attempts, types: GpuTypes) -> tuple[Whole, Whole, Floats]:
    """Return a row for each attempt and type: the attempt, the type and its share."""
    ran = np.flatnonzero(attempts.started != NEVER)
    hosts = attempts.texts["nodes"]
    kinds = types.names
    shares = [sorted((kinds.index(name), amount) for name, amount in each.items()) for each in shares_of(hosts, types)]
    width = max((len(each) for each in shares), default=1)
    kind = np.zeros((len(shares), width), np.int64)
    part = np.zeros((len(shares), width))
    for place, each in enumerate(shares):
        for column, (number, amount) in enumerate(each):
            kind[place, column], part[place, column] = number, amount
    codes = hosts.codes[ran]
    of = np.repeat(ran, width)
    share = part[codes].reshape(-1)
    is_there = share > 0
    return of[is_there], kind[codes].reshape(-1)[is_there], share[is_there]
