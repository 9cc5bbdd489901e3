"""What cluster.yaml says, as frozen values: where each system is, how it is asked. Reading it is `cluster_file`.

Beside them what follows from them alone: what the site offers to do to its machines, what of that would fail a rollout,
and the register of nodes, where each node is and since when, bought with which GPUs. Secrets stay in their files and
are read when needed. How BMCs are asked is `redfish_settings`. It has more than 400 lines because the file has.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, tzinfo
from enum import Enum
from pathlib import Path

from ops_pipelines.core.cluster import SiteMeans
from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.core.notes import TellRules
from ops_pipelines.core.objectives import Objective
from ops_pipelines.core.periods import instant_of
from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.resources.config.redfish_settings import POWER_ACTS, RedfishSettings
from ops_pipelines.teams.desk import LimitsOn
from ops_pipelines.teams.price import InstalledNode, PriceModel

# -- what cluster.yaml says --


class SchedulerKind(Enum):
    SIMULATOR = "simulator"
    SLURM = "slurm"


class TelemetryKind(Enum):
    SIMULATOR = "simulator"
    PROMETHEUS = "prometheus"
    EXPORTERS = "exporters"
    """Exporters scraped directly, where there is no store."""
    NVML = "nvml"
    """The GPUs of the node that the program runs on."""


class LogsKind(Enum):
    SIMULATOR = "simulator"
    FILES = "files"
    JOURNALD = "journald"
    LOKI = "loki"


class FleetKind(Enum):
    SIMULATOR = "simulator"
    COMMANDS = "commands"


class RebootBy(Enum):
    """Who restarts a node that answers."""

    COMMAND = "command"
    SLURM = "slurm"
    """slurmctld and its RebootProgram: docs/SLURM.md says what that does to a drain."""


class NotifierKind(Enum):
    FILE = "file"
    """Messages are appended to `messages.jsonl` in the state directory."""
    APPRISE = "apprise"


class AccountingKind(Enum):
    SIMULATOR = "simulator"
    SLURM = "slurm"
    NONE = "none"


class JobLogsKind(Enum):
    FILES = "files"
    LOKI = "loki"
    NONE = "none"


class NodeNameSource(Enum):
    """Where a log line's node comes from."""

    LINE = "line"
    """The host name in the line's own prefix."""
    FILE_STEM = "file_stem"
    """The file's name up to its first suffix: `gpu003.log` holds the lines of gpu003."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterTargets:
    """One kind of exporter on many nodes, or one exporter that belongs to no node."""

    url: str
    """http(s)://host:port/path; `{node}` means the node's name."""
    nodes: tuple[NodeName, ...] = ()
    """Empty: the URL is one target, whose page may speak of any node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How the workload manager is asked."""

    kind: SchedulerKind
    slurm_conf: Path | None = None
    """None: Slurm's commands find their configuration as they do in a shell."""
    guard_status: tuple[str, ...] = ()
    """What prints the status of slurmctld's start guard where that is another host; empty: it is asked here."""
    checkpoint_roots: tuple[Path, ...] = ()
    """Directories in which a job's checkpoint may be looked at; empty: none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """Where GPU metrics come from. Only `kind` counts for the simulator."""

    kind: TelemetryKind
    url: str | None = None
    """None only for the simulator."""
    step: timedelta = timedelta(seconds=15)
    """The grid: samples are read at whole multiples of it."""
    look_back: timedelta = timedelta(seconds=120)
    """A series without a value for longer is left out of the answer."""
    timeout: timedelta = timedelta(seconds=10)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label values that select this cluster in a shared store; empty where the store holds this cluster only."""
    bearer_token_file: Path | None = None
    basic_auth_user: str | None = None
    basic_auth_password_file: Path | None = None
    ca_file: Path | None = None
    tenant: str | None = None
    """Sent as X-Scope-OrgID (Mimir, Thanos, Cortex); None sends no such header."""
    targets: tuple[ExporterTargets, ...] = ()
    """Exporters; empty unless the kind is exporters."""
    worker_count: int = 32
    """How many exporters are asked at once."""
    node: NodeName | None = None
    """The node that the program runs on; None unless the kind is nvml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LokiSettings:
    """How to ask one Loki."""

    url: str
    """http(s)://host[:port][/path], without /loki/api/v1."""
    query: str
    """LogQL that selects streams, as `{job="kernel"}`; filters may follow, no metric query."""
    node_labels: tuple[str, ...] = ("node", "node_name", "host", "hostname", "nodename", "instance")
    """Labels that name the node; the first that a stream has counts. A port behind the name is cut off."""
    job_label: str | None = None
    """Label that holds the job id, for the output of jobs."""
    tenant: str | None = None
    bearer_token_file: Path | None = None
    basic_auth_user: str | None = None
    basic_auth_password_file: Path | None = None
    ca_file: Path | None = None
    timeout: timedelta = timedelta(seconds=30)
    look_back: timedelta = timedelta(days=7)
    """Where reading begins without a cursor. Loki keeps for as long as it is configured to; it says nothing of it here.
    """
    window: timedelta = timedelta(hours=6)
    """Asked at once; must be below the server's `max_query_length` (30 days by default)."""
    settle: timedelta = timedelta(seconds=10)
    """Lines younger than this wait: streams arrive at their own pace, and what comes behind the cursor is lost."""
    max_page_lines: int = 5000
    """The server's `max_entries_limit_per_query`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsConfig:
    """Where kernel log lines come from. Only `kind` counts for the simulator."""

    kind: LogsKind
    paths: tuple[str, ...] = ()
    """Files or glob patterns; empty unless the kind is files."""
    node_name_source: NodeNameSource = NodeNameSource.LINE
    timezone: tzinfo = UTC
    """The zone of line prefixes that name none."""
    journal_directory: Path | None = None
    """None means the journal of this machine."""
    loki: LokiSettings | None = None
    """None unless the kind is loki."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLogsConfig:
    """Where the output files of jobs are."""

    kind: JobLogsKind = JobLogsKind.NONE
    paths: tuple[str, ...] = ()
    """Glob patterns in which `%j` means the job id, as in Slurm's own `--output`."""
    loki: LokiSettings | None = None
    """None unless the kind is loki."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeConfig:
    """Where telemetry is kept, and for how long. None keeps it for good."""

    url: str
    """A directory, or the URL of an object store."""
    step: timedelta = timedelta(seconds=15)
    """The grid on which metrics are kept, and how often the live cycle turns: whole seconds."""
    raw_days: int | None = None
    five_minute_days: int | None = None
    hourly_days: int | None = None
    record_days: int | None = None
    """Of `rejected_rows`, `job_logs` and `kernel_events`."""


DEFAULT_ANSIBLE_LIMIT = timedelta(minutes=55)
"""A little less than `rollouts.install_limit_seconds`: a playbook is over when the node is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsibleSettings:
    """Where the site's playbooks are."""

    playbooks: Path
    """A directory: releases name files in it; its `ansible.cfg`, `group_vars` and `host_vars` hold."""
    limit: timedelta = DEFAULT_ANSIBLE_LIMIT
    """What one installation may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """How machines are reached past the scheduler."""

    kind: FleetKind
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Act -> argument list, as `resources.fleet.command_fleet` takes them. An act that is not here is refused."""
    reboot_by: RebootBy = RebootBy.COMMAND
    redfish: RedfishSettings | None = None
    """How BMCs are asked for power and for firmware; None: power by commands or not at all, firmware not at all."""
    ansible: AnsibleSettings | None = None
    """Where playbooks are that install; None: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """Where the ledger is kept: an SQLAlchemy URL. It may hold a password, so it is not shown in a repr."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierConfig:
    """Whom messages reach. URLs hold secrets: they are never printed."""

    kind: NotifierKind
    owner_urls_file: Path | None = None
    """A file of channels (`resources.notifier`) for the owners of jobs; None: such messages go to the file only."""
    team_urls_file: Path | None = None
    on_call_urls_file: Path | None = None
    tell_rules: TellRules = TellRules()
    """How quiet the autopilot is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookSettings:
    """Who may hand alerts in, and how much. Without a secret of either kind every alert is refused."""

    bearer_token_file: Path | None = None
    hmac_key_file: Path | None = None
    """Of `X-Signature-256: sha256=<hex of HMAC-SHA256 over the body>`."""
    max_body_bytes: int = 1_048_576
    max_requests_per_minute_count: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerSettings:
    """The Alertmanager in which alerts of planned work are silenced."""

    url: str
    """http(s)://host[:port][/path], without /api/v2."""
    node_label: str = "node"
    """The label of its alerts that names the node; a port behind the name is tolerated."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Label values that its alerts of this cluster carry; empty where it knows this cluster only."""
    bearer_token_file: Path | None = None
    basic_auth_user: str | None = None
    basic_auth_password_file: Path | None = None
    ca_file: Path | None = None
    timeout: timedelta = timedelta(seconds=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """What the web process of one cluster needs."""

    base_url: str | None = None
    """How people reach it, `https://ops.example.org/gpu`; None: no message carries a link."""
    link_key_file: Path | None = None
    """Signs approval links; None: approvals come from the command line and the UI only."""
    link_life: timedelta = timedelta(hours=4)
    webhook: WebhookSettings = WebhookSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """The section `quotas` of cluster.yaml. How far quotas move is policy.yaml's."""

    limits_on: LimitsOn = LimitsOn.TOTAL
    qos_of: Mapping[TeamName, str] = field(default_factory=dict)
    """Teams whose GPUs the scheduler limits by a QOS in place of the account, and which QOS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bought:
    """What was bought with one node, and when it came."""

    gpu_type: GpuType = GpuType("")
    """As the scheduler writes it; empty where the cluster has one type, or distinguishes none."""
    installed_since: date | None = None
    """The first day that it stood there, in the zone of the teams; None: it always did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """One cluster: what exists, and how it is asked. Paths are absolute."""

    name: str
    topology: Topology
    state_directory: Path
    policy_path: Path
    scheduler: SchedulerConfig
    telemetry: TelemetryConfig
    logs: LogsConfig
    accounting: AccountingKind
    job_logs: JobLogsConfig
    lake: LakeConfig
    fleet: FleetConfig
    ledger: LedgerConfig
    notifier: NotifierConfig
    serve: ServeSettings = ServeSettings()
    alertmanager: AlertmanagerSettings | None = None
    """None: no alert is silenced."""
    releases_directory: Path = Path("releases")
    """Where releases lie, a file each; nothing is rolled out where there is none."""
    expectations_directory: Path = Path("expectations")
    """Where the site's expectations of its tables lie, a suite each; none where there is no such directory."""
    release: Mapping[str, str] = field(default_factory=dict)
    """The versions that ought to run, as `observe.detectors.node` takes them; empty: none is declared."""
    objectives: tuple[Objective, ...] = ()
    """What was promised to teams; empty: nothing was."""
    teams_path: Path | None = None
    """What was agreed with teams; None: no file is named."""
    capacity_path: Path | None = None
    """What can be bought, comes and goes; None: no file is named."""
    projects_path: Path | None = None
    """Planned demand beside that of `teams_path`; None: no file is named."""
    limits: LimitSettings = field(default_factory=LimitSettings)
    prices: PriceModel | None = None
    """None: nothing can be charged."""
    bought: Mapping[NodeName, Bought] = field(default_factory=dict)
    """Of every node of the topology. Not in `Place`: what was paid decides nothing about a node."""


_ACTS = {
    SiteMeans.INSPECT: ("inspect",),
    SiteMeans.CHECK: ("start_check", "read_check"),
    SiteMeans.POWER: POWER_ACTS,
    SiteMeans.RESET_GPU: ("reset_gpu",),
    SiteMeans.REBOOT: ("reboot",),
    SiteMeans.REIMAGE: ("reimage",),
}
"""The commands without which each means is not there."""


def offered_means(fleet: FleetConfig) -> frozenset[SiteMeans]:
    """Return what the site offers to do to its machines, as cluster.yaml names it; of simulated ones everything."""
    if fleet.kind is FleetKind.SIMULATOR:
        return frozenset(SiteMeans)
    by_command = {means for means, acts in _ACTS.items() if fleet.commands.keys() >= set(acts)}
    by_power = {SiteMeans.POWER} if fleet.redfish is not None else set()
    by_scheduler = {SiteMeans.REBOOT} if fleet.reboot_by is RebootBy.SLURM else set()
    return frozenset(by_command | by_power | by_scheduler)


def find_install_gaps(
    commands: Mapping[str, tuple[str, ...]], ansible: AnsibleSettings | None, *, missing: str
) -> tuple[str, ...]:
    """Return what works but would fail a rollout, in words for the operator; `missing` is what ansible lacks."""
    gaps = []
    installs = [
        f"fleet.{key}" for key, is_there in (("start_install", "start_install" in commands), ("ansible", ansible))
        if is_there
    ]  # fmt: skip
    if installs and "read_versions" not in commands:
        gaps.append(
            f"{' and '.join(installs)} installs, but fleet.read_versions is not set: what runs afterwards is not seen, "
            "and every node of a rollout fails"
        )
    if ansible is not None and missing:
        gaps.append(f"fleet.ansible: {missing}")
    return tuple(gaps)


# -- the register of nodes, from the racks of cluster.yaml --


ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
"""Since when a node is whose rack does not say: before every hour that can be billed."""
_UNSAID = Bought()


def installed_nodes(config: ClusterConfig, *, zone: tzinfo) -> tuple[InstalledNode, ...]:
    """Return every node of the racks, by name; days begin in the zone of the teams."""
    topology = config.topology
    return tuple(
        InstalledNode(
            node=node,
            asset=topology.places[node].model,
            gpu_type=_of(config, node).gpu_type,
            gpu_count=topology.gpus_per_node,
            since=_begin(_of(config, node), zone=zone),
            until=None,
        )
        for node in sorted(topology.places)
    )


def gpu_types(config: ClusterConfig) -> dict[NodeName, GpuType]:
    """Return the type of the GPUs of each node whose rack says one."""
    return {node: each.gpu_type for node, each in config.bought.items() if each.gpu_type}


def installed_gpus(config: ClusterConfig, *, now: datetime, zone: tzinfo) -> dict[GpuType, int]:
    """Return how many GPUs of each type stand there now; a type of which none has come yet counts 0."""
    found: Counter[GpuType] = Counter()
    for each in installed_nodes(config, zone=zone):
        found[each.gpu_type] += each.gpu_count if each.since <= now else 0
    return dict(found)


def _of(config: ClusterConfig, node: NodeName) -> Bought:
    return config.bought.get(node, _UNSAID)


def _begin(bought: Bought, *, zone: tzinfo) -> datetime:
    day = bought.installed_since
    if day is None:
        return ALWAYS
    return instant_of(datetime(day.year, day.month, day.day, tzinfo=zone), zone)
