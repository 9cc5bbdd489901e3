"""Reads cluster.yaml and returns domain values; nothing half-read ever leaves.

How YAML is read strictly is `strict_yaml`, the shape of the file `models`, what the sections become
`cluster_config`; policy.yaml is `policy_file`. Durations are `*_seconds` numbers in the file and `timedelta` from here
on; relative paths count from the directory of the file.

A function a section, in the order of the file; larger sections have modules of their own. That is more than 400 lines.
"""

from dataclasses import replace
from datetime import UTC, time, timedelta, tzinfo
from pathlib import Path
from typing import TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.notes import TellRules
from ops_pipelines.core.proposal import GpuType
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.config.cluster_config import (
    AccountingKind,
    ClusterConfig,
    ExporterTargets,
    JobLogsConfig,
    JobLogsKind,
    LakeConfig,
    LedgerConfig,
    LogsConfig,
    LogsKind,
    LokiSettings,
    NodeNameSource,
    NotifierConfig,
    NotifierKind,
    SchedulerConfig,
    SchedulerKind,
    TelemetryConfig,
    TelemetryKind,
)
from ops_pipelines.resources.config.fleet import read_fleet
from ops_pipelines.resources.config.models import (
    ACCOUNTING,
    FLEETS,
    JOB_LOGS,
    LOGS,
    NOTIFIERS,
    SCHEDULERS,
    TELEMETRY,
    AlertmanagerModel,
    AppriseModel,
    ClusterModel,
    ExportersModel,
    JobLogFilesModel,
    JournaldModel,
    LakeModel,
    LedgerModel,
    LogFilesModel,
    LokiModel,
    NoneModel,
    NvmlModel,
    PrometheusModel,
    RackModel,
    ReleaseModel,
    ServeModel,
    SlurmAccountingModel,
    SlurmModel,
    TellModel,
)
from ops_pipelines.resources.config.objectives import read_objectives
from ops_pipelines.resources.config.price_section import read_prices
from ops_pipelines.resources.config.quota_section import read_limit_settings
from ops_pipelines.resources.config.serve_settings import AlertmanagerSettings, ServeSettings, WebhookSettings
from ops_pipelines.resources.config.strict_yaml import YamlFile, expand_home
from ops_pipelines.resources.config.team_settings import Bought

Value = TypeVar("Value")
_DRIVER = "driver"
"""`observe.detectors.node.DRIVER`, which is not imported here: it brings numpy to every start."""


def read_cluster(path: Path, *, read_from: Path | None = None) -> ClusterConfig:
    """Return what cluster.yaml says, or the copy `read_from` of it; raise ConfigError with every fault found in it."""
    file = YamlFile(path, read_from=read_from)
    top = file.check(ClusterModel, file.values, at=())
    if top is None:
        _check_kinds(file)
    top = _sure(file, top)
    here = path.resolve().parent
    state_directory = _absolute(top.state_directory, here=here)
    scheduler = _read_scheduler(file, top.scheduler, here=here)
    telemetry = _read_telemetry(file, top.telemetry, here=here)
    logs = _read_logs(file, top.logs, here=here)
    accounting = _read_accounting(file, top.accounting, scheduler=scheduler)
    job_logs = _read_job_logs(file, top.job_logs, here=here)
    lake = _read_lake(file, top.lake, here=here, state_directory=state_directory)
    ledger = _read_ledger(file, top.ledger, here=here, state_directory=state_directory)
    notifier = _read_notifier(file, top.notifier, here=here)
    serve = _read_serve(file, top.serve)
    alertmanager = _read_alertmanager(file, top.alertmanager)
    release = _read_release(file, top.release)
    objectives = read_objectives(file, top.objectives)
    topology = _read_topology(file, top.racks, gpus_per_node=top.gpus_per_node)
    fleet = read_fleet(file, top.fleet, topology=topology, scheduler=scheduler, here=here)
    limits = read_limit_settings(file, top.quotas)
    prices = read_prices(file, top.prices, racks=top.racks)
    file.finish()
    return ClusterConfig(
        name=top.name,
        topology=topology,
        state_directory=state_directory,
        policy_path=_absolute(top.policy, here=here),
        scheduler=_sure(file, scheduler),
        telemetry=_sure(file, telemetry),
        logs=_sure(file, logs),
        accounting=_sure(file, accounting),
        job_logs=_sure(file, job_logs),
        lake=lake,
        fleet=_sure(file, fleet),
        ledger=_sure(file, ledger),
        notifier=_sure(file, notifier),
        serve=serve,
        alertmanager=alertmanager,
        release=release,
        releases_directory=_absolute(top.releases, here=here),
        expectations_directory=_absolute(top.expectations, here=here),
        objectives=objectives,
        teams_path=None if top.teams is None else _absolute(top.teams, here=here),
        capacity_path=None if top.capacity is None else _absolute(top.capacity, here=here),
        projects_path=None if top.projects is None else _absolute(top.projects, here=here),
        limits=limits,
        prices=prices,
        bought=_read_bought(top.racks),
    )


def _check_kinds(file: YamlFile) -> None:
    """Keep the faults of the sections with a kind too, so that one attempt shows all."""
    for section, choices in (
        ("scheduler", SCHEDULERS), ("telemetry", TELEMETRY), ("logs", LOGS), ("fleet", FLEETS), ("notifier", NOTIFIERS)
    ):  # fmt: skip
        if section in file.values:
            file.check_choice(file.values[section], choices, at=(section,))


def _sure(file: YamlFile, value: Value | None) -> Value:
    """Return `value`; where it is None its faults were kept, and `finish` raises them."""
    file.finish()
    assert value is not None, "a section that could not be read leaves a fault"
    return value


def _read_topology(file: YamlFile, racks: list[RackModel], *, gpus_per_node: int) -> Topology:
    places: dict[NodeName, Place] = {}
    rack_names: set[str] = set()
    for index, rack in enumerate(racks):
        if rack.name in rack_names:
            file.add_fault(("racks", index, "name"), f"rack {rack.name} is listed twice; give each rack its own name")
        rack_names.add(rack.name)
        try:
            nodes = expand_host_list(rack.nodes)
        except ValueError as exc:
            file.add_fault(("racks", index, "nodes"), str(exc))
            continue
        for node in nodes:
            if node in places:
                file.add_fault(("racks", index, "nodes"), f"{node} already stands in {places[node].rack}; list it once")
                break
            places[node] = Place(
                rack=rack.name,
                nvlink_domain=node if rack.nvlink_domain == "node" else rack.name,
                leaf_switch=rack.leaf_switch or f"leaf of {rack.name}",
                power_feed=rack.power_feed or "",
                model=rack.model or "",
            )
    return Topology(places=places, gpus_per_node=gpus_per_node)


def _read_bought(racks: list[RackModel]) -> dict[NodeName, Bought]:
    """Return what was bought with each node; the racks were found to be right before."""
    return {
        node: Bought(gpu_type=GpuType(rack.gpu_type), installed_since=rack.installed_since)
        for rack in racks
        for node in expand_host_list(rack.nodes)
    }


def _read_scheduler(file: YamlFile, value: object, *, here: Path) -> SchedulerConfig | None:
    section = file.check_choice(value, SCHEDULERS, at=("scheduler",))
    if section is None:
        return None
    if isinstance(section, SlurmModel):
        return SchedulerConfig(
            kind=SchedulerKind.SLURM,
            slurm_conf=file.find_file(section.slurm_conf, at=("scheduler", "slurm_conf")),
            checkpoint_roots=tuple(_absolute(root, here=here) for root in section.checkpoint_roots),
            guard_status=tuple(section.guard_status),
        )
    return SchedulerConfig(kind=SchedulerKind.SIMULATOR)


def _read_telemetry(file: YamlFile, value: object, *, here: Path) -> TelemetryConfig | None:
    section = file.check_choice(value, TELEMETRY, at=("telemetry",))
    if section is None:
        return None
    if isinstance(section, ExportersModel):
        return _read_exporters(file, section, here=here)
    if isinstance(section, NvmlModel):
        step = timedelta(seconds=section.step_seconds)
        return TelemetryConfig(kind=TelemetryKind.NVML, node=NodeName(section.node), step=step)
    if not isinstance(section, PrometheusModel):
        return TelemetryConfig(kind=TelemetryKind.SIMULATOR)
    if (section.basic_auth_user is None) is not (section.basic_auth_password_file is None):
        file.add_fault(("telemetry", "basic_auth_user"), "basic_auth_user and basic_auth_password_file go together")
    if section.basic_auth_user is not None and section.bearer_token_file is not None:
        file.add_fault(("telemetry", "bearer_token_file"), "give a bearer token or basic auth, not both")
    return TelemetryConfig(
        kind=TelemetryKind.PROMETHEUS,
        url=section.url.rstrip("/"),
        step=timedelta(seconds=section.step_seconds),
        look_back=timedelta(seconds=section.look_back_seconds),
        timeout=timedelta(seconds=section.timeout_seconds),
        labels=section.labels,
        bearer_token_file=file.find_file(section.bearer_token_file, at=("telemetry", "bearer_token_file")),
        basic_auth_user=section.basic_auth_user,
        basic_auth_password_file=file.find_file(
            section.basic_auth_password_file, at=("telemetry", "basic_auth_password_file")
        ),
        ca_file=file.find_file(section.ca_file, at=("telemetry", "ca_file")),
        tenant=section.tenant,
    )


def _read_exporters(file: YamlFile, section: ExportersModel, *, here: Path) -> TelemetryConfig:
    targets: list[ExporterTargets] = []
    for index, target in enumerate(section.targets):
        at = ("telemetry", "targets", index)
        if ("{node}" in target.url) is not (target.nodes is not None):
            file.add_fault(at, "{node} in the url and a list of nodes go together")
            continue
        try:
            nodes = () if target.nodes is None else expand_host_list(target.nodes)
        except ValueError as exc:
            file.add_fault((*at, "nodes"), str(exc))
            continue
        targets.append(ExporterTargets(url=target.url, nodes=nodes))
    return TelemetryConfig(
        kind=TelemetryKind.EXPORTERS,
        step=timedelta(seconds=section.step_seconds),
        timeout=timedelta(seconds=section.timeout_seconds),
        targets=tuple(targets),
        worker_count=section.worker_count,
        bearer_token_file=file.find_file(section.bearer_token_file, at=("telemetry", "bearer_token_file")),
        ca_file=file.find_file(section.ca_file, at=("telemetry", "ca_file")),
    )


def _read_logs(file: YamlFile, value: object, *, here: Path) -> LogsConfig | None:
    section = file.check_choice(value, LOGS, at=("logs",))
    if section is None:
        return None
    if isinstance(section, LogFilesModel):
        return LogsConfig(
            kind=LogsKind.FILES,
            paths=tuple(str(_absolute(path, here=here)) for path in section.paths),
            node_name_source=NodeNameSource(section.node_name_source),
            timezone=_zone(file, section.timezone, at=("logs", "timezone")),
        )
    if isinstance(section, LokiModel):
        return LogsConfig(kind=LogsKind.LOKI, loki=_read_loki(file, section, at="logs", here=here))
    if isinstance(section, JournaldModel):
        directory = None if section.journal_directory is None else _absolute(section.journal_directory, here=here)
        return LogsConfig(kind=LogsKind.JOURNALD, journal_directory=directory)
    return LogsConfig(kind=LogsKind.SIMULATOR)


def _read_accounting(file: YamlFile, value: object, *, scheduler: SchedulerConfig | None) -> AccountingKind | None:
    """Return where attempts are accounted; where nothing is said, with the scheduler itself."""
    if value is None:
        is_simulated = scheduler is None or scheduler.kind is SchedulerKind.SIMULATOR
        return AccountingKind.SIMULATOR if is_simulated else AccountingKind.SLURM
    section = file.check_choice(value, ACCOUNTING, at=("accounting",))
    if section is None:
        return None
    if isinstance(section, SlurmAccountingModel):
        return AccountingKind.SLURM
    return AccountingKind.NONE if isinstance(section, NoneModel) else AccountingKind.SIMULATOR


def _read_job_logs(file: YamlFile, value: object, *, here: Path) -> JobLogsConfig | None:
    if value is None:
        return JobLogsConfig()
    section = file.check_choice(value, JOB_LOGS, at=("job_logs",))
    if section is None:
        return None
    if isinstance(section, LokiModel):
        return JobLogsConfig(kind=JobLogsKind.LOKI, loki=_read_loki(file, section, at="job_logs", here=here))
    if not isinstance(section, JobLogFilesModel):
        return JobLogsConfig()
    for index, path in enumerate(section.paths):
        if "%j" not in path:
            file.add_fault(("job_logs", "paths", index), f"{path!r} says nowhere which job wrote it; put %j for its id")
    return JobLogsConfig(kind=JobLogsKind.FILES, paths=tuple(str(_absolute(path, here=here)) for path in section.paths))


def _read_loki(file: YamlFile, section: LokiModel, *, at: str, here: Path) -> LokiSettings:
    if (section.basic_auth_user is None) is not (section.basic_auth_password_file is None):
        file.add_fault((at, "basic_auth_user"), "basic_auth_user and basic_auth_password_file go together")
    if section.basic_auth_user is not None and section.bearer_token_file is not None:
        file.add_fault((at, "bearer_token_file"), "give a bearer token or basic auth, not both")
    plain = LokiSettings(url=section.url.rstrip("/"), query=section.query)
    return replace(
        plain,
        node_labels=plain.node_labels if section.node_labels is None else tuple(section.node_labels),
        job_label=section.job_label,
        tenant=section.tenant,
        bearer_token_file=file.find_file(section.bearer_token_file, at=(at, "bearer_token_file")),
        basic_auth_user=section.basic_auth_user,
        basic_auth_password_file=file.find_file(section.basic_auth_password_file, at=(at, "basic_auth_password_file")),
        ca_file=file.find_file(section.ca_file, at=(at, "ca_file")),
        timeout=timedelta(seconds=section.timeout_seconds),
        look_back=timedelta(hours=section.look_back_hours),
        window=timedelta(hours=section.window_hours),
        settle=timedelta(seconds=section.settle_seconds),
        max_page_lines=section.max_page_lines,
    )


def _read_lake(file: YamlFile, section: LakeModel, *, here: Path, state_directory: Path) -> LakeConfig:
    """Return where the lake is; a coarser copy that is deleted before the finer one is a fault."""
    order = [section.raw_days, section.five_minute_days, section.hourly_days]
    known = [days for days in order if days is not None]
    if known != sorted(known):
        file.add_fault(("lake",), "raw_days, five_minute_days and hourly_days must not fall in this order")
    if 3600 % section.step_seconds:
        file.add_fault(
            ("lake", "step_seconds"), f"found {section.step_seconds}; it must part an hour evenly, as 15 does"
        )
    url = section.url or str(state_directory / "lake")
    return LakeConfig(
        url=url if "://" in url else str(_absolute(url, here=here)),
        step=timedelta(seconds=section.step_seconds),
        raw_days=section.raw_days,
        five_minute_days=section.five_minute_days,
        hourly_days=section.hourly_days,
        record_days=section.record_days,
    )


def _read_release(file: YamlFile, section: ReleaseModel) -> dict[str, str]:
    """Return the declared versions: the driver's under `driver`, of firmware under the model of the part."""
    if _DRIVER in section.firmware:
        file.add_fault(("release", "firmware", _DRIVER), "the driver stands beside firmware, as release.driver")
    return dict(section.firmware) | ({} if section.driver is None else {_DRIVER: section.driver})


def _zone(file: YamlFile, name: str, *, at: tuple[str, ...]) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        file.add_fault(at, f"found {name!r}; expected a zone of the IANA list such as Europe/Berlin")
        return UTC


def _read_ledger(file: YamlFile, section: LedgerModel, *, here: Path, state_directory: Path) -> LedgerConfig | None:
    if section.url is not None and section.url_file is not None:
        file.add_fault(("ledger", "url_file"), "give url or url_file, not both")
        return None
    if section.url is not None:
        return _ledger_at(file, section.url, at=("ledger", "url"))
    url_file = file.find_file(section.url_file, at=("ledger", "url_file"))
    if url_file is not None:
        try:
            url = url_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            file.add_fault(("ledger", "url_file"), f"cannot be read ({type(exc).__name__}); check its permissions")
            return None
        return _ledger_at(file, url, at=("ledger", "url_file"))
    return LedgerConfig(url=f"sqlite:///{state_directory / 'ledger.sqlite'}")


def _ledger_at(file: YamlFile, url: str, *, at: tuple[str, ...]) -> LedgerConfig | None:
    if "?" in url:
        from ops_pipelines.resources.ledger.database import has_secret_in_query

        if has_secret_in_query(url):
            remedy = "write it as user:password@host, or leave it to passfile or PGPASSWORD"
            file.add_fault(at, f"the URL has a password in its query, where errors would show it; {remedy}")
            return None
    return LedgerConfig(url=url)


def _read_notifier(file: YamlFile, value: object, *, here: Path) -> NotifierConfig | None:
    section = file.check_choice(value, NOTIFIERS, at=("notifier",))
    if section is None:
        return None
    if not isinstance(section, TellModel):
        return None
    tell_rules = _read_tell_rules(file, section)
    if not isinstance(section, AppriseModel):
        return NotifierConfig(kind=NotifierKind.FILE, tell_rules=tell_rules)
    if section.on_call_urls_file is None:
        file.add_fault(("notifier",), "on_call_urls_file is missing; without it a page would reach nobody")
    return NotifierConfig(
        kind=NotifierKind.APPRISE,
        owner_urls_file=file.find_file(section.owner_urls_file, at=("notifier", "owner_urls_file")),
        team_urls_file=file.find_file(section.team_urls_file, at=("notifier", "team_urls_file")),
        on_call_urls_file=file.find_file(section.on_call_urls_file, at=("notifier", "on_call_urls_file")),
        tell_rules=tell_rules,
    )


def _read_tell_rules(file: YamlFile, section: TellModel) -> TellRules:
    quiet_from, _, quiet_until = section.quiet_hours.partition("-")
    return TellRules(
        group_window=timedelta(seconds=section.group_seconds),
        burst_count=section.burst_count,
        refill=timedelta(minutes=section.refill_minutes),
        quiet_from=None if quiet_from == "none" else time.fromisoformat(quiet_from),
        quiet_until=time(0) if quiet_from == "none" else time.fromisoformat(quiet_until),
        digest_at=time.fromisoformat(section.digest_at),
        zone=_zone(file, section.timezone, at=("notifier", "timezone")),
        give_up_after=timedelta(hours=section.give_up_hours),
        kept_for=timedelta(days=section.kept_days),
    )


def _read_serve(file: YamlFile, section: ServeModel) -> ServeSettings:
    webhook = section.webhook
    at = ("serve", "webhook")
    return ServeSettings(
        base_url=None if section.base_url is None else section.base_url.rstrip("/"),
        link_key_file=file.find_file(section.link_key_file, at=("serve", "link_key_file")),
        link_life=timedelta(seconds=section.link_life_seconds),
        webhook=WebhookSettings(
            bearer_token_file=file.find_file(webhook.bearer_token_file, at=(*at, "bearer_token_file")),
            hmac_key_file=file.find_file(webhook.hmac_key_file, at=(*at, "hmac_key_file")),
            max_body_bytes=webhook.max_body_bytes,
            max_requests_per_minute_count=webhook.max_requests_per_minute_count,
        ),
    )


def _read_alertmanager(file: YamlFile, section: AlertmanagerModel | None) -> AlertmanagerSettings | None:
    if section is None:
        return None
    at = "alertmanager"
    if section.basic_auth_user is not None and section.bearer_token_file is not None:
        file.add_fault((at, "bearer_token_file"), "give a bearer token or basic auth, not both")
    return AlertmanagerSettings(
        url=section.url.rstrip("/"),
        node_label=section.node_label,
        labels=section.labels,
        bearer_token_file=file.find_file(section.bearer_token_file, at=(at, "bearer_token_file")),
        basic_auth_user=section.basic_auth_user,
        basic_auth_password_file=file.find_file(section.basic_auth_password_file, at=(at, "basic_auth_password_file")),
        ca_file=file.find_file(section.ca_file, at=(at, "ca_file")),
        timeout=timedelta(seconds=section.timeout_seconds),
    )


def _absolute(path: str, *, here: Path) -> Path:
    return here / expand_home(path)
