"""Reads cluster.yaml and returns domain values; nothing half-read ever leaves.

How the sections become the values of `cluster_config` is `system_sections` and `site_sections`. They are read one by
one, so that a slip in one hides nothing in another; here is what they say together: nodes in racks, what they cost, who
reboots them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.objectives import Objective, ObjectiveKind, WorkloadClass
from ops_pipelines.resources.config.binding import Kinds, Made, Section, list_of, section_of
from ops_pipelines.resources.config.cluster_config import (
    AccountingKind,
    ClusterConfig,
    FleetConfig,
    JobLogsConfig,
    LakeConfig,
    LedgerConfig,
    LimitSettings,
    RebootBy,
    SchedulerConfig,
    SchedulerKind,
    ServeSettings,
)
from ops_pipelines.resources.config.redfish_settings import find_faults
from ops_pipelines.resources.config.site_sections import (
    ALERTMANAGER,
    FLEETS,
    LIMITS,
    NOTIFIERS,
    OBJECTIVE,
    PRICES,
    RACK,
    SERVE,
    Rack,
)
from ops_pipelines.resources.config.system_sections import (
    ACCOUNTING,
    DECLARED,
    JOB_LOGS,
    LAKE,
    LEDGER,
    LOGS,
    SCHEDULERS,
    TELEMETRY,
)
from ops_pipelines.resources.config.yaml_file import AnyPath, Name, YamlFile
from ops_pipelines.teams.price import PriceModel


@dataclass(frozen=True, slots=True, kw_only=True)
class _Top:
    """What is in the file; its sections, racks and objectives are read one by one."""

    name: str
    state_directory: Path
    policy: Path
    gpus_per_node: int
    racks: list[object]
    scheduler: object
    telemetry: object
    logs: object
    accounting: object = None
    job_logs: object = None
    lake: object = field(default_factory=dict)
    release: object = field(default_factory=dict)
    releases: Path = Path("releases")
    expectations: Path = Path("expectations")
    fleet: object
    ledger: object = field(default_factory=dict)
    notifier: object
    serve: object = field(default_factory=dict)
    alertmanager: object = None
    objectives: list[object] = field(default_factory=list)
    teams: Path | None = None
    capacity: Path | None = None
    projects: Path | None = None
    quotas: object = field(default_factory=dict)
    prices: object = None


CLUSTER = section_of(
    _Top,
    shapes={"name": Name, "gpus_per_node": Annotated[int, Field(ge=1, le=128)], "racks": list_of(object, least=1)},
    by_type={Path: AnyPath},
)
_UNREAD = "what could not be read leaves a fault"
_MAY_BE_NULL = ("accounting", "job_logs", "alertmanager", "prices")


def read_cluster(path: Path, *, read_from: Path | None = None) -> ClusterConfig:
    """Return what cluster.yaml says, or the copy `read_from` of it; raise ConfigError with every fault found in it."""
    file = YamlFile(path, read_from=read_from)
    top = file.read(CLUSTER, file.values, at=())
    racks = _read_entries(file, "racks", RACK)
    topology = _topology(file, racks, gpus_per_node=1 if top is None else top.gpus_per_node)
    scheduler = _part(file, "scheduler", SCHEDULERS)
    telemetry = _part(file, "telemetry", TELEMETRY)
    logs = _part(file, "logs", LOGS)
    accounting = _part(file, "accounting", ACCOUNTING)
    job_logs = _part(file, "job_logs", JOB_LOGS)
    lake = _part(file, "lake", LAKE)
    release = _part(file, "release", DECLARED)
    fleet = _part(file, "fleet", FLEETS)
    ledger = _part(file, "ledger", LEDGER)
    notifier = _part(file, "notifier", NOTIFIERS)
    serve = _part(file, "serve", SERVE)
    alertmanager = _part(file, "alertmanager", ALERTMANAGER)
    objectives = _objectives(file)
    limits = _part(file, "quotas", LIMITS)
    prices = _part(file, "prices", PRICES)
    if fleet is not None:
        _check_fleet(file, fleet, topology=topology, scheduler=scheduler)
    if prices is not None:
        _check_prices(file, racks, prices=prices)
    file.finish()
    assert top is not None, _UNREAD
    assert scheduler is not None, _UNREAD
    assert telemetry is not None, _UNREAD
    assert logs is not None, _UNREAD
    assert fleet is not None, _UNREAD
    assert notifier is not None, _UNREAD
    is_simulated = scheduler.kind is SchedulerKind.SIMULATOR
    return ClusterConfig(
        name=top.name,
        topology=topology,
        state_directory=top.state_directory,
        policy_path=top.policy,
        scheduler=scheduler,
        telemetry=telemetry,
        logs=logs,
        accounting=accounting or (AccountingKind.SIMULATOR if is_simulated else AccountingKind.SLURM),
        job_logs=job_logs or JobLogsConfig(),
        lake=_in_place(lake, state_directory=top.state_directory),
        fleet=fleet,
        ledger=ledger or LedgerConfig(url=f"sqlite:///{top.state_directory / 'ledger.sqlite'}"),
        notifier=notifier,
        serve=serve or ServeSettings(),
        alertmanager=alertmanager,
        release=release or {},
        releases_directory=path.resolve().parent / top.releases,
        expectations_directory=path.resolve().parent / top.expectations,
        objectives=objectives,
        teams_path=top.teams,
        capacity_path=top.capacity,
        projects_path=top.projects,
        limits=limits or LimitSettings(),
        prices=prices,
        bought={node: rack.bought for _, rack in racks for node in rack.nodes},
    )


def _part(file: YamlFile, key: str, section: Section[Made] | Kinds[Made]) -> Made | None:
    """Return what a section becomes; None where it is not there, or after keeping its faults."""
    if key not in file.values or (key in _MAY_BE_NULL and file.values[key] is None):
        return None
    return file.read(section, file.values[key], at=(key,))


def _read_entries(file: YamlFile, key: str, section: Section[Made]) -> list[tuple[int, Made]]:
    """Return the entries of a list that have no fault of their own, each with its number."""
    listed = file.values.get(key)
    read = [
        (index, file.read(section, each, at=(key, index)))
        for index, each in enumerate(listed if isinstance(listed, list) else ())
    ]
    return [(index, made) for index, made in read if made is not None]


def _topology(file: YamlFile, racks: Iterable[tuple[int, Rack]], *, gpus_per_node: int) -> Topology:
    places: dict[NodeName, Place] = {}
    names: set[str] = set()
    for index, rack in racks:
        if rack.name in names:
            file.add_fault(("racks", index, "name"), f"rack {rack.name} is listed twice; give each rack its own name")
        names.add(rack.name)
        for node in rack.nodes:
            if node in places:
                file.add_fault(("racks", index, "nodes"), f"{node} is already in {places[node].rack}; list it once")
                break
            places[node] = rack.place_of(node)
    return Topology(places=places, gpus_per_node=gpus_per_node)


def _in_place(lake: LakeConfig | None, *, state_directory: Path) -> LakeConfig:
    """Return where the lake is; where nothing is stated, in the state directory."""
    if lake is None or not lake.url:
        return replace(lake or LakeConfig(url=""), url=str(state_directory / "lake"))
    return lake


def _objectives(file: YamlFile) -> tuple[Objective, ...]:
    """Return the objectives in their order; what is there twice is a fault."""
    found: list[Objective] = []
    known: set[tuple[str, WorkloadClass, ObjectiveKind]] = set()
    for index, promises in _read_entries(file, "objectives", OBJECTIVE):
        for each in promises:
            key = (each.team, each.workload, each.kind)
            if key in known:
                sentence = f"{each.kind.value} of {each.team}, {each.workload.value}, is there twice"
                file.add_fault(("objectives", index), sentence)
            known.add(key)
            found.append(each)
    return tuple(found)


def _check_fleet(file: YamlFile, fleet: FleetConfig, *, topology: Topology, scheduler: SchedulerConfig | None) -> None:
    if fleet.reboot_by is RebootBy.SLURM and scheduler is not None and scheduler.kind is not SchedulerKind.SLURM:
        sentence = f"is slurm, and the scheduler is {scheduler.kind.value}; leave it out"
        file.add_fault(("fleet", "reboot_by"), sentence)
    if fleet.redfish is None:
        return
    at = ("fleet", "redfish")
    for node in fleet.redfish.addresses:
        if not topology.knows(node):
            file.add_fault((*at, "addresses", node), "is not a node of the cluster; check the name against racks")
    for key, sentence in find_faults(fleet.redfish, nodes=topology.places.keys()):
        file.add_fault((*at, key), sentence)


def _check_prices(file: YamlFile, racks: Iterable[tuple[int, Rack]], *, prices: PriceModel) -> None:
    """Keep which machines have no price: else they would be found when the first bill is written."""
    priced = {each.asset for each in prices.assets}
    names = ", ".join(sorted(priced))
    for index, rack in racks:
        at = ("racks", index, "model")
        if rack.model is None:
            file.add_fault(
                at, f"rack {rack.name} has no model, and `prices` states what each model costs; name one of {names}"
            )
        elif rack.model not in priced:
            file.add_fault(
                at,
                f"no price is stated for {rack.model}, the model of rack {rack.name}; expected one of {names}, "
                "or an entry under prices.assets",
            )
