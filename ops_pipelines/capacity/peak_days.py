"""Hours of one local day -> rows of `daily_peaks`: GPUs, stranded ones, storage, links, power.

Every source adds its hours here, so peak, mean and hours near the peak are counted in one way for all of them. In an
hour that was computed a team without a row had no demand; an hour of which no team has a row is not known.

In pieces: free GPUs of a node in service of which a part is held, or is kept from jobs; a job of whole nodes cannot
have them. What is drained, down or reserved is not counted here: the ledger has it.

Lustre reports its object targets, which are added up by file system, or else each client reports the whole. Other
shared file systems (NFS, CephFS, ...) are seen by nodes only, as mounts: one counts as shared where many nodes see the
same size and the same room, and a disk of each node does not.

Links: each one's fuller direction over its rate, and of all the 90th percentile, by leaf switch and as a whole: a
fabric is full where its busiest tenth is, not where its mean is.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from ops_pipelines.capacity.forecast.windows import WHOLE_RATIO
from ops_pipelines.capacity.model import Resource, SeriesKey
from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.periods import HOUR
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.costs.usage import NO_TEAM, Fate
from ops_pipelines.costs.usage_ledger import UsageLedger
from ops_pipelines.efficiency.placement.standing import Absence, Machine, Occupancy, Stay
from ops_pipelines.lake.rates import rates

# -- rows of telemetry within an hour -> what shared file systems hold --


LUSTRE_COLUMNS = ("node", "device", "time", "lustre_capacity_bytes", "lustre_available_bytes")
MOUNT_COLUMNS = ("node", "device", "time", "filesystem_size_bytes", "filesystem_available_bytes")
_TARGETS, _CLIENTS, _MOUNTS = "lustre:ost/", "lustre:client/", "fs:"
_OWN_MOUNTS = ("/boot", "/dev", "/proc", "/run", "/snap", "/sys", "/tmp", "/usr", "/var")  # noqa: S108  # Names.
"""What every system has on its own disk."""
_LEAST_BYTES = float(1 << 40)
"""Assumption: what a cluster shares holds a TiB or more."""
_LEAST_NODES = 3
_NODE_RATIO = 0.5
_ALIKE_RATIO = 0.005
"""Nodes are asked one after another, and the room changes in between."""
_LEAST_USED_RATIO = 0.01
"""Empty disks of many nodes look alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """One file system."""

    used_bytes: float
    size_bytes: float


def read_lustre(storage: pa.Table) -> Mapping[str, Filled]:
    """Return Lustre file systems by name: the sum of their object targets, else what clients see."""
    rows = _newest(storage, LUSTRE_COLUMNS, prefix="lustre:").sort_values(["size", "used"])
    for prefix in (_TARGETS, _CLIENTS):
        told = rows[rows["device"].str.startswith(prefix)]
        target = told["device"].str.removeprefix(prefix)
        told = told.assign(target=target, system=[_system(name) for name in target])
        if prefix == _TARGETS:
            found = told.drop_duplicates("target", keep="last").groupby("system")[["used", "size"]].sum()
        else:
            found = told.drop_duplicates("system", keep="last").set_index("system").sort_index()
        if len(found):
            return _filled(found)
    return {}


def read_mounts(mounts: pa.Table, *, known: Iterable[Filled] = ()) -> Mapping[str, Filled]:
    """Return file systems that many nodes share, by mount; one of a size that is `known` already is the same again."""
    rows = _newest(mounts, MOUNT_COLUMNS, prefix=_MOUNTS)
    found = rows.groupby(rows["device"].str.removeprefix(_MOUNTS)).agg(
        size=("size", "max"),
        least_size=("size", "min"),
        room=("room", "max"),
        least_room=("room", "min"),
        seen=("node", "size"),
    )
    found["used"] = found["size"] - found["room"]
    alike = _ALIKE_RATIO * found["size"]
    is_shared = (
        (found["seen"] >= max(_LEAST_NODES, _NODE_RATIO * rows["node"].nunique()))
        & (found["size"] - found["least_size"] <= alike)
        & (found["room"] - found["least_room"] <= alike)
        & (found["size"] >= _LEAST_BYTES)
        & (found["used"] >= _LEAST_USED_RATIO * found["size"])
    )
    for other in known:
        is_shared &= (found["size"] - other.size_bytes).abs() > alike
    return {mount: each for mount, each in _filled(found[is_shared]).items() if not _is_own(mount)}


def _newest(rows: pa.Table, columns: tuple[str, ...], *, prefix: str) -> pd.DataFrame:
    """Return node, device, size, room and use of the newest row of each that reports both and could be true."""
    size, available = columns[-2:]
    frame = _frame(rows, columns).rename(columns={size: "size", available: "room"})
    is_told = frame["device"].str.startswith(prefix) & (frame["size"] > 0) & frame["room"].between(0, frame["size"])
    newest = frame[is_told.fillna(False)].sort_values("time", kind="stable")
    newest = newest.drop_duplicates(["node", "device"], keep="last").sort_values(["node", "device"])
    return newest.assign(used=newest["size"] - newest["room"])


def _frame(rows: pa.Table, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns as an Arrow-backed frame, without copies."""
    return rows.select(list(columns)).to_pandas(types_mapper=pd.ArrowDtype)


def _filled(found: pd.DataFrame) -> dict[str, Filled]:
    pairs = zip(found.index, found["used"], found["size"], strict=True)
    return {str(name): Filled(used_bytes=float(used), size_bytes=float(size)) for name, used, size in pairs}


def _is_own(mount: str) -> bool:
    return mount == "/" or any(mount == each or mount.startswith(f"{each}/") for each in _OWN_MOUNTS)


def _system(target: str) -> str:
    """Return the name of the file system: `scratch` of `scratch-OST0003` and of `scratch-ffff9a3c`."""
    return target.rpartition("-")[0] or target


# -- rows of telemetry within an hour -> how full links are --


FABRIC_COLUMNS = ("node", "device", "time", "rate_bits_per_second", "receive_bytes", "transmit_bytes")
POWER_COLUMNS = (
    *("node", "device", "time", "rack_power_watts", "rack_power_limit_watts", "node_power_watts", "it_power_watts"),
)
WHOLE = ""
_BUSIEST_QUANTILE = 0.9
_RACK = "rack:"


def read_links(fabric: pa.Table, *, topology: Topology) -> Mapping[str, float]:
    """Return by leaf switch, and for the whole, how full the busiest tenth of the links of nodes was."""
    # Switches stand in the table too, and belong to no node: their ports are the other end of these links.
    rows = fabric.filter(pc.not_equal(fabric["node"], ""))
    link = ["node", "device"]
    bytes_per_second = _frame(rows, (*link, "rate_bits_per_second")).groupby(link)["rate_bits_per_second"].max() / 8
    ratios = []
    for name in ("receive_bytes", "transmit_bytes"):
        told = _frame(rates(rows, name), (*link, "increase", "elapsed_seconds")).dropna(subset="increase")
        sums = told.groupby(link)[["increase", "elapsed_seconds"]].sum()
        sums = sums[sums["elapsed_seconds"] > 0]
        ratios.append(sums["increase"] / sums["elapsed_seconds"] / bytes_per_second[bytes_per_second > 0])
    fullest = pd.concat(ratios).dropna().groupby(link).max().reset_index(name="ratio")
    places = {str(node): place.leaf_switch for node, place in topology.places.items() if place.leaf_switch}
    by_leaf = fullest.groupby(fullest["node"].map(places))["ratio"].quantile(_BUSIEST_QUANTILE)
    whole = {WHOLE: float(fullest["ratio"].quantile(_BUSIEST_QUANTILE))} if len(fullest) else {}
    return whole | {str(leaf): float(ratio) for leaf, ratio in by_leaf.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Means of an hour, in watts."""

    racks: Mapping[str, float]
    limits: Mapping[str, float]
    summed: tuple[str, ...]
    """Racks that no meter reports, and that are sums of all their nodes."""
    room: Mapping[str, float]
    """By site; by `` where there is one."""
    is_room_summed: bool = False
    """No meter reports what the room draws: it is the sum of all declared racks."""


def read_power(facility: pa.Table, *, topology: Topology) -> Power:
    """Return what racks drew and what the room did: all that is drawn is heat that must be carried off."""
    racks = {
        device.removeprefix(_RACK): watts
        for (_, device), watts in _means(facility, "rack_power_watts").items()
        if device.startswith(_RACK)
    }
    limits = {
        device.removeprefix(_RACK): watts
        for (_, device), watts in _means(facility, "rack_power_limit_watts").items()
        if device.startswith(_RACK) and watts > 0
    }
    nodes: dict[str, float] = {}
    for (node, _), watts in _means(facility, "node_power_watts").items():
        nodes[node] = nodes.get(node, 0.0) + watts
    stand_in: dict[str, list[str]] = defaultdict(list)
    for name, place in sorted(topology.places.items()):
        stand_in[place.rack].append(name)
    summed = []
    for rack, own in sorted(stand_in.items()):
        # A rack of which a node is silent drew more than the others say: nobody knows how much.
        if rack and rack not in racks and all(node in nodes for node in own):
            racks[rack] = sum(nodes[node] for node in own)
            summed.append(rack)
    sites = {device: watts for (_, device), watts in _means(facility, "it_power_watts").items()}
    room = {WHOLE: next(iter(sites.values()))} if len(sites) == 1 else sites
    is_room_summed = not room and bool(stand_in) and all(rack in racks for rack in stand_in)
    if is_room_summed:
        room = {WHOLE: sum(racks[rack] for rack in sorted(stand_in))}
    return Power(racks=racks, limits=limits, summed=tuple(summed), room=room, is_room_summed=is_room_summed)


def _means(rows: pa.Table, column: str) -> dict[tuple[str, str], float]:
    """Return the mean of a gauge by node and device, in their order."""
    told = rows.filter(pc.fill_null(pc.is_finite(rows[column]), False))
    means = _frame(told, ("node", "device", column)).groupby(["node", "device"])[column].mean()
    return {(str(node), str(device)): float(mean) for (node, device), mean in means.items()}


# -- hours of one local day, by resource and series -> rows of `daily_peaks` --


NO_TYPE = GpuType("")
NEAR_PEAK_RATIO = 0.9
_UNITS = {
    Resource.GPUS: "1",
    Resource.GPUS_OUT: "1",
    Resource.GPUS_STRANDED: "1",
    Resource.STORAGE_BYTES: "B",
    Resource.NETWORK_RATIO: "ratio",
    Resource.RACK_WATTS: "W",
    Resource.COOLING_WATTS: "W",
}


@dataclass(slots=True, kw_only=True)
class _Series:
    hours: dict[int, float] = field(default_factory=dict)
    limit: float | None = None
    cells: dict[str, float | int | None] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class DayBook:
    """One local day while its hours are put in. Hours are counted from `start`."""

    day: date
    start: datetime
    """The first hour of UTC that begins in the day."""
    end: datetime
    """The first that no longer does."""
    begins_at: datetime
    """Where its rows stand: the beginning of the local day, in UTC."""
    zone: str
    notes: list[str] = field(default_factory=list)
    _series: dict[SeriesKey, _Series] = field(default_factory=lambda: defaultdict(_Series))

    @property
    def hours(self) -> list[datetime]:
        return [self.start + number * HOUR for number in range((self.end - self.start) // HOUR)]

    def place_of(self, at: datetime) -> int | None:
        """Return the place of the hour that a time is in; None where it is not of the day."""
        place = (at - self.start) // timedelta(hours=1)
        return place if 0 <= place < (self.end - self.start) // HOUR else None

    def put(self, resource: Resource, values: Mapping[str, float], *, hour: int, gpu_type: GpuType = NO_TYPE) -> None:
        """Keep what series by these names were in an hour."""
        for name, value in values.items():
            self._series[SeriesKey(resource=resource.value, gpu_type=gpu_type, name=name)].hours[hour] = value

    def limit(self, resource: Resource, limits: Mapping[str, float], *, gpu_type: GpuType = NO_TYPE) -> None:
        """Keep what held series by these names; of several that are reported in a day the last holds."""
        for name, limit in limits.items():
            self._series[SeriesKey(resource=resource.value, gpu_type=gpu_type, name=name)].limit = limit

    def add_cells(
        self, resource: Resource, name: str, cells: Mapping[str, float | int | None], *, gpu_type: GpuType
    ) -> None:
        """Keep what one resource alone has beside its hours."""
        self._series[SeriesKey(resource=resource.value, gpu_type=gpu_type, name=name)].cells.update(cells)

    def close(self) -> list[dict[str, object]]:
        """Return the day's rows in their order; notes say which series have too few hours, and what is silent."""
        least = WHOLE_RATIO * len(self.hours)
        rows: list[dict[str, object]] = []
        left_out: dict[str, list[SeriesKey]] = defaultdict(list)
        for key in sorted(self._series):
            series = self._series[key]
            if not series.hours:
                continue
            if len(series.hours) < least:
                left_out[key.resource].append(key)
                continue
            rows.append(self._row(key, series))
        for resource, keys in left_out.items():
            some = f"{len(keys)} series" if len(keys) > 1 else "1 series"
            self.notes.append(
                f"{resource}: {some} with less than three quarters of the day's {len(self.hours)} hours not reported, "
                f"such as {_words(keys[0])}"
            )
        return rows

    def _row(self, key: SeriesKey, series: _Series) -> dict[str, object]:
        told = [series.hours[hour] for hour in sorted(series.hours)]
        peak = max(told)
        return {
            "resource": key.resource,
            "gpu_type": key.gpu_type,
            "name": key.name,
            "time": self.begins_at,
            "zone": self.zone,
            "peak": peak,
            # Rounding must not lift a mean above the peak.
            "mean": min(peak, sum(told) / len(told)),
            "limit": series.limit,
            "hour_count": len(told),
            "near_peak_hours": float(sum(each >= NEAR_PEAK_RATIO * peak for each in told)) if peak > 0 else 0.0,
            "unit": _UNITS[key.kind],
            **series.cells,
        }

    def told(self, resource: Resource) -> Iterable[SeriesKey]:
        """Return the series of a resource that have any hour."""
        return [key for key, series in self._series.items() if key.resource == resource.value and series.hours]


def _words(key: SeriesKey) -> str:
    return " ".join(each for each in (key.gpu_type, key.name) if each) or "the whole"


# -- hours of `gpu_demand` -> what teams requested in a local day, by type of GPU --


COLUMNS = (*("team", "gpu_type", "time", "gpus_running_avg", "gpus_pending_avg", "gpus_demand_avg", "gpus_wasted_avg"),)
AT_CAP_RATIO = 0.98
"""Who ran so much of its hard cap in an hour stood at it: jobs come and go within the hour."""
ALL_TEAMS = ""
_NUMBERS = ("gpus_demand_avg", "gpus_running_avg", "gpus_wasted_avg", "gpus_pending_avg")
_OF_HOUR = ["gpu_type", "team", "hour"]
Caps = Mapping[tuple[TeamName, GpuType], float]
"""What a team never gets more of, by contract; who is not named has no cap."""


def put_gpus(book: DayBook, hourly: pa.Table, *, caps: Caps) -> None:
    """Put the hours of a day into its book."""
    frame = _frame(hourly, ("team", "gpu_type", *_NUMBERS)).fillna(dict.fromkeys(_NUMBERS, 0.0))
    # Jobs without an account are somebody's; the name of nobody is that of all teams together.
    frame["team"] = frame["team"].replace(ALL_TEAMS, NO_TEAM)
    frame["hour"] = pd.array([book.place_of(at) for at in hourly["time"].to_pylist()], dtype="Int64")
    frame = frame.dropna(subset="hour").drop_duplicates(_OF_HOUR, keep="last")
    known = sorted(frame["hour"].unique())
    if not known:
        book.notes.append("gpus: no hour of gpu_demand is known; materialise it there")
        return
    missing = len(book.hours) - len(known)
    if missing:
        book.notes.append(f"gpus: {missing} of {len(book.hours)} hours of gpu_demand are not known")
    of_teams = frame.set_index(_OF_HOUR)[[*_NUMBERS]]
    series = of_teams.index.droplevel("hour").unique()
    of_teams = of_teams.reindex([(*each, hour) for each in series for hour in known], fill_value=0.0)
    most = [caps.get((team, kind), math.inf) for kind, team, _ in of_teams.index]
    of_teams["is_at_cap"] = of_teams["gpus_running_avg"] >= AT_CAP_RATIO * pd.Series(most, index=of_teams.index)
    sums = of_teams.groupby(level=["gpu_type", "hour"]).agg({**dict.fromkeys(_NUMBERS, "sum"), "is_at_cap": "any"})
    of_all = pd.concat({ALL_TEAMS: sums}, names=["team"]).reorder_levels(_OF_HOUR)
    for (kind, team), hours in pd.concat([of_teams, of_all]).groupby(level=["gpu_type", "team"]):
        _put(book, TeamName(team), GpuType(kind), hours)
    for kind, team in series:
        if (team, kind) in caps:
            book.limit(Resource.GPUS, {team: caps[team, kind]}, gpu_type=kind)


def _put(book: DayBook, team: TeamName, kind: GpuType, hours: pd.DataFrame) -> None:
    for place, wanted in zip(hours.index.get_level_values("hour"), hours["gpus_demand_avg"], strict=True):
        book.put(Resource.GPUS, {team: float(wanted)}, hour=int(place), gpu_type=kind)
    means = hours[[*_NUMBERS]].mean()
    cells: dict[str, float | int | None] = {
        "running_mean": float(means["gpus_running_avg"]),
        "idle_mean": float(means["gpus_wasted_avg"]),
        "waiting_mean": float(means["gpus_pending_avg"]),
        "censored_hours": int(hours["is_at_cap"].sum()),
    }
    book.add_cells(Resource.GPUS, team, cells, gpu_type=kind)


# -- GPUs of a local day that nobody can have --


BROKEN, MAINTENANCE, BOTH = "broken", "maintenance", ""
_NAMES = {Fate.BROKEN: BROKEN, Fate.MAINTENANCE: MAINTENANCE}
_HOUR_SECONDS = 3600


def put_out(book: DayBook, ledger: UsageLedger, *, known: Iterable[int]) -> None:
    """Put broken GPUs and those in maintenance, by type, for the hours in which somebody noted how nodes were."""
    seconds: dict[GpuType, dict[tuple[int, str], int]] = {kind: defaultdict(int) for kind in ledger.installed_by_type}
    for line in ledger.lines:
        place = book.place_of(line.since)
        if line.fate in _NAMES and place is not None:
            seconds[line.gpu_type][place, _NAMES[line.fate]] += line.gpu_seconds
    day_seconds = (book.end - book.start).total_seconds()
    places = sorted(known)
    for kind, installed in sorted(ledger.installed_by_type.items()):
        for place in places:
            broken, maintenance = (seconds[kind][place, name] / _HOUR_SECONDS for name in (BROKEN, MAINTENANCE))
            values = {BROKEN: broken, MAINTENANCE: maintenance, BOTH: broken + maintenance}
            book.put(Resource.GPUS_OUT, values, hour=place, gpu_type=kind)
        if places:
            held = installed / day_seconds
            book.limit(Resource.GPUS_OUT, {BROKEN: held, MAINTENANCE: held, BOTH: held}, gpu_type=kind)


def put_stranded(
    book: DayBook,
    machines: Iterable[Machine],
    stays: Iterable[Stay],
    *,
    absences: Iterable[Absence],
    type_of: Mapping[NodeName, GpuType],
    known: Iterable[int],
) -> None:
    """Put the free GPUs that stand in pieces, by type, weighted by time within each hour."""
    occupancy = Occupancy(machines)
    kinds = sorted({type_of.get(node, GpuType("")) for node in occupancy.machines})
    pieces = dict.fromkeys(kinds, 0)
    of_node: dict[NodeName, int] = {}
    sums = {kind: [0.0] * len(book.hours) for kind in kinds}
    for stretch in occupancy.stretches(stays, absences, start=book.start, end=book.end):
        for node in stretch.changed:
            offered = occupancy.offered(node)
            is_whole = offered >= occupancy.machines[node].gpu_count
            was, of_node[node] = of_node.get(node, 0), 0 if is_whole else offered
            pieces[type_of.get(node, GpuType(""))] += of_node[node] - was
        for place, seconds in _hours(book, since=stretch.since, until=stretch.until):
            for kind in kinds:
                sums[kind][place] += pieces[kind] * seconds
    for kind in kinds:
        for place in sorted(known):
            book.put(Resource.GPUS_STRANDED, {"": sums[kind][place] / _HOUR_SECONDS}, hour=place, gpu_type=kind)


def _hours(book: DayBook, *, since: datetime, until: datetime) -> Iterable[tuple[int, float]]:
    """Yield the hours that an interval is in, each with its seconds of it."""
    while since < until:
        place = (since - book.start) // HOUR
        edge = min(until, book.start + (place + 1) * HOUR)
        yield place, (edge - since).total_seconds()
        since = edge
