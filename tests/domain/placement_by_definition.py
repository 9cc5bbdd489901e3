"""What placement says, by definition: every node looked at again for every question. Slow, and short enough to be seen
to be right; the tests compare what is fast with it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.identity import NodeName
from ops_pipelines.efficiency.placement.spread import Level, levels_of, part_of
from ops_pipelines.efficiency.placement.standing import Absence, Away, Machine, Stay, Waiting, needed, whole
from ops_pipelines.efficiency.placement.waits import MARGIN_RATIO, WORTH, Need

FOREVER = datetime.max.replace(tzinfo=UTC)
EVER = datetime.min.replace(tzinfo=UTC)
Run = tuple[datetime, datetime, str]
_RANKS = list(Away)


def offered(machine: Machine, stays: Sequence[Stay], absences: Sequence[Absence], at: datetime) -> int:
    """Return what the node offers from `at` on: nothing while it is away, else what nobody holds."""
    if any(each.node == machine.node and each.since <= at < (each.until or FOREVER) for each in absences):
        return 0
    held = sum(
        stay.gpus[machine.node]
        for stay in stays
        if machine.node in stay.gpus and stay.began_at <= at < (stay.ended_at or FOREVER)
    )
    return max(0, whole(machine.gpu_count - held))


def starts(stays: Sequence[Stay], *, start: datetime, end: datetime) -> Iterator[tuple[Stay, list[Stay]]]:
    """Return who starts, in order, and who is there before it: of one moment the job that comes first by name."""
    kept = [each for each in stays if each.ended_at is None or each.ended_at > each.began_at]
    ordered = sorted(kept, key=lambda each: (each.began_at, each.job))
    for number, stay in enumerate(ordered):
        if start <= stay.began_at < end and stay.gpu_count > 0:
            yield stay, ordered[:number]


def straddles(
    machines: Sequence[Machine], stays: Sequence[Stay], absences: Sequence[Absence], *, start: datetime, end: datetime
) -> list[tuple[str, Level, tuple[str, ...], int, tuple[str, ...]]]:
    """Return job, level, its parts, the fewest possible, and which."""
    found = []
    places = {each.node: each.place for each in machines}
    for stay, before in starts(stays, start=start, end=end):
        own = [node for node in stay.gpus if node in places]
        models = {places[node].model for node in own}
        gpus = max(needed(count) for count in stay.gpus.values())
        room = [
            each.node
            for each in machines
            if each.node in own
            or (
                (each.partitions is None or stay.partition in each.partitions)
                and (len(models) > 1 or each.place.model in models)
                and offered(each, before, absences, stay.began_at) >= gpus
            )
        ]
        for level in levels_of(machines):
            parts = Counter(part_of(places[node], level) for node in own)
            if len(parts) > 1:
                best = fewest_parts(Counter(part_of(places[node], level) for node in room), len(own))
                shown = tuple(part for part, _ in sorted(parts.items(), key=lambda item: (-item[1], item[0])))
                is_better = len(best) < len(parts)
                found.append((stay.job, level, shown, min(len(best), len(parts)), best if is_better else ()))
    return found


def fewest_parts(counts: Counter[str], missing: int) -> tuple[str, ...]:
    """Return the largest parts until one suffices: of those that do the smallest."""
    chosen = []
    while missing > 0 and counts:
        enough = [part for part, count in counts.items() if count >= missing]
        part = (
            min(enough, key=lambda name: (counts[name], name))
            if enough
            else min(counts, key=lambda name: (-counts[name], name))
        )
        chosen.append(part)
        missing -= counts.pop(part)
    return tuple(chosen)


def broken_domains(
    machines: Sequence[Machine], stays: Sequence[Stay], absences: Sequence[Absence], *, start: datetime, end: datetime
) -> list[tuple[str, str, int, tuple[NodeName, ...]]]:
    """Return job, domain, its GPUs, and the nodes of a broken domain that it would have fitted."""
    found = []
    members: dict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        members[machine.place.nvlink_domain].append(machine)
    for stay, before in starts(stays, start=start, end=end):
        free = {each.node: offered(each, before, absences, stay.began_at) for each in machines}
        broken = {name: any(free[each.node] < each.gpu_count for each in nodes) for name, nodes in members.items()}
        own = [each for each in machines if each.node in stay.gpus]
        domains = {each.place.nvlink_domain for each in own}
        size = sum(each.gpu_count for domain in domains for each in members[domain])
        if len(domains) != 1 or broken[own[0].place.nvlink_domain] or stay.gpu_count >= size:
            continue
        gpus = max(needed(count) for count in stay.gpus.values())
        for name in sorted(members):
            fits = [
                each.node
                for each in members[name]
                if (each.partitions is None or stay.partition in each.partitions)
                and each.place.model == own_model(own, stay)
                and free[each.node] >= gpus
            ]
            if broken[name] and len(fits) >= len(own):
                found.append((stay.job, own[0].place.nvlink_domain, size, tuple(fits[: len(own)])))
                break
    return found


def own_model(own: Sequence[Machine], stay: Stay) -> str:
    """Return the model of the first node that the job names."""
    first = next(node for node in stay.gpus if any(each.node == node for each in own))
    return next(each.place.model for each in own if each.node == first)


def free_runs(machine: Machine, stays: Sequence[Stay], absences: Sequence[Absence], gpus: int) -> list[Run]:
    """Return since when and until when the node had room, and what ended it."""
    moments = {EVER}
    for stay in stays:
        moments |= {stay.began_at, stay.ended_at or FOREVER}
    for absence in absences:
        moments |= {absence.since, absence.until or FOREVER}
    found: list[Run] = []
    since: datetime | None = None
    for at in sorted(moments - {FOREVER}):
        has_room = offered(machine, stays, absences, at) >= gpus
        if has_room and since is None:
            since = at
        elif not has_room and since is not None:
            away = [
                each for each in absences if each.node == machine.node and each.since <= at < (each.until or FOREVER)
            ]
            first = min(away, key=lambda each: (_RANKS.index(each.why), each.since), default=None)
            found.append((since, at, "a job" if first is None else f"{first.why.value} {first.cause}".strip()))
            since = None
    return [*found, (since, FOREVER, "")] if since is not None else found


def earliest(
    machines: Sequence[Machine],
    stays: Sequence[Stay],
    absences: Sequence[Absence],
    waiting: Waiting,
    *,
    seconds: float,
    since: datetime,
) -> tuple[datetime, Run] | None:
    """Return the first moment at which enough nodes had room for so long, and the run that ends first of those that
    began first; of one begin, of the nodes that come first.
    """
    count, length = max(1, waiting.node_count), timedelta(seconds=seconds)
    others = [stay for stay in stays if stay.job != waiting.job]
    runs = [
        (max(run[0], since), place, run)
        for place, machine in enumerate(machines)
        if machine.partitions is None or waiting.partition in machine.partitions
        for run in free_runs(machine, others, absences, needed(waiting.gpu_count / count))
    ]
    for at in sorted({begin for begin, _, _ in runs}):
        there = sorted(each for each in runs if each[0] <= at and (each[2][1] == FOREVER or each[2][1] - at >= length))
        if len(there) >= count:
            return at, min((run for _, _, run in there[:count]), key=lambda run: run[1])
    return None


def backfill_hint(
    machines: Sequence[Machine],
    stays: Sequence[Stay],
    absences: Sequence[Absence],
    waiting: Waiting,
    *,
    need: Need,
    known_since: datetime,
    now: datetime,
) -> tuple[datetime, datetime, str] | None:
    """Return when it could have started, when that hole ended, and what ended it."""
    since, until, limit = max(waiting.since, known_since), waiting.until or now, waiting.time_limit_seconds
    if limit is None or need.seconds * MARGIN_RATIO >= limit:
        return None
    short = earliest(machines, stays, absences, waiting, seconds=need.seconds * MARGIN_RATIO, since=since)
    if short is None or until - short[0] < WORTH:
        return None
    asked = earliest(machines, stays, absences, waiting, seconds=limit, since=since)
    return None if asked is not None and asked[0] <= short[0] else (short[0], short[1][1], short[1][2])
