"""Which nodes become whole first when small jobs end: a hint where to wait, never a move.

A job ends at the latest when its time limit does; mostly it ends earlier, by what such jobs needed before. The hint
says both, and what nobody knows it leaves out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.domain.placement.occupancy import Occupancy
from ops_pipelines.domain.placement.standing import Stay

MOST_HINTS = 20
_LATEST = datetime.max.replace(tzinfo=UTC)
Alike = tuple[str, str]
"""User and name of a job: who submits the same again mostly needs as long again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHint:
    """One node in pieces, and the jobs that keep it so."""

    node: NodeName
    free_gpus: int
    held_gpus: float
    jobs: tuple[str, ...]
    whole_by: datetime | None
    """When the time limits end the last of them; None: one has none."""
    likely_by: datetime | None
    """When the last of them mostly would have ended, by past runs; None: of one too few are known."""


def find_node_hints(
    occupancy: Occupancy, *, now: datetime, needed_seconds: Mapping[Alike, float] | None = None
) -> tuple[NodeHint, ...]:
    """Return the nodes that have free GPUs beside jobs, those that become whole first at the beginning.

    `needed_seconds`: what jobs of one user and name mostly need (`backfill.needs_of`).
    """
    found = []
    for node, machine in occupancy.machines.items():
        stays = [stay for stay in occupancy.stays[node].values() if stay.gpus[node] > 0]
        if not stays or not 0 < occupancy.offered(node) < machine.gpu_count:
            continue
        latest = [_latest_end(stay) for stay in stays]
        likely = [_likely_end(stay, needed_seconds or {}, now=now) for stay in stays]
        found.append(
            NodeHint(
                node=node,
                free_gpus=occupancy.free(node),
                held_gpus=sum(stay.gpus[node] for stay in stays),
                jobs=tuple(sorted(stay.job for stay in stays)),
                whole_by=_last(latest),
                likely_by=_last(likely),
            )
        )
    return tuple(sorted(found, key=_order)[:MOST_HINTS])


def _order(hint: NodeHint) -> tuple[bool, datetime, float, str]:
    by = hint.likely_by or hint.whole_by
    return by is None, by or _LATEST, hint.held_gpus, hint.node


def _latest_end(stay: Stay) -> datetime | None:
    return None if stay.time_limit_seconds is None else stay.began_at + timedelta(seconds=stay.time_limit_seconds)


def _likely_end(stay: Stay, needs: Mapping[Alike, float], *, now: datetime) -> datetime | None:
    need = needs.get((stay.user, stay.name))
    if need is None:
        return None
    # Who has run longer than such jobs mostly do tells nothing of its end.
    end = stay.began_at + timedelta(seconds=need)
    return end if end > now else _latest_end(stay)


def _last(ends: list[datetime | None]) -> datetime | None:
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None
