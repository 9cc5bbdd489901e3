"""What `check-config` asks beside the files themselves: nodes that answer, limits that fit, capacity that is stated."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from zoneinfo import ZoneInfo

from ops_pipelines.clock import Clock, SystemClock
from ops_pipelines.core.cluster import NOT_OFFERED, Cluster, SiteMeans
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.scheduler import Quotas
from ops_pipelines.core.sources import Logs, SourceError, SourceUnavailable
from ops_pipelines.quotas.lint import find_missing_accounts, lint_quotas
from ops_pipelines.quotas.today import Capacity
from ops_pipelines.resources.config.capacity_file import read_capacity
from ops_pipelines.resources.config.cluster_config import (
    AccountingKind,
    ClusterConfig,
    FleetConfig,
    SchedulerKind,
    find_install_gaps,
    installed_gpus,
)
from ops_pipelines.resources.config.teams_file import read_projects, read_teams
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.resources.slurm.answers import tell_version
from ops_pipelines.teams.contracts import Agreements
from ops_pipelines.teams.desk import LimitsOn
from ops_pipelines.teams.projects import CapacitySettings, PlannedProject

if TYPE_CHECKING:
    from ops_pipelines.remediate.ladder import Objection

# -- what `check-config` says --


_SHOWN_NAME_COUNT = 4
_ASKED_NODE_COUNT = 3
"""One of them answering proves the way to the machines; a single node may be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCheck:
    """What one system stated. `problem` is None if it answered; then `said` is in words, otherwise it is empty."""

    system: str
    said: str
    problem: str | None


def summarise(config: ClusterConfig, rules: Rules) -> dict[str, str]:
    """Return what the files declare, by name, in words. No address is among it: some hold passwords."""
    topology, policy = config.topology, rules.policy
    rack_count = len({place.rack for place in topology.places.values()})
    sections = ("scheduler", "telemetry", "logs", "fleet", "notifier")
    return {
        "cluster": config.name,
        "nodes": f"{len(topology.places)} of {topology.gpus_per_node} GPUs in {rack_count} rack(s)",
        "mode": policy.mode.value,
        "untouchable": ", ".join(sorted(policy.untouchable_nodes)) or "none",
        "sources": ", ".join(f"{name}: {getattr(config, name).kind.value}" for name in sections),
        "catalogue": f"{len(rules.catalogue.xids)} Xids",
        "state": str(config.state_directory),
    }


def find_all_cautions(config: ClusterConfig, rules: Rules, stated: "Stated") -> tuple[str, ...]:
    """Return everything that should be meant, of all files, in words for the operator."""
    from ops_pipelines.lake.expectations import find_suite_faults
    from ops_pipelines.resources.catalogue_files import read_suite_files
    from ops_pipelines.resources.config.policy_file import find_cautions
    from ops_pipelines.resources.config.redfish_settings import find_weaknesses

    return (
        *find_cautions(rules.policy, rules.topology),
        *find_weaknesses(config.fleet.redfish),
        *find_fleet_gaps(config.fleet),
        *find_team_cautions(config, stated.agreements),
        *find_capacity_cautions(config, stated),
        *find_suite_faults(read_suite_files(config.expectations_directory)),
    )


def find_all_gaps(config: ClusterConfig, rules: Rules) -> "tuple[Objection, ...]":
    """Return what plans will need and the site does not offer."""
    from ops_pipelines.remediate.ladder import find_gaps
    from ops_pipelines.resources.config.cluster_config import offered_means

    return find_gaps(offered_means(config.fleet), rules.policy)


def find_fleet_gaps(fleet: FleetConfig) -> tuple[str, ...]:
    """Return what would fail a rollout, in words for the operator."""
    from ops_pipelines.resources.fleet.ansible import find_missing

    return find_install_gaps(fleet.commands, fleet.ansible, missing="" if fleet.ansible is None else find_missing())


def call_the_roll(cluster: Cluster, *, limits: Callable[[], str] | None = None) -> tuple[SystemCheck, ...]:
    """Return the answer of every system, the ledger last. `limits` asks for those of teams, if there are any."""
    return tuple(_ask(system, question) for system, question in _questions(cluster, limits))


def ask_all(config: ClusterConfig, cluster: Cluster) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return what each system answered, and what is wrong with those that did not."""
    from ops_pipelines.resources.config.cluster_config import offered_means

    offered = offered_means(config.fleet)
    is_inspecting = SiteMeans.INSPECT in offered
    answers = [each for each in call_the_roll(cluster) if is_inspecting or each.system != "fleet"]
    said = {each.system: each.said for each in answers if each.problem is None}
    problems = {each.system: each.problem for each in answers if each.problem is not None}
    if SiteMeans.POWER in offered:
        power = _ask_power(cluster)
        (said if power else problems)["power"] = power or "no node's power switch answers: silent nodes stay unfenced"
    if not offered:
        problems["machines"] = "no way to them is named, so nothing is ever reset, rebooted or fenced; --ssh, --bmc"
    return said, problems


def _ask_power(cluster: Cluster) -> str:
    """Return what the first power switch of a few says; empty if none answers: it is the fence of a silent node."""
    for node in sorted(cluster.rules.topology.places)[:_ASKED_NODE_COUNT]:
        with suppress(SourceError):
            return f"answers: {node} is {cluster.fleet.power_state(node).value}"
    return ""


def is_fleet_answering(cluster: Cluster) -> bool:
    """Return whether one of a few nodes was inspected."""
    return _ask("fleet", partial(_ask_fleet, cluster)).problem is None


def find_unseen(cluster: Cluster) -> tuple[str, ...]:
    """Return in words which nodes of racks show fewer GPUs in the metrics than they have."""
    from ops_pipelines.lake.node_names import fold_host_list
    from ops_pipelines.lake.telemetry import observe_gpus

    now, topology = cluster.clock.now(), cluster.rules.topology
    stale_after = cluster.rules.policy.durations.telemetry_stale_after
    try:
        samples = cluster.telemetry.read_samples(now)
    except SourceError as problem:
        return (f"telemetry: {problem}",)
    seen = observe_gpus(samples, at=now, topology=topology, stale_after=stale_after)
    counts = {each.node: len(each.gpus_seen) for each in seen.statuses}
    fewer = {node: counts.get(node, 0) for node in topology.places if counts.get(node, 0) < topology.gpus_per_node}
    dark = [node for node, count in fewer.items() if count == 0]
    partly = sorted(fewer.keys() - set(dark))
    found = []
    if dark:
        found.append(f"telemetry: no GPU metrics of {len(dark)} node(s): {fold_host_list(dark)[:200]}")
    if partly:
        wanted = topology.gpus_per_node
        found.append(f"telemetry: fewer than {wanted} GPUs on {len(partly)} node(s): {fold_host_list(partly)[:200]}")
    return tuple(found)


def _questions(cluster: Cluster, limits: Callable[[], str] | None) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "scheduler", partial(_ask_scheduler, cluster)
    if limits is not None:
        yield "limits", limits
    yield "telemetry", partial(_ask_telemetry, cluster)
    for logs in cluster.logs:
        yield logs.source, partial(_ask_logs, cluster, logs)
    yield "fleet", partial(_ask_fleet, cluster)
    yield "ledger", partial(_ask_ledger, cluster)


def _ask(system: str, question: Callable[[], str]) -> SystemCheck:
    try:
        return SystemCheck(system=system, said=question(), problem=None)
    except (SourceError, LedgerError) as problem:
        return SystemCheck(system=system, said="", problem=str(problem))


def _ask_scheduler(cluster: Cluster) -> str:
    """Say how many nodes and jobs it has, and which nodes only one side knows."""
    listed = {status.node for status in cluster.scheduler.read_nodes()}
    declared = set(cluster.rules.topology.places)
    said = f"answers: {len(listed)} nodes, {len(cluster.scheduler.read_jobs())} jobs"
    for names, what in (
        (listed - declared, "not in cluster.yaml, so never acted on"),
        (declared - listed, "of cluster.yaml not known to it: check their names"),
    ):
        if names:
            shown = ", ".join(sorted(names)[:_SHOWN_NAME_COUNT]) + (" ..." if len(names) > _SHOWN_NAME_COUNT else "")
            said += f"; {len(names)} {what} ({shown})"
    try:
        version = tell_version(cluster.scheduler.read_limits().version)
    except SourceError:  # The check of the limits says so.
        version = ""
    return f"{said}; {version}" if version else said


def _ask_telemetry(cluster: Cluster) -> str:
    count = len(cluster.telemetry.read_samples(cluster.clock.now()))
    return f"answers: {count} samples" + ("" if count else "; check `labels` and the scrape targets")


def _ask_logs(cluster: Cluster, logs: Logs) -> str:
    batch = logs.read_new(cluster.ledger.cursor(logs.source), max_lines=1)
    said = "answers: a new line waits" if batch.lines else "answers: no new line"
    return "; ".join((said, *batch.notes))


def _ask_fleet(cluster: Cluster) -> str:
    """Inspect one node; try others before believing that none can be reached."""
    names = sorted(cluster.rules.topology.places)
    problems = []
    for node in names[:: max(1, len(names) // _ASKED_NODE_COUNT)][:_ASKED_NODE_COUNT]:
        try:
            cluster.fleet.inspect(node)
        except SourceError as problem:
            problems.append(str(problem))
        else:
            return f"answers: {node} was inspected; {_say_power(cluster, node)}{_say_versions(cluster, node)}"
    raise SourceUnavailable("; ".join(problems))


def _say_power(cluster: Cluster, node: NodeName) -> str:
    """Say whether the power switch answers: else a wrong password shows when a node must be fenced."""
    try:
        return f"its power switch says {cluster.fleet.power_state(node).value}"
    except SourceError as problem:
        return f"its power switch does not say: {problem}"


def _say_versions(cluster: Cluster, node: NodeName) -> str:
    """Say which versions it reports: a rollout believes nothing else. Empty where the site offers no such command."""
    try:
        versions = cluster.fleet.read_versions(node)
    except SourceError as problem:
        return "" if str(problem).startswith(NOT_OFFERED) else f"; it does not say which versions run: {problem}"
    told = ", ".join(sorted(component.value for component in versions))
    return f"; it reports the versions of {told}" if told else "; it reports no version of anything"


def _ask_ledger(cluster: Cluster) -> str:
    refused = cluster.ledger.why_refused()
    if refused is not None:
        raise SourceUnavailable(refused.words)
    return f"answers: {cluster.ledger.read_state(cluster.clock.now()).head_seq} entries"


# -- what `check-config` says of the files of teams, capacity and projects --


Content = TypeVar("Content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What the files say that cluster.yaml names."""

    agreements: Agreements | None
    """None: no file is named, as for the next."""
    capacity: CapacitySettings | None
    projects: tuple[PlannedProject, ...] = ()


def read_stated(config: ClusterConfig) -> Stated:
    """Return what the files say; raise one ConfigError with the faults of all of them. No earlier copy counts here."""
    faults: list[str] = []

    def told(read: Callable[[], Content]) -> Content | None:
        try:
            return read()
        except ConfigError as problem:
            faults.append(str(problem))
            return None

    teams, capacity, projects = config.teams_path, config.capacity_path, config.projects_path
    agreements = None if teams is None else told(lambda: read_teams(teams))
    settings = None if capacity is None else told(lambda: read_capacity(capacity, config=config))
    planned = (
        None if projects is None else told(lambda: read_projects(projects, agreements=agreements, teams_path=teams))
    )
    if faults:
        raise ConfigError("\n".join(faults))
    return Stated(agreements=agreements, capacity=settings, projects=planned or ())


def find_capacity_cautions(config: ClusterConfig, stated: Stated) -> tuple[str, ...]:
    """Return what should be meant in capacity.yaml and projects.yaml, in words for the operator."""
    return (*_of_capacity(config, stated.capacity), *_of_projects(config, stated))


def _of_capacity(config: ClusterConfig, settings: CapacitySettings | None) -> Iterator[str]:
    if settings is None:
        return
    standing = {each.gpu_type for each in config.bought.values()}
    for sku in settings.skus:
        if sku.lead_time is None:
            yield f"capacity.yaml: {sku.sku} has no lead time, so no day can be named to order it by; state it"
        if sku.gpu_type not in standing:
            yield f"capacity.yaml: {sku.sku} has GPUs {sku.gpu_type!r}, and no rack of cluster.yaml has such"
    for gpu_type in settings.cloud_cents_per_gpu_hour:
        if gpu_type not in standing:
            yield f"capacity.yaml: cloud has a price for GPUs {gpu_type!r}, and no rack of cluster.yaml has such"
    if config.prices is None and (settings.skus or settings.expansions or settings.cloud_cents_per_gpu_hour):
        yield "capacity.yaml states amounts, and cluster.yaml no `prices`: they have no currency; state them"


def _of_projects(config: ClusterConfig, stated: Stated) -> Iterator[str]:
    if stated.projects and stated.agreements is None:
        yield "projects.yaml names teams, and cluster.yaml no file of `teams`: whether they exist is not checked"
    known = {each.gpu_type for each in config.bought.values()}
    known.update(each.gpu_type for each in (stated.capacity or CapacitySettings()).skus)
    for project in stated.projects:
        if project.gpu_type not in known:
            yield f"projects.yaml: {project.words} wants GPUs {project.gpu_type!r}, and no rack and no SKU has such"


# -- what `check-config` says of teams --


def find_team_cautions(
    config: ClusterConfig, agreements: Agreements | None, *, now: datetime | None = None
) -> tuple[str, ...]:
    """Return what should be meant in teams.yaml and in what cluster.yaml says of teams, in words for the operator."""
    if agreements is None:
        unused = [f"quotas.qos_of names {each}" for each in sorted(config.limits.qos_of)]
        return tuple(f"{each}, and cluster.yaml names no `teams`: no limit is set" for each in unused)
    at = now or SystemClock().now()
    zone = ZoneInfo(agreements.timezone)
    gpus = installed_gpus(config, now=at, zone=zone)
    found = lint_quotas(
        agreements,
        day=at.astimezone(zone).date(),
        capacity={gpu_type: Capacity(installed=count, healthy=count) for gpu_type, count in gpus.items()},
    )
    return (
        *(f"teams.yaml: no quotas can be made: {each.text}" for each in found.errors),
        *(f"teams.yaml: {each.text}" for each in found.warnings),
        *_of_settings(config, agreements),
    )


def ask_limits(config: ClusterConfig, agreements: Agreements | None, *, clock: Clock) -> Callable[[], str] | None:
    """Return what asks the scheduler for the limits of teams; None where nothing was agreed, or it keeps none."""
    if agreements is None:
        return None
    from ops_pipelines.wiring import open_quotas

    quotas = open_quotas(config, clock=clock)
    return None if quotas is None else partial(_ask_for_limits, quotas, agreements)


def _ask_for_limits(quotas: Quotas, agreements: Agreements) -> str:
    in_force = quotas.read()
    said = f"answers: {len(in_force.accounts)} accounts"
    missing = find_missing_accounts(agreements, known=in_force.accounts)
    if missing:
        said += f"; {len(missing)} of teams.yaml not known to it: add them, or correct the names ({_some(missing)})"
    if in_force.unheeded:
        unheeded = sorted(in_force.unheeded)
        said += f"; of {len(unheeded)} it follows other limits than are kept ({_some(unheeded)})"
    if in_force.rejected:
        said += f"; {len(in_force.rejected)} could not be believed ({in_force.rejected[0].reason[:80]})"
    return said


def _of_settings(config: ClusterConfig, agreements: Agreements) -> Iterator[str]:
    for team in sorted(config.limits.qos_of):
        if team not in agreements.parents:
            yield f"quotas.qos_of names {team}, which is no team of teams.yaml; declare it there, or leave it out"
    if config.scheduler.kind is SchedulerKind.SLURM and config.accounting is AccountingKind.NONE:
        yield "accounting is none, and Slurm keeps limits there: quotas are proposed, and cannot be applied"
    if config.limits.limits_on is LimitsOn.PER_TYPE and not any(each.gpu_type for each in config.bought.values()):
        yield "quotas.limits is per_type, and no rack says its gpu_type; say it, or set limits: total"
    if agreements.monthly_budget_cents and config.prices is None:
        yield "teams.yaml states budgets, and cluster.yaml no `prices`: nothing is charged; state them"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(each[:80] for each in names[:_SHOWN_NAME_COUNT])
    return f"{shown} ..." if len(names) > _SHOWN_NAME_COUNT else shown
