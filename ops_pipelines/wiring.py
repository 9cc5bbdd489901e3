"""Binds the ports to adapters or to the simulator, as cluster.yaml says. Knows both sides; decides nothing.

Without Dagster, so that the command line starts fast. All bindings stand here, so that what is bound to what is read in
one place; that is more than 400 lines.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol, cast

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.cluster import Cluster, Fleet, Observatory
from ops_pipelines.core.notes import Notifier, Silencer
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.policy import Policy, under
from ops_pipelines.core.record import ApprovalLinks
from ops_pipelines.core.scheduler import Quotas, Scheduler, SchedulerSettings
from ops_pipelines.core.sources import (
    Accounting,
    Declared,
    Lake,
    LakeKeeper,
    Logs,
    MetricSource,
    ReadComment,
    Telemetry,
)
from ops_pipelines.laboratory import laboratory
from ops_pipelines.remediate.ladder import within_means
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.resources.config.cluster_config import (
    AccountingKind,
    ClusterConfig,
    FleetKind,
    JobLogsKind,
    LogsKind,
    NotifierKind,
    RebootBy,
    SchedulerKind,
    TelemetryKind,
    offered_means,
)
from ops_pipelines.resources.config.in_force import (
    LAST_GOOD_FILE,
    InForce,
    Stamp,
    content_of,
    fallbacks_of,
    keep_cluster_file,
    read_cluster_in_force,
    read_kept_plans,
    read_kept_teams,
    read_policy_in_force,
    remember_state_directory,
    stamps_of,
    stated_stamps,
    trouble_with_cluster,
)
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.files import keep_private
from ops_pipelines.resources.lake.past_work import LakePastWork, LakeWindow
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.state import LedgerChronicle, rules_document
from ops_pipelines.resources.ledger.watch import SeenFile
from ops_pipelines.resources.page_files import (
    BUNDLE_DIRECTORY,
    CAPACITY_DIRECTORY,
    CHARGEBACK_DIRECTORY,
    REPORT_DIRECTORY,
    BundleFiles,
    ComparisonPages,
    PageFiles,
    PlanDirectory,
    StatementDirectory,
    read_proposed_policy,
)
from ops_pipelines.resources.release_files import ReleaseDirectory
from ops_pipelines.resources.state_files import JobFactsFile, PauseFile
from ops_pipelines.resources.web_access import KeyFileSeal
from ops_pipelines.review.replay import PolicyDesk
from ops_pipelines.review.replay_result import History
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

TWIN_DIRECTORY = "twin"
INSTALL_DIRECTORY = "installs"


def read_rules(config: ClusterConfig) -> Rules:
    """Return the policy, topology and catalogue of a cluster; raise PolicyError with every fault found."""
    return Rules(
        policy=policy_here(config, read_policy(config.policy_path, topology=config.topology)),
        topology=config.topology,
        catalogue=read_catalogue(),
    )


def policy_here(config: ClusterConfig, policy: Policy) -> Policy:
    """Return the policy without what the site has no means for."""
    return within_means(policy, offered_means(config.fleet))


def open_cluster(cluster_file: Path, *, state_directory: Path | None = None) -> Cluster:
    """Return the cluster that `cluster_file` describes: its ports, opened once a process, under the rules of now.

    So anyone who asks again for each pass works by policy.yaml as it is, or as it was while it cannot be used. Raises
    PolicyError on a cluster.yaml that was never right, and LedgerError if the ledger cannot be opened. A system that is
    down is no fault here: its port says so when it is asked. `state_directory` is where the last good cluster.yaml is
    looked for, beside the places that are known.
    """
    return _site_of(cluster_file, state_directory).cluster()


@cache
def _site_of(cluster_file: Path, state_directory: Path | None) -> "OpenedSite":
    return OpenedSite(cluster_file, SystemClock(), state_directory=state_directory)


def forget_opened() -> None:
    """Forget every cluster that was opened: its state directory is gone, or another cluster's by now."""
    _site_of.cache_clear()
    open_observatory.cache_clear()
    _desk_of.cache_clear()


def config_in_force(cluster_file: Path) -> ClusterConfig:
    """Return what cluster.yaml says, or reported last while it cannot be used. Raises ConfigError if it was never
    right."""
    return read_cluster_in_force(cluster_file, now=SystemClock().now()).content


_TROUBLE_LASTS = timedelta(seconds=30)
"""So long before a configuration that cannot be used is looked at again, though it has not changed."""


class OpenedSite:
    """One cluster's ports, opened once, and its rules, read again when policy.yaml changed. Threads may share it."""

    def __init__(self, cluster_file: Path, clock: Clock, *, state_directory: Path | None = None) -> None:
        """Read cluster.yaml and open its ports. Raises as `open_cluster`."""
        keep_private()
        self._cluster_file = cluster_file
        self._clock = clock
        self._turn = Lock()
        self._content = content_of(cluster_file)
        told = read_cluster_in_force(cluster_file, now=clock.now(), named=state_directory)
        self._config = told.content
        remember_state_directory(cluster_file, self._config.state_directory)
        self._config.state_directory.mkdir(parents=True, exist_ok=True)
        if told.read_from is None:
            keep_cluster_file(cluster_file, self._content, state_directory=self._config.state_directory)
        else:
            self._content = content_of(told.read_from)
        policy = _policy_of(self._config, now=clock.now()).content
        self._cluster = _assemble(self._config, clock, policy=policy)
        self._stamps: tuple[Stamp, ...] | None = None
        self._again_at: datetime | None = None

    def cluster(self) -> Cluster:
        """Return the ports under the rules that hold now. Raises LedgerError where new rules cannot be stored."""
        with self._turn:
            now = self._clock.now()
            stamps = stamps_of((self._cluster_file, self._config.policy_path))
            if stamps != self._stamps or (self._again_at is not None and now >= self._again_at):
                self._read_again(now=now)
                self._stamps = stamps
            return self._cluster

    def _read_again(self, *, now: datetime) -> None:
        is_same = content_of(self._cluster_file) == self._content
        trouble = trouble_with_cluster(self._cluster_file, self._config, is_same=is_same, now=now)
        is_restart_wanted = not is_same and trouble is None
        told = _policy_of(self._config, now=now)
        troubles = tuple(each for each in (trouble, told.trouble) if each is not None)
        fallbacks = fallbacks_of(troubles, now=now)
        rules = replace(self._cluster.rules, policy=under(fallbacks, told.content))
        if rules != self._cluster.rules:
            self._cluster = _under_rules(self._cluster, rules, self._config)
        restart_for = self._cluster_file.name if is_restart_wanted else ""
        # The same one while nothing has changed: what others keep for it is kept on.
        now_known = self._cluster.troubles, self._cluster.fallbacks, self._cluster.restart_for
        if now_known != (troubles, fallbacks, restart_for):
            self._cluster = replace(self._cluster, troubles=troubles, fallbacks=fallbacks, restart_for=restart_for)
        ends = [each.until for each in troubles if not each.is_over(now)]
        looks = [] if told.again_at is None else [told.again_at]
        # What is wrong may be a file that these two name: nobody reports us when that is there again.
        anew = [now + _TROUBLE_LASTS] if troubles else []
        self._again_at = min([*ends, *looks, *anew], default=None)


def _policy_of(config: ClusterConfig, *, now: datetime) -> InForce[Policy]:
    told = read_policy_in_force(
        config.policy_path, topology=config.topology, state_directory=config.state_directory, now=now
    )
    return replace(told, content=policy_here(config, told.content))


def _under_rules(cluster: Cluster, rules: Rules, config: ClusterConfig) -> Cluster:
    """Return the cluster under other rules, which are kept under the digest that every snapshot names."""
    return replace(
        cluster,
        rules=rules,
        rules_digest=cluster.ledger.store(rules_document(rules)),
        rollout_files=_rollout_files(config, rules.policy),
    )


def _rollout_files(config: ClusterConfig, policy: Policy) -> ReleaseDirectory:
    return ReleaseDirectory(
        config.releases_directory,
        calendars=[config.policy_path.parent / each for each in policy.maintenance_calendars],
    )


def assemble(config: ClusterConfig, clock: Clock) -> Cluster:
    """Return the ports that `config` names, with `clock`; raise PolicyError with every fault of policy.yaml."""
    keep_private()
    config.state_directory.mkdir(parents=True, exist_ok=True)
    return _assemble(config, clock, policy=read_rules(config).policy)


def _assemble(config: ClusterConfig, clock: Clock, *, policy: Policy) -> Cluster:
    rules = Rules(policy=policy, topology=config.topology, catalogue=read_catalogue())
    simulated = _Simulated(config, clock)
    ledger = SqlLedger(
        config.ledger.url,
        pause_file=PauseFile(config.state_directory),
        seen_file=SeenFile(config.state_directory),
    )
    ledger.identify(clock.now())
    return Cluster(
        name=config.name,
        scheduler=_scheduler(config, simulated, clock),
        fleet=_fleet(config, simulated, clock),
        telemetry=_telemetry(config, simulated),
        logs=(_logs(config, simulated, clock),),
        ledger=ledger,
        notifier=_notifier(config, clock),
        clock=clock,
        rules=rules,
        is_simulated=config.scheduler.kind is not SchedulerKind.SLURM,
        means=offered_means(config.fleet),
        # Kept under the digest that every snapshot names: a replay decides under the rules of then.
        rules_digest=ledger.store(rules_document(rules)),
        bundles=BundleFiles(config.state_directory / BUNDLE_DIRECTORY),
        recollection=LakeWindow(lambda: open_lake(config, clock=clock)),
        past_work=LakePastWork(lambda: open_lake(config, clock=clock)),
        job_facts=JobFactsFile(config.state_directory),
        page_shelf=PageFiles(config.state_directory / REPORT_DIRECTORY),
        silencer=_silencer(config, clock),
        approval_links=_approval_links(config),
        outbox=ledger,
        rollout_files=_rollout_files(config, policy),
        tell_rules=config.notifier.tell_rules,
        pages_url=config.serve.base_url,
    )


def _silencer(config: ClusterConfig, clock: Clock) -> Silencer | None:
    if config.alertmanager is None:
        return None
    from ops_pipelines.resources.alertmanager import AlertmanagerSilencer

    return AlertmanagerSilencer(config.alertmanager, cluster=config.name, clock=clock)


def _approval_links(config: ClusterConfig) -> ApprovalLinks | None:
    """Return how approval links are made; None without an address for people or without a key."""
    serve = config.serve
    if serve.base_url is None or serve.link_key_file is None:
        return None
    return ApprovalLinks(seal=KeyFileSeal(serve.link_key_file), base_url=serve.base_url, life=serve.link_life)


def history_of(cluster: Cluster, config: ClusterConfig, *, lake: Lake | None) -> History:
    """Return what a replay of `cluster` reads; without a lake, what the ledger holds alone."""
    return History(
        cluster=cluster.name,
        chronicle=LedgerChronicle(cluster.ledger, present={cluster.rules_digest: cluster.rules}),
        lake=lake,
        present=cluster.rules,
        release=config.release,
        step_seconds=int(config.lake.step.total_seconds()),
    )


def open_policy_desk(cluster_file: Path) -> PolicyDesk:
    """Return where proposed policies of that cluster are compared with its present one. Raises as `open_cluster`."""
    config = config_in_force(cluster_file)
    cluster = open_cluster(cluster_file)
    return PolicyDesk(
        history=history_of(cluster, config, lake=open_lake(config, clock=cluster.clock)),
        read_proposed=lambda name: policy_here(
            config, read_proposed_policy(name, beside=config.policy_path, topology=config.topology)
        ),
        keep_page=ComparisonPages(config.state_directory).keep,
        clock=cluster.clock,
    )


class _Site(Protocol):
    """The ports of a simulated cluster; see `ops_pipelines_lab.simulated`."""

    def scheduler(self) -> Scheduler: ...
    def fleet(self) -> Fleet: ...
    def telemetry(self) -> Telemetry: ...
    def logs(self) -> Logs: ...
    def metrics(self) -> MetricSource: ...
    def accounting(self) -> Accounting: ...
    def quotas(self) -> Quotas: ...
    def settings(self) -> SchedulerSettings: ...


class _Simulated:
    """The simulated cluster of a state directory: attached or created when first asked for."""

    def __init__(self, config: ClusterConfig, clock: Clock) -> None:
        self._directory = config.state_directory / TWIN_DIRECTORY
        self._clock = clock
        self._site: _Site | None = None

    def get(self) -> _Site:
        """Return its ports. Raises PolicyError where the laboratory is not installed."""
        if self._site is None:
            self._site = cast("_Site", laboratory("simulated").SimulatedSite(self._directory, self._clock))
        return self._site


@cache
def open_observatory(cluster_file: Path) -> Observatory:
    """Return the sources of the lake of that cluster, and the lake; opened once a process. Raises as `open_cluster`."""
    return assemble_observatory(config_in_force(cluster_file), SystemClock())


def assemble_observatory(config: ClusterConfig, clock: Clock) -> Observatory:
    """Return what fills the lake that `config` names."""
    keep_private()
    from ops_pipelines.resources.catalogue_files import read_suite_files
    from ops_pipelines.resources.prometheus import all_queries

    simulated = _Simulated(config, clock)
    look_back_seconds = int(config.telemetry.look_back.total_seconds())
    return Observatory(
        name=config.name,
        metrics=(_metrics(config, simulated, clock),),
        queries=all_queries(config.telemetry.labels, look_back_seconds=look_back_seconds),
        accounting=_accounting(config, simulated),
        kernel_logs=(_logs(config, simulated, clock),),
        job_logs=_job_logs(config, clock),
        scheduler=_scheduler(config, simulated, clock),
        lake=open_lake(config, clock=clock),
        topology=config.topology,
        clock=clock,
        step=config.lake.step,
        release=config.release,
        objectives=config.objectives,
        read_comment=_comment_reader(clock),
        read_suites=partial(read_suite_files, config.expectations_directory),
    )


def _comment_reader(clock: Clock) -> ReadComment:
    """Return what reads the comments that accounting keeps, as the scheduler's adapter reads those of running jobs."""
    from ops_pipelines.core.observation import Checkpointing
    from ops_pipelines.resources.slurm.jobs import read_job_comment

    def read(comment: str) -> Declared:
        said = read_job_comment(comment, now=clock.now())
        return Declared(
            workload=said.workload,
            checkpointed_at=said.checkpointed_at,
            saves_nothing=said.checkpointing is Checkpointing.NO,
        )

    return read


def open_lake(config: ClusterConfig, *, clock: Clock | None = None) -> "ParquetLake":
    """Return the lake of `config`; `clock` reports it which hours are over, the wall clock if none is given."""
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake

    return ParquetLake(config.lake.url, clock=clock or SystemClock())


def open_teams_desk(cluster_file: Path) -> TeamsDesk:
    """Return what sharing out and accounting need of that cluster; another one once a file of teams, capacity,
    projects or policy has changed.

    No system is asked: what the scheduler lacks of what teams.yaml names is reported by who reads its limits. Raises as
    `open_cluster`.
    """
    config = config_in_force(cluster_file)
    stamps = (*stated_stamps(config), *stamps_of((config.policy_path,)))
    # Its cluster is under the rules of now, which may change without a file: an hour has passed.
    desk, cluster = _desk_of(cluster_file, stamps), open_cluster(cluster_file)
    return desk if desk.cluster is cluster else replace(desk, cluster=cluster)


@lru_cache(maxsize=4)
def _desk_of(cluster_file: Path, _stamps: tuple[Stamp, ...]) -> TeamsDesk:
    config = config_in_force(cluster_file)
    return assemble_teams_desk(config, cluster=open_cluster(cluster_file), observatory=open_observatory(cluster_file))


def assemble_teams_desk(config: ClusterConfig, *, cluster: Cluster, observatory: Observatory) -> TeamsDesk:
    """Return the desk of teams on these ports. Raises ConfigError on a wrong section, or a teams.yaml never right."""
    from ops_pipelines.resources.config.cluster_config import gpu_types, installed_nodes
    from ops_pipelines.resources.config.policy_file import read_advice_settings, read_capacity_policy, read_quota_policy

    policy_path = config.policy_path
    copy = _policy_of(config, now=cluster.clock.now()).read_from
    advice, read_listing = read_advice_settings(policy_path, read_from=copy)
    told = None
    if config.teams_path is not None:
        told = read_kept_teams(config.teams_path, kept=config.state_directory / LAST_GOOD_FILE)
    agreements = None if told is None else told.content
    plans = read_kept_plans(config, agreements)
    desk = TeamsDesk(
        cluster=cluster,
        observatory=observatory,
        agreements=agreements,
        agreements_trouble="" if told is None else told.trouble,
        policy=read_quota_policy(policy_path, read_from=copy),
        quotas=open_quotas(config, clock=cluster.clock),
        limits_on=config.limits.limits_on,
        settings=open_settings(config, clock=cluster.clock),
        prices=config.prices,
        statements=StatementDirectory(config.state_directory / CHARGEBACK_DIRECTORY),
        plan_files=PlanDirectory(config.state_directory / CAPACITY_DIRECTORY),
        gpu_type_of=gpu_types(config),
        advice=advice,
        read_listing=read_listing,
        capacity=plans.capacity,
        is_capacity_named=config.capacity_path is not None,
        capacity_policy=read_capacity_policy(policy_path, read_from=copy),
        projects=plans.projects,
        projects_trouble=plans.trouble,
    )
    return replace(desk, installed=installed_nodes(config, zone=desk.zone))


def open_settings(config: ClusterConfig, *, clock: Clock) -> SchedulerSettings:
    """Return where the scheduler's settings are read."""
    if config.scheduler.kind is SchedulerKind.SLURM:
        from ops_pipelines.resources.slurm.quotas import SlurmSettings

        return SlurmSettings(clock=clock, slurm_conf=config.scheduler.slurm_conf)
    return _Simulated(config, clock).get().settings()


def open_quotas(config: ClusterConfig, *, clock: Clock) -> Quotas | None:
    """Return where the limits of teams are read and set; None on a Slurm without accounting, which keeps none."""
    if config.scheduler.kind is SchedulerKind.SLURM:
        if config.accounting is AccountingKind.NONE:
            return None
        from ops_pipelines.resources.slurm.quotas import SlurmQuotas

        return SlurmQuotas(clock=clock, slurm_conf=config.scheduler.slurm_conf, qos_of=config.limits.qos_of)
    return _Simulated(config, clock).get().quotas()


def open_lake_keeper(cluster_file: Path) -> LakeKeeper:
    """Return who keeps the lake of that cluster small. Raises PolicyError on a wrong file."""
    from ops_pipelines.resources.lake.retention import Housekeeper, RetentionSettings

    config = config_in_force(cluster_file)
    kept = config.lake
    settings = RetentionSettings(
        raw_days=kept.raw_days,
        five_minute_days=kept.five_minute_days,
        hourly_days=kept.hourly_days,
        record_days=kept.record_days,
    )
    return Housekeeper(open_lake(config), settings=settings, clock=SystemClock())


def _metrics(config: ClusterConfig, simulated: _Simulated, clock: Clock) -> MetricSource:
    if config.telemetry.kind is TelemetryKind.PROMETHEUS:
        from ops_pipelines.resources.prometheus import PrometheusMetrics

        return PrometheusMetrics(config.telemetry, clock=clock)
    if config.telemetry.kind is TelemetryKind.EXPORTERS:
        from ops_pipelines.resources.exporters import ExporterConfig, ScrapedExporters

        telemetry = config.telemetry
        return ScrapedExporters(
            ExporterConfig(
                targets=telemetry.targets,
                timeout=telemetry.timeout,
                worker_count=telemetry.worker_count,
                bearer_token_file=telemetry.bearer_token_file,
                ca_file=telemetry.ca_file,
            )
        )
    if config.telemetry.kind is TelemetryKind.NVML:
        from ops_pipelines.resources.nvml import NvmlMetrics

        assert config.telemetry.node is not None, "config_models asks for the node"
        return NvmlMetrics(node=config.telemetry.node)
    return simulated.get().metrics()


def _accounting(config: ClusterConfig, simulated: _Simulated) -> Accounting | None:
    if config.accounting is AccountingKind.SLURM:
        from ops_pipelines.resources.slurm.client import SlurmAccounting

        return SlurmAccounting(slurm_conf=config.scheduler.slurm_conf)
    if config.accounting is AccountingKind.NONE:
        return None
    return simulated.get().accounting()


def _job_logs(config: ClusterConfig, clock: Clock) -> tuple[Logs, ...]:
    if config.job_logs.kind is JobLogsKind.NONE:
        return ()
    if config.job_logs.loki is not None:
        from ops_pipelines.resources.loki import LokiLogs

        return (LokiLogs(config.job_logs.loki, clock=clock, source="job_logs"),)
    from ops_pipelines.resources.log_files import JobLogFiles

    return (JobLogFiles(config.job_logs.paths, clock=clock),)


def _scheduler(config: ClusterConfig, simulated: _Simulated, clock: Clock) -> Scheduler:
    if config.scheduler.kind is SchedulerKind.SLURM:
        from ops_pipelines.resources.slurm.scheduler import SlurmScheduler

        return SlurmScheduler(
            clock=clock,
            slurm_conf=config.scheduler.slurm_conf,
            checkpoint_roots=config.scheduler.checkpoint_roots,
            guard_status=config.scheduler.guard_status,
        )
    return simulated.get().scheduler()


def read_nodes_now(config: ClusterConfig, clock: Clock) -> tuple[NodeStatus, ...]:
    """Return the nodes as the scheduler shows them, without opening the ledger. Raises SourceError."""
    return _scheduler(config, _Simulated(config, clock), clock).read_nodes()


def _fleet(config: ClusterConfig, simulated: _Simulated, clock: Clock) -> Fleet:
    if config.fleet.kind is FleetKind.COMMANDS:
        return _commanded_fleet(config, clock)
    return simulated.get().fleet()


def _commanded_fleet(config: ClusterConfig, clock: Clock) -> Fleet:
    """Return the fleet of a site: its commands, and beside them the BMCs and playbooks that it names."""
    from ops_pipelines.resources.fleet.ansible import AnsibleInstalls
    from ops_pipelines.resources.fleet.command_fleet import CommandFleet, ComposedFleet
    from ops_pipelines.resources.fleet.installs import InstallNotes
    from ops_pipelines.resources.fleet.redfish_update import RedfishFleet, RedfishPower, RedfishUpdates
    from ops_pipelines.resources.slurm.client import SlurmReboots

    fleet, directory = config.fleet, config.state_directory / INSTALL_DIRECTORY
    commands, firmware = CommandFleet(fleet.commands, clock=clock), None
    if fleet.redfish is not None:
        commands = RedfishFleet(fleet.commands, power=RedfishPower(fleet.redfish), clock=clock)
        firmware = RedfishUpdates(fleet.redfish, state_directory=directory / "redfish", clock=clock)
    ansible = None
    if fleet.ansible is not None:
        ansible = AnsibleInstalls(fleet.ansible, directory / "ansible", clock=clock)
    reboots = SlurmReboots(slurm_conf=config.scheduler.slurm_conf) if fleet.reboot_by is RebootBy.SLURM else None
    notes = InstallNotes(directory / "means", clock=clock)
    return ComposedFleet(commands, notes=notes, ansible=ansible, firmware=firmware, reboots=reboots)


def _telemetry(config: ClusterConfig, simulated: _Simulated) -> Telemetry:
    if config.telemetry.kind is TelemetryKind.PROMETHEUS:
        from ops_pipelines.resources.prometheus import PrometheusTelemetry

        return PrometheusTelemetry(config.telemetry)
    if config.telemetry.kind is not TelemetryKind.SIMULATOR:
        from ops_pipelines.resources.exporters import SampledTelemetry

        step_seconds = int(config.telemetry.step.total_seconds())
        return SampledTelemetry(lambda: _metrics(config, simulated, SystemClock()), step_seconds=step_seconds)
    return simulated.get().telemetry()


def _logs(config: ClusterConfig, simulated: _Simulated, clock: Clock) -> Logs:
    if config.logs.kind is LogsKind.FILES:
        from ops_pipelines.resources.kernel_log import FileTailLogs

        logs = config.logs
        return FileTailLogs(logs.paths, clock=clock, node_name_source=logs.node_name_source, timezone=logs.timezone)
    if config.logs.kind is LogsKind.JOURNALD:
        from ops_pipelines.resources.kernel_log import JournaldLogs

        return JournaldLogs(directory=config.logs.journal_directory)
    if config.logs.loki is not None:
        from ops_pipelines.resources.loki import LokiLogs

        return LokiLogs(config.logs.loki, clock=clock)
    return simulated.get().logs()


def _notifier(config: ClusterConfig, clock: Clock) -> Notifier:
    from ops_pipelines.resources.notifier import AppriseNotifier, FileNotifier

    messages = FileNotifier(config.state_directory / "messages.jsonl", clock=clock)
    if config.notifier.kind is NotifierKind.APPRISE:
        return AppriseNotifier(config.notifier, fallback=messages, cluster_name=config.name)
    return messages
