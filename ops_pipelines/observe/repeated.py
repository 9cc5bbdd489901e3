"""What a part has shown before: the same rule so often on the same part is no accident, and then another step is due.

A part is known by its serial, else by its UUID; never by an index or a PCI address, since another part may stand there
tomorrow. So a replaced part starts again, and a moved one brings its past along. How often is too often is data
(`catalogue.RepeatRule`); who is a lemon among many is `lemons`.

`RepetitionWatch` reports it as evidence, once for each burst: it looks back over the evidence of the ledger as far as
the repeat rules do, for the live cycle, which knows the inventories and who held which node. A part that they do not
name is blamed for nothing. What a repetition calls for is `observe.rules`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from ops_pipelines.core.cluster import HOUR, Cluster, hour_of
from ops_pipelines.core.fault import AtFault, Component, ComponentKind, FirstAction, node_component
from ops_pipelines.core.finding import Catalogue, CodeRule, Finding, LogRule, RepeatRule
from ops_pipelines.core.identity import GpuUuid, JobId, NodeName, PciAddress
from ops_pipelines.core.observation import HISTORY_SOURCE, NO_NODE, Observation, Signal
from ops_pipelines.core.sources import Lake
from ops_pipelines.observe.rules import find

BURST = timedelta(minutes=3)
"""What follows so soon is the same event reported again. Source: NVSentinel, RepeatedXID31OnSameGPU."""

_PROGRAMS = frozenset({AtFault.APPLICATION, AtFault.USER})
"""Where a rule blames the program, one program proves nothing against the part, however often it runs."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PartKey:
    """One physical part, wherever it is."""

    kind: str
    """The word of its ComponentKind."""
    name: str
    """Serial, else UUID of a GPU; `node/device` of a part that has no number of its own; the node."""

    def __str__(self) -> str:
        if self.kind == ComponentKind.GPU.value:
            return self.name if self.name.startswith("GPU-") else f"GPU {self.name}"
        return f"{self.kind.replace('_', ' ')} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seating:
    """One GPU at one place for some time."""

    node: NodeName
    pci: PciAddress
    since: datetime
    until: datetime | None
    """Half-open; None: it still is there."""
    uuid: GpuUuid | None = None
    serial: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Which GPU stood where when, and when other parts were replaced.

    Who is where is read from the inventory (`lake.inventory`, `diagnose.trouble_rows`).
    """

    seatings: tuple[Seating, ...] = ()
    replaced_at: Mapping[PartKey, datetime] = field(default_factory=dict)
    """Parts without a number of their own that were replaced or repaired: what came before is another part's past."""
    _by_place: Mapping[tuple[NodeName, PciAddress], tuple[Seating, ...]] = field(init=False, repr=False, compare=False)
    _serials: Mapping[GpuUuid, frozenset[str]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_place: dict[tuple[NodeName, PciAddress], tuple[Seating, ...]] = {}
        serials: dict[GpuUuid, frozenset[str]] = {}
        for each in self.seatings:
            by_place[each.node, each.pci] = (*by_place.get((each.node, each.pci), ()), each)
            if each.uuid is not None and each.serial is not None:
                serials[each.uuid] = serials.get(each.uuid, frozenset()) | {each.serial}
        object.__setattr__(self, "_by_place", by_place)
        object.__setattr__(self, "_serials", serials)

    def gpu(self, *, node: NodeName, pci: PciAddress | None, uuid: GpuUuid | None, at: datetime) -> PartKey | None:
        """Return the GPU that is meant; None if neither a UUID nor a seating reports, or two seatings disagree."""
        if uuid is not None:
            return self._key(uuid, None)
        if pci is None:
            return None
        seated = {
            self._key(each.uuid, each.serial)
            for each in self._by_place.get((node, pci), ())
            if each.since <= at and (each.until is None or at < each.until)
        } - {None}
        return seated.pop() if len(seated) == 1 else None

    def _key(self, uuid: GpuUuid | None, serial: str | None) -> PartKey | None:
        """Return the key by the serial that was ever stated of it, else the UUID; None if nothing was stated."""
        known = self._serials.get(uuid, frozenset()) if uuid is not None and serial is None else frozenset()
        name = serial or (next(iter(known)) if len(known) == 1 else uuid)
        return None if name is None else PartKey(kind=ComponentKind.GPU.value, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """A rule held once on one part."""

    rule: str
    """As `Finding.rule` names it: `xid_31`, `sxid_12028`, a log signature."""
    part: PartKey
    at: datetime
    job: JobId | None = None
    """The job that ran on the part; None if nobody knows."""
    where: Component | None = None
    """Where the part stood then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """A rule held so often on one part that the part is suspect."""

    rule: str
    part: PartKey
    count: int
    """Events within the rule's time up to the newest; bursts count once, and of a program's fault each program."""
    reached_at: datetime
    """When it first was too often."""
    occurrences: tuple[Occurrence, ...]
    """All that speak for it, oldest first."""
    then: FirstAction
    explanation: str
    source: str

    @property
    def newest_at(self) -> datetime:
        """When the newest burst of it began: what comes later within that burst is no news."""
        newest = self.occurrences[-1].at
        for each in reversed(self.occurrences):
            if newest - each.at > BURST:
                break
            newest = each.at
        return newest

    def observation(self) -> Observation:
        """Return it as evidence; the same however often it is looked at, until the next burst."""
        where = self.where
        is_gpu = where is not None and where.kind is ComponentKind.GPU
        is_node = where is not None and where.kind is ComponentKind.NODE
        return Observation(
            signal=Signal.REPEATED,
            node=NO_NODE if where is None or where.node is None else where.node,
            observed_at=self.newest_at,
            source=HISTORY_SOURCE,
            position=f"{self.rule}/{self.part.kind}/{self.part.name}/{self.newest_at.astimezone(UTC).isoformat()}",
            gpu=PciAddress(where.name) if where is not None and is_gpu else None,
            gpu_uuid=GpuUuid(self.part.name) if is_gpu and self.part.name.startswith("GPU-") else None,
            component=None if is_gpu or is_node else where,
            signature=self.rule,
            value=float(self.count),
            text=self.explanation,
        )

    @property
    def where(self) -> Component | None:
        """Where the part stood when it last happened."""
        return self.occurrences[-1].where


def part_of(observation: Observation, lineage: Lineage) -> PartKey | None:
    """Return the part that an observation speaks of; None for a GPU that nobody can name, and for no part at all."""
    component = observation.component
    is_gpu = component is None or component.kind is ComponentKind.GPU
    if is_gpu and (observation.gpu is not None or observation.gpu_uuid is not None):
        return lineage.gpu(
            node=observation.node, pci=observation.gpu, uuid=observation.gpu_uuid, at=observation.observed_at
        )
    if component is None:
        return PartKey(kind=ComponentKind.NODE.value, name=observation.node) if observation.node else None
    if component.kind in (ComponentKind.GPU, ComponentKind.JOB):
        return None
    is_inside = component.node is not None and component.kind is not ComponentKind.NODE
    name = f"{component.node}/{component.name}" if is_inside else component.name
    return PartKey(kind=component.kind.value, name=name)


def rule_of(observation: Observation) -> str | None:
    """Return the name of the rule that an observation is an occurrence of; None for what is never counted.

    As `Finding.rule` names it where the catalogue knows the code; it is known without the catalogue.
    """
    if observation.signal is Signal.XID:
        return None if observation.code is None else f"xid_{observation.code}"
    if observation.signal is Signal.SXID:
        return None if observation.code is None else f"sxid_{observation.code}"
    return observation.signature if observation.signal is Signal.LOG_SIGNATURE else None


def occurrences_of(findings: Iterable[Finding], lineage: Lineage) -> tuple[Occurrence, ...]:
    """Return what findings say of known parts, one occurrence an observation; GPUs without a name are left out."""
    found = []
    for finding in findings:
        for observation in finding.evidence:
            part = part_of(observation, lineage)
            if part is None or observation.observed_at < lineage.replaced_at.get(part, observation.observed_at):
                continue
            found.append(
                Occurrence(
                    rule=finding.rule,
                    part=part,
                    at=observation.observed_at,
                    job=observation.job or finding.job,
                    where=_where(observation),
                )
            )
    return tuple(found)


def _where(observation: Observation) -> Component:
    if observation.component is not None:
        return observation.component
    if observation.gpu is not None:
        return Component(kind=ComponentKind.GPU, name=observation.gpu, node=observation.node)
    return node_component(observation.node)


def repeated(occurrences: Iterable[Occurrence], catalogue: Catalogue, *, at: datetime) -> tuple[Repetition, ...]:
    """Return what has happened too often on one part up to and including `at`, by rule and part.

    Order and duplicates do not matter. It holds once any interval of the rule's length has seen enough, and stays true
    of the part: let `occurrences` go no further back than what should still count.
    """
    rules = repeat_rules(catalogue)
    by_rule: dict[str, set[Occurrence]] = {}
    for occurrence in occurrences:
        if occurrence.rule in rules and occurrence.at <= at:
            by_rule.setdefault(occurrence.rule, set()).add(occurrence)
    found: list[Repetition] = []
    for name in sorted(by_rule):
        rule = rules[name]
        listed = _without_programs(by_rule[name]) if rule.at_fault in _PROGRAMS else by_rule[name]
        by_part: dict[PartKey, list[Occurrence]] = {}
        for occurrence in sorted(listed, key=_order):
            by_part.setdefault(occurrence.part, []).append(occurrence)
        for part in sorted(by_part):
            repetition = _judge(name, part, by_part[part], rule)
            if repetition is not None:
                found.append(repetition)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRule:
    """A repeat rule with what its code or signature means."""

    told: str
    at_fault: AtFault
    repeat: RepeatRule


def repeat_rules(catalogue: Catalogue) -> Mapping[str, NamedRule]:
    """Return the rules of a catalogue that say how often is too often, by the name that their findings bear."""
    codes: dict[str, CodeRule | LogRule] = {
        **{f"xid_{code}": rule for code, rule in catalogue.xids.items()},
        **{f"sxid_{code}": rule for code, rule in catalogue.sxids.items()},
        **catalogue.signatures,
    }
    return {
        name: NamedRule(told=_told(rule), at_fault=rule.at_fault, repeat=rule.repeat)
        for name, rule in codes.items()
        if rule.repeat is not None
    }


def _told(rule: CodeRule | LogRule) -> str:
    return rule.meaning if isinstance(rule, LogRule) else f"{rule.code} ({rule.mnemonic})"


def program_of(job: JobId) -> str:
    """Return what the tasks of a job array and the parts of a heterogeneous job have in common: they run one script."""
    return job.split("_", 1)[0].split("+", 1)[0]


def _without_programs(occurrences: Collection[Occurrence]) -> list[Occurrence]:
    """Leave out every program that shows the same fault on several parts: it brings the fault along."""
    parts: dict[str, set[PartKey]] = {}
    for each in occurrences:
        if each.job is not None:
            parts.setdefault(program_of(each.job), set()).add(each.part)
    return [each for each in occurrences if each.job is None or len(parts[program_of(each.job)]) == 1]


def _judge(name: str, part: PartKey, listed: Sequence[Occurrence], rule: NamedRule) -> Repetition | None:
    """Return the repetition on one part; `listed` is in order of time."""
    needs_programs = rule.at_fault in _PROGRAMS
    marks = _first_of_bursts(listed, by_program=needs_programs)
    reached_at, newest_count = None, 0
    for end in range(len(marks)):
        window = [each for each in marks[: end + 1] if marks[end].at - each.at < rule.repeat.within]
        count = _count_programs(window) if needs_programs else len(window)
        if count >= rule.repeat.count:
            newest_count = count
            reached_at = marks[end].at if reached_at is None else reached_at
    if reached_at is None:
        return None
    jobs = sorted({each.job for each in listed if each.job is not None})
    who = f" in jobs {', '.join(jobs[:5])}{', ...' if len(jobs) > 5 else ''}" if jobs else ""
    why = (
        "different programs met it there and nowhere else" if needs_programs else "each time again, bursts counted once"
    )
    return Repetition(
        rule=name,
        part=part,
        count=newest_count,
        reached_at=reached_at,
        occurrences=tuple(listed),
        then=rule.repeat.then,
        explanation=(
            f"{part} showed {name} {newest_count} times within {_span(rule.repeat.within)}{who}: {why}; "
            f"{rule.repeat.count} times makes the part suspect ({rule.told})"
        ),
        source=rule.repeat.source,
    )


def _first_of_bursts(listed: Sequence[Occurrence], *, by_program: bool) -> list[Occurrence]:
    """Return the first of each burst; of each program in it, where programs are distinguished."""
    marks: list[Occurrence] = []
    last: dict[str | None, datetime] = {}
    for each in listed:
        key = program_of(each.job) if by_program and each.job is not None else None
        if key not in last or each.at - last[key] > BURST:
            marks.append(each)
        last[key] = each.at
    return marks


def _count_programs(window: Sequence[Occurrence]) -> int:
    """Return at least how many programs met the fault, those of one burst counted once.

    One that nobody knows may be any of the known ones: it adds nothing to them.
    """
    firsts: dict[str, datetime] = {}
    for each in window:
        if each.job is not None:
            firsts.setdefault(program_of(each.job), each.at)
    if not firsts:
        return min(1, len(window))
    count, last = 0, None
    for at in sorted(firsts.values()):
        if last is None or at - last > BURST:
            count += 1
        last = at
    return count


def _order(occurrence: Occurrence) -> tuple[datetime, str, str]:
    return occurrence.at, occurrence.job or "", str(occurrence.where)


def _span(length: timedelta) -> str:
    hours = length.total_seconds() / 3600
    return f"{hours:g} h" if hours <= 48 else f"{hours / 24:g} days"


EVERY = timedelta(minutes=1)
"""How often evidence is counted: a repetition is a matter of hours."""
AT_MOST = 500
"""Observations of one rule that are counted, the newest: a storm is one burst after another, and no history."""
_DIED_BEFORE = timedelta(minutes=2)
"""The driver's line may come after the end of the job that it killed. Assumption: by so much at most."""
_INVENTORY_EVERY = timedelta(hours=6)
"""Who stood where is read so often of the last day, and once a day before: parts are seldom moved."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """One attempt of a job on its nodes."""

    job: JobId
    nodes: frozenset[NodeName]
    started_at: datetime
    ended_at: datetime | None
    """None: it continues."""
    user: str = ""


@dataclass(slots=True, kw_only=True)
class RepetitionWatch:
    """What a process remembers between two counts, so that an hour without news costs next to nothing."""

    counted_at: datetime | None = None
    _lineage: Lineage = field(default_factory=Lineage)
    _read_hours: tuple[datetime, ...] = ()
    """The hours whose inventories it was read from."""
    _read_nodes: frozenset[NodeName] = frozenset()
    """The nodes whose GPUs it knows."""

    def is_due(self, at: datetime) -> bool:
        """Return whether it is time to count again."""
        return self.counted_at is None or not timedelta(0) <= at - self.counted_at < EVERY

    def lineage(self, lake: Lake, *, nodes: frozenset[NodeName], at: datetime, back: timedelta) -> Lineage:
        """Return which GPU stood where on some nodes before `at`; each is read once an hour. Raises LakeError."""
        from ops_pipelines.observe.past_states import read_seatings

        hours = _inventory_hours(hour_of(at), back=back)
        if self._read_hours != hours:
            self._read_hours, self._read_nodes, self._lineage = hours, frozenset(), Lineage()
        missing = nodes - self._read_nodes
        if missing:
            inventories = {hour: lake.read_hour("inventory", hour) for hour in hours}
            seatings = read_seatings(inventories, nodes=missing)
            self._lineage = Lineage(seatings=(*self._lineage.seatings, *seatings))
            self._read_nodes |= missing
        return self._lineage


def tell_repetitions(
    watch: RepetitionWatch, lake: Lake, cluster: Cluster, *, holds: Iterable[Hold], at: datetime
) -> int:
    """Take into evidence what has repeated too often by `at`; return how much of it is new. Nothing before it is due.

    `holds`: who held which node lately. Raises LakeError and LedgerError.
    """
    if not watch.is_due(at):
        return 0
    watch.counted_at = at
    catalogue = cluster.rules.catalogue
    observations = _recent(cluster, at=at)
    if not observations:
        return 0
    oldest = min(each.observed_at for each in observations)
    nodes = frozenset(each.node for each in observations)
    lineage = watch.lineage(lake, nodes=nodes, at=at, back=at - oldest)
    told = count_repetitions(observations, catalogue, lineage=lineage, holds=holds, at=at)
    evidence = [each.observation() for each in told]
    if not evidence:
        return 0
    return cluster.ledger.take_in(source=HISTORY_SOURCE, observations=evidence, rejected=(), cursor=None, now=at)


def count_repetitions(
    observations: Iterable[Observation],
    catalogue: Catalogue,
    *,
    lineage: Lineage,
    holds: Iterable[Hold],
    at: datetime,
) -> tuple[Repetition, ...]:
    """Return what has repeated too often by `at`. Neither order nor duplicates of observations change anything."""
    holders = _Holders(holds)
    named = (
        each if each.job is not None else replace(each, job=holders.job_on(each.node, each.observed_at))
        for each in observations
    )
    return repeated(occurrences_of((find(each, catalogue) for each in named), lineage), catalogue, at=at)


def _recent(cluster: Cluster, *, at: datetime) -> list[Observation]:
    """Return the evidence of each rule within its own time, of rules that were met often enough to matter."""
    rules = {name: rule.repeat for name, rule in repeat_rules(cluster.rules.catalogue).items()}
    found: list[Observation] = []
    for within, names in _by_length(rules).items():
        listed = cluster.ledger.evidence_since(at - within, rules=names, limit=AT_MOST)
        counts: dict[str, int] = {}
        for each in listed:
            name = rule_of(each.observation) or ""
            counts[name] = counts.get(name, 0) + 1
        enough = {name for name, count in counts.items() if count >= rules[name].count}
        found += [each.observation for each in listed if rule_of(each.observation) in enough]
    return found


def _by_length(rules: Mapping[str, RepeatRule]) -> Mapping[timedelta, list[str]]:
    found: dict[timedelta, list[str]] = {}
    for name, rule in rules.items():
        found.setdefault(rule.within, []).append(name)
    return found


def _inventory_hours(newest: datetime, *, back: timedelta) -> tuple[datetime, ...]:
    """Return the hours whose inventories are read: few, and dense where an installation may have just started."""
    hours = {newest - number * HOUR for number in range(_INVENTORY_EVERY // HOUR)}
    hours |= {newest - number * _INVENTORY_EVERY for number in range(_DAY // _INVENTORY_EVERY + 1)}
    return tuple(sorted(hours | {newest - number * _DAY for number in range(max(0, back // _DAY) + 2)}))


class _Holders:
    """Which job held a node when."""

    def __init__(self, holds: Iterable[Hold]) -> None:
        self._by_node: dict[NodeName, list[Hold]] = {}
        for each in holds:
            for node in each.nodes:
                self._by_node.setdefault(node, []).append(each)

    def job_on(self, node: NodeName, at: datetime) -> JobId | None:
        """Return the job that held a node, or had just left it; None if nobody did, or several that share it."""
        begun = [each for each in self._by_node.get(node, ()) if each.started_at <= at]
        for spare in (timedelta(0), _DIED_BEFORE):
            jobs = {each.job for each in begun if each.ended_at is None or at <= each.ended_at + spare}
            if jobs:
                return jobs.pop() if len(jobs) == 1 else None
        return None
