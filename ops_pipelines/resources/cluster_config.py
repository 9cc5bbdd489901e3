"""What cluster.yaml says, as frozen values: where each system is, how it is asked. Reading it is `config_files`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, timedelta, tzinfo
from enum import Enum
from pathlib import Path

from ops_pipelines.domain.topology import Topology


class SchedulerKind(Enum):
    SIMULATOR = "simulator"
    SLURM = "slurm"


class TelemetryKind(Enum):
    SIMULATOR = "simulator"
    PROMETHEUS = "prometheus"


class LogsKind(Enum):
    SIMULATOR = "simulator"
    FILES = "files"
    JOURNALD = "journald"


class FleetKind(Enum):
    SIMULATOR = "simulator"
    COMMANDS = "commands"


class NotifierKind(Enum):
    FILE = "file"
    """Messages are appended to `messages.jsonl` in the state directory."""
    APPRISE = "apprise"


class NodeNameSource(Enum):
    """Where a log line's node comes from."""

    LINE = "line"
    """The host name in the line's own prefix."""
    FILE_STEM = "file_stem"
    """The file's name up to its first suffix: `gpu003.log` holds the lines of gpu003."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How the workload manager is asked."""

    kind: SchedulerKind
    slurm_conf: Path | None = None
    """None: Slurm's commands find their configuration as they do in a shell."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """How machines are reached past the scheduler."""

    kind: FleetKind
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Act -> argument list, as `resources.node_commands` takes them. An act that is not here is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """Where the ledger is kept: an SQLAlchemy URL. It may hold a password, so it is not shown in a repr."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifierConfig:
    """Whom messages reach. URLs hold secrets: they are never printed."""

    kind: NotifierKind
    owner_urls_file: Path | None = None
    """A file with one Apprise URL a line, for the owners of jobs; None: such messages go to the file only."""
    on_call_urls_file: Path | None = None


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
    fleet: FleetConfig
    ledger: LedgerConfig
    notifier: NotifierConfig
