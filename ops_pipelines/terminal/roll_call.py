"""What `check-config` says: what the files declare, and whether each system answers.

Each is asked something harmless: nothing is taken in, and no cursor moves.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.machines import NOT_OFFERED
from ops_pipelines.core.plan import Rules
from ops_pipelines.core.sources import Logs, SourceError, SourceUnavailable
from ops_pipelines.resources.config.cluster_config import ClusterConfig, FleetConfig, find_install_gaps

_SHOWN_NAME_COUNT = 4
_ASKED_NODE_COUNT = 3
"""One of them answering proves the way to the machines; a single node may be broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one system said. `problem` is None if it answered; then `said` is in words, otherwise it is empty."""

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


def find_fleet_gaps(fleet: FleetConfig) -> tuple[str, ...]:
    """Return what would fail a rollout, in words for the operator."""
    from ops_pipelines.resources.fleet.ansible import find_missing

    return find_install_gaps(fleet.commands, fleet.ansible, missing="" if fleet.ansible is None else find_missing())


def call_the_roll(cluster: Cluster, *, limits: Callable[[], str] | None = None) -> tuple[Answer, ...]:
    """Return the answer of every system, the ledger last. `limits` asks for those of teams, if there are any."""
    return tuple(_ask(system, question) for system, question in _questions(cluster, limits))


def _questions(cluster: Cluster, limits: Callable[[], str] | None) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "scheduler", partial(_ask_scheduler, cluster)
    if limits is not None:
        yield "limits", limits
    yield "telemetry", partial(_ask_telemetry, cluster)
    for logs in cluster.logs:
        yield logs.source, partial(_ask_logs, cluster, logs)
    yield "fleet", partial(_ask_fleet, cluster)
    yield "ledger", partial(_ask_ledger, cluster)


def _ask(system: str, question: Callable[[], str]) -> Answer:
    try:
        return Answer(system=system, said=question(), problem=None)
    except (SourceError, LedgerError) as problem:
        return Answer(system=system, said="", problem=str(problem))


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
    return said


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
    """Say which versions it tells: a rollout believes nothing else. Empty where the site offers no such command."""
    try:
        versions = cluster.fleet.read_versions(node)
    except SourceError as problem:
        return "" if str(problem).startswith(NOT_OFFERED) else f"; it does not say which versions run: {problem}"
    told = ", ".join(sorted(component.value for component in versions))
    return f"; it tells the versions of {told}" if told else "; it tells no version of anything"


def _ask_ledger(cluster: Cluster) -> str:
    refused = cluster.ledger.why_refused()
    if refused is not None:
        raise SourceUnavailable(refused.words)
    return f"answers: {cluster.ledger.read_state(cluster.clock.now()).head_seq} entries"
