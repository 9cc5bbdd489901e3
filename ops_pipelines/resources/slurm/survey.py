"""What a Slurm says of itself on a first day: nodes with their GPUs, the switches or blocks they hang on, accounts.

Only asks, and does not fail for a part: what could not be read is named, with the reason. What becomes of it in the
files is `resources.config.drafts`' matter.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ops_pipelines.clock import Clock
from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines.core.observation import Rejected
from ops_pipelines.core.proposal import TeamName
from ops_pipelines.core.scheduler import AccountQuota
from ops_pipelines.core.sources import SourceError
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.resources.commands import RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.answers import Row, count_gpus, node_listing, read_rows, settings_in, text_of
from ops_pipelines.resources.slurm.client import Limit, SlurmClient
from ops_pipelines.resources.slurm.quotas import SlurmQuotas

_Told = TypeVar("_Told")
_TYPE = re.compile(r"(?:^|,)gpu:([^:(),]+):\d+")
_LEAF = re.compile(r"^SwitchName=(\S+) Level=0 .*?\bNodes=(\S+)")
_BLOCK = re.compile(r"^BlockName=(\S+) .*?\bNodes=(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyedNode:
    """One node with what Slurm counts on it."""

    node: NodeName
    gpu_count: int
    gpu_type: str
    """As in gres/gpu:<type>, lower case; empty where Slurm distinguishes none, or several are in one node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSurvey:
    """What was found, and what could not be read."""

    cluster_name: str = ""
    version: str = ""
    nodes: tuple[SurveyedNode, ...] = ()
    leaves: Mapping[NodeName, str] = field(default_factory=dict)
    """Node -> its leaf switch; empty without a topology."""
    blocks: Mapping[NodeName, str] = field(default_factory=dict)
    """Node -> its block; empty without topology/block."""
    accounts: Mapping[TeamName, AccountQuota] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def survey_slurm(*, slurm_conf: Path | None, clock: Clock, run: RunCommand = run_scheduler_command) -> SlurmSurvey:
    """Return what Slurm says of itself. Raises SourceError where it does not even list its nodes."""
    client = SlurmClient(run=run, slurm_conf=slurm_conf)
    nodes, rejected = _nodes(client)
    problems = [f"{each.position}: {each.reason}" for each in rejected]

    def told(what: str, ask: Callable[[], _Told], otherwise: _Told) -> _Told:
        try:
            return ask()
        except (SourceError, ValueError) as problem:
            problems.append(f"{what}: {problem}")
            return otherwise

    nothing: Mapping[str, str] = {}
    settings = told("settings", lambda: settings_in(_ask(client, "scontrol", "show", "config")), nothing)
    topology = ""
    # Without a plugin that knows one, some versions print nothing and others refuse: both mean that there is none.
    if not settings.get("TopologyPlugin", "topology/none").endswith(("/none", "/default", "/flat")):
        topology = told("topology", lambda: _ask(client, "scontrol", "show", "topology"), "")
    nowhere: Mapping[NodeName, str] = {}
    nobody: Mapping[TeamName, AccountQuota] = {}
    quotas = SlurmQuotas(clock=clock, slurm_conf=slurm_conf, run=run)
    accounts = told("accounts", lambda: quotas.read().accounts, nobody)
    return SlurmSurvey(
        cluster_name=settings.get("ClusterName", ""),
        version=settings.get("SLURM_VERSION", ""),
        nodes=nodes,
        leaves=told("switches", lambda: _places(topology, _LEAF), nowhere),
        blocks=told("blocks", lambda: _places(topology, _BLOCK), nowhere),
        accounts=accounts,
        problems=tuple(problems),
    )


def _ask(client: SlurmClient, *argv: str) -> str:
    return client.send(*argv, limit=Limit()).stdout


def _nodes(client: SlurmClient) -> tuple[tuple[SurveyedNode, ...], tuple[Rejected, ...]]:
    limit = Limit()
    argv = node_listing(client.read_version(limit))
    found: list[SurveyedNode] = []

    def take(row: Row) -> None:
        gres = text_of(row, "gres", is_required=False)
        types = {name.lower() for name in _TYPE.findall(gres)}
        found.append(
            SurveyedNode(
                node=parse_node_name(text_of(row, "name")),
                gpu_count=count_gpus(gres),
                gpu_type=types.pop() if len(types) == 1 else "",
            )
        )

    rejected = read_rows(client.send(*argv, limit=limit).stdout, key="nodes", source=" ".join(argv), take=take)
    return tuple(sorted(found, key=lambda each: each.node)), rejected


def _places(topology: str, line: re.Pattern[str]) -> Mapping[NodeName, str]:
    found = [match for each in topology.splitlines() if (match := line.match(each.strip())) is not None]
    return {node: match[1] for match in found for node in expand_host_list(match[2])}
