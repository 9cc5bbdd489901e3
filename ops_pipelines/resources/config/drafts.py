"""First cluster.yaml, policy.yaml and teams.yaml from what systems say; and what of files in force they say otherwise.

Nothing is guessed in silence: each line that nobody stated carries `Assumed` in its comment and is named beside. The
mode is `observe`. What a scheduler says is untrusted text: all of it passes the YAML writer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from ops_pipelines.core.identity import NodeName, Topology
from ops_pipelines.lake.node_names import fold_host_list
from ops_pipelines.resources.config.cluster_config import ClusterConfig, NodeNameSource
from ops_pipelines.resources.config.yaml_file import Account, GpuTypeName, Name
from ops_pipelines.resources.slurm.survey import SlurmSurvey, SurveyedNode
from ops_pipelines.teams.contracts import Agreements

CLUSTER, POLICY, TEAMS = "cluster.yaml", "policy.yaml", "teams.yaml"
_SSH = "ssh, -oBatchMode=yes, -oConnectTimeout=3, '{node}'"
_ACTS = f"""\
inspect: [{_SSH}, python3, -m, ops_pipelines.resources.nvml]
start_check: [{_SSH}, ops-pipelines, node-check, --start, --node, '{{node}}', --suite, '{{suite}}', --key, '{{key}}']
read_check: [{_SSH}, ops-pipelines, node-check, --result, '{{key}}']
reset_gpu: [{_SSH}, nvidia-smi, --gpu-reset, -i, '{{gpu}}.0']
reboot: [{_SSH}, systemctl, --no-block, reboot]
"""
_MOST_SHOWN = 8
_MOST_GPUS = 1_000_000
"""A limit beyond it is none."""
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointed:
    """Where the systems are, as the operator stated; all paths are absolute."""

    slurm_conf: Path | None = None
    state_directory: Path | None = None
    """None: `state`, beside cluster.yaml."""
    prometheus_url: str | None = None
    exporter_url: str | None = None
    """With `{node}` in it; None: a store is asked."""
    labels: Mapping[str, str] = field(default_factory=dict)
    log_paths: tuple[str, ...] = ()
    journal_directory: Path | None = None
    """None without `log_paths`: the journal of this machine."""
    bmc_address: str | None = None
    bmc_user: str | None = None
    bmc_password_file: Path | None = None
    bmc_ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the systems themselves showed once they could be asked."""

    scrape_seconds: int | None = None
    """How often the store scrapes GPU exporters; None: it does not say."""
    node_name_source: NodeNameSource = NodeNameSource.LINE
    is_ssh_answering: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Three files, and in words what they rest on."""

    files: Mapping[str, str]
    assumed: tuple[str, ...]
    left_out: tuple[str, ...]
    """Nodes of the scheduler that are in no rack, with the reason."""


class NothingToDraft(ValueError):
    """No file can be made of what was found. The message says what was found, what was expected and what to do."""


def draft_files(survey: SlurmSurvey, pointed: Pointed, learned: Learned, *, now: datetime) -> Draft:
    """Return the files for what was found; raise NothingToDraft where Slurm has no node with GPUs."""
    survey, unusable = _usable(survey)
    gpu_nodes = [each for each in survey.nodes if each.gpu_count]
    if not gpu_nodes:
        raise NothingToDraft(
            f"Slurm lists {len(survey.nodes)} node(s), and none of them has Gres=gpu; "
            "declare the GPUs in gres.conf and slurm.conf, then run this again"
        )
    per_node = Counter(each.gpu_count for each in gpu_nodes).most_common(1)[0][0]
    kept = [each for each in gpu_nodes if each.gpu_count == per_node]
    assumed = [f"racks: {_assumed_of_racks(survey)}"]
    teams = list(_teams(survey, now=now))
    files = {
        CLUSTER: _cluster(survey, pointed, learned, nodes=kept, has_teams=bool(teams), now=now, assumed=assumed),
        POLICY: _policy(len(kept), learned, assumed),
    }
    if teams:
        files[TEAMS] = _TEAMS_HEAD + yaml.safe_dump({"teams": teams}, sort_keys=False, allow_unicode=True)
    return Draft(files=files, assumed=tuple(assumed), left_out=(*_left_out(survey.nodes, per_node), *unusable))


def _usable(survey: SlurmSurvey) -> tuple[SlurmSurvey, tuple[str, ...]]:
    """Return the survey without names that the files cannot hold, and these in words: a name is never altered."""
    left_out: list[str] = []

    def kept(kind: str, shape: Any, names: Mapping[_Key, str]) -> dict[_Key, str]:
        adapter = TypeAdapter(shape)
        odd = sorted(name for name in set(names.values()) if not _fits(name, adapter))
        good = {key: name for key, name in names.items() if name not in odd}
        left_out.extend(f"{kind} {name[:80]!r}: no name that cluster.yaml or teams.yaml can hold" for name in odd)
        return good

    accounts = kept("account", Account, {name: str(name) for name in survey.accounts})
    types = kept("GPU type", GpuTypeName, {each.node: each.gpu_type for each in survey.nodes})
    usable = replace(
        survey,
        cluster_name=survey.cluster_name if _fits(survey.cluster_name, TypeAdapter(Name)) else "",
        version="".join(each for each in survey.version if each.isprintable())[:40],
        nodes=tuple(replace(each, gpu_type=types.get(each.node, "")) for each in survey.nodes),
        leaves=kept("switch", Name, survey.leaves),
        blocks=kept("block", Name, survey.blocks),
        accounts={name: survey.accounts[name] for name in accounts},
    )
    return usable, tuple(left_out)


def _fits(name: str, adapter: TypeAdapter[str]) -> bool:
    try:
        adapter.validate_python(name)
    except ValidationError:
        return False
    return True


# -- racks --


def _assumed_of_racks(survey: SlurmSurvey) -> str:
    if survey.blocks:
        return "a block of Slurm's topology is a rack with one NVLink domain (NVL72)"
    if survey.leaves:
        return "the nodes below one leaf switch of Slurm's topology are one rack"
    return "Slurm knows no topology, so all nodes of one GPU type stand in one rack"


def _racks(nodes: Iterable[SurveyedNode], survey: SlurmSurvey) -> Iterator[Mapping[str, object]]:
    groups: dict[tuple[str, str, str], list[NodeName]] = {}
    for each in nodes:
        leaf, block = survey.leaves.get(each.node, ""), survey.blocks.get(each.node, "")
        groups.setdefault((block, leaf, each.gpu_type), []).append(each.node)
    names = Counter(block or leaf or "rack" for block, leaf, _ in groups)
    for (block, leaf, gpu_type), members in sorted(groups.items()):
        place = block or leaf or "rack"
        rack: dict[str, object] = {"name": place if names[place] == 1 else f"{place}-{gpu_type or 'untyped'}"}
        rack["nodes"] = fold_host_list(members)
        if leaf:
            rack["leaf_switch"] = leaf
        if block:
            rack["nvlink_domain"] = "rack"
        if gpu_type:
            rack["gpu_type"] = gpu_type
        yield rack


def _left_out(nodes: Iterable[SurveyedNode], per_node: int) -> Iterator[str]:
    others: dict[int, list[NodeName]] = {}
    for each in nodes:
        if each.gpu_count != per_node:
            others.setdefault(each.gpu_count, []).append(each.node)
    for count, names in sorted(others.items()):
        reason = "no GPUs" if count == 0 else f"{count} GPUs each, and gpus_per_node is {per_node} for all"
        yield f"{len(names)} node(s) with {reason}: {_some(names)}; they are never acted on"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    folded = fold_host_list([NodeName(each) for each in listed[:_MOST_SHOWN]])
    return folded + (" ..." if len(listed) > _MOST_SHOWN else "")


# -- the files --


def _cluster(
    survey: SlurmSurvey,
    pointed: Pointed,
    learned: Learned,
    *,
    nodes: Sequence[SurveyedNode],
    has_teams: bool,
    now: datetime,
    assumed: list[str],
) -> str:
    racks = yaml.safe_dump(list(_racks(nodes, survey)), sort_keys=False, default_flow_style=None, width=1000)
    conf = {} if pointed.slurm_conf is None else {"slurm_conf": str(pointed.slurm_conf)}
    sections = (
        f"# Written by `ops-pipelines init` on {now:%Y-%m-%d} from what the systems state. `Assumed` marks what\n"
        "# none of them stated: look at these first. Every key is explained in the cluster.yaml of the source.\n",
        _values("Slurm's ClusterName.", name=survey.cluster_name or "cluster"),
        _values(
            "Ledger, messages, cursors and the lake; relative to this file.",
            state_directory=str(pointed.state_directory or "state"),
        ),
        _values(
            "What is allowed, and what was agreed with teams.", policy=POLICY, **({"teams": TEAMS} if has_teams else {})
        ),
        _values("Of each node; others are in no rack.", gpus_per_node=nodes[0].gpu_count),
        f"# Assumed: {_assumed_of_racks(survey)}. Power feeds and models are not known to Slurm: add\n"
        f"# `power_feed` and `model` where you roll out or pay by model.\nracks:\n{_indented(racks, by=2)}",
        _values(f"Slurm {survey.version or 'of unknown version'}.", scheduler={"kind": "slurm", **conf}),
        _values("From sacct.", accounting={"kind": "slurm"}),
        _telemetry(pointed, learned, assumed, nodes=[each.node for each in nodes]),
        _logs(pointed, learned, assumed),
        _fleet(pointed, learned, assumed),
        _values(
            "Messages go to messages.jsonl in the state directory; docs/MESSAGES.md has every service. Assumed.",
            notifier={"kind": "file"},
        ),
    )
    assumed.append("notifier: a file in the state directory, so that nobody is written to yet")
    return "\n".join(sections)


def _telemetry(pointed: Pointed, learned: Learned, assumed: list[str], *, nodes: Sequence[NodeName]) -> str:
    if pointed.exporter_url is not None:
        targets = [{"url": pointed.exporter_url, "nodes": fold_host_list(nodes)}]
        words = "Exporters, scraped directly: they have no history, so an outage of ours leaves a hole."
        return _values(words, telemetry={"kind": "exporters", "targets": targets})
    step = 15
    if learned.scrape_seconds is None:
        assumed.append("telemetry.step_seconds: 15, since the store does not say how often it scrapes GPU exporters")
        words = "Assumed: it scrapes GPU exporters every 15 s."
    else:
        step = max((each for each in (1, 2, 5, 10, 15, 20, 30, 60) if each <= learned.scrape_seconds), default=1)
        words = f"It scrapes GPU exporters every {learned.scrape_seconds} s."
    telemetry: dict[str, object] = {"kind": "prometheus", "url": pointed.prometheus_url, "step_seconds": step}
    telemetry["look_back_seconds"] = min(3_600, max(120, 4 * (learned.scrape_seconds or 15)))
    if pointed.labels:
        telemetry["labels"] = dict(pointed.labels)
    return _values(words, telemetry=telemetry)


def _logs(pointed: Pointed, learned: Learned, assumed: list[str]) -> str:
    if pointed.log_paths:
        assumed.append("logs.timezone: UTC, for lines whose prefix names no zone")
        logs = {
            "kind": "files",
            "paths": list(pointed.log_paths),
            "node_name_source": learned.node_name_source.value,
            "timezone": "UTC",
        }
        return _values("Kernel logs of the nodes, from the kernel facility only. timezone: Assumed.", logs=logs)
    directory = {} if pointed.journal_directory is None else {"journal_directory": str(pointed.journal_directory)}
    return _values("Kernel logs of the nodes.", logs={"kind": "journald", **directory})


def _fleet(pointed: Pointed, learned: Learned, assumed: list[str]) -> str:
    fleet: dict[str, object] = {"kind": "commands"}
    if pointed.bmc_address is not None:
        redfish = {
            "address": pointed.bmc_address,
            "user": pointed.bmc_user,
            "password_file": str(pointed.bmc_password_file),
        }
        if pointed.bmc_ca_file is not None:
            redfish["ca_file"] = str(pointed.bmc_ca_file)
        fleet["redfish"] = redfish
    text = _values("The machines themselves: docs/REMEDIATION.md.", fleet=fleet)
    if learned.is_ssh_answering:
        assumed.append("fleet: reset_gpu, reboot and the node check by the same ssh that `inspect` answered over")
        return f"{text}  # `inspect` was tried. Assumed: the other acts over the same ssh.\n{_indented(_ACTS, by=2)}"
    acts = "".join(f"  # {line}\n" for line in _ACTS.splitlines())
    return f"{text}  # Not tried, so not offered: what is not offered is never planned. Try them with --ssh.\n{acts}"


def _policy(node_count: int, learned: Learned, assumed: list[str]) -> str:
    most_out = max(1, min(4, node_count // 4), node_count // 50)
    stale = max(120, 4 * (learned.scrape_seconds or 15))
    assumed.append(
        f"policy: {most_out} of {node_count} nodes out of service at once, those that others took out among them"
    )
    return "\n".join(
        (
            "# What the autopilot may do. Left out: the default. Every key: policy.yaml of the source.\n",
            _values("observe: plan and report, never act. Then approve, then auto: docs/OPERATE.md.", mode="observe"),
            _values(
                "Assumed: 2 % of the nodes, four at least where there are sixteen.",
                drain_budget={"max_out_count": most_out},
            ),
            _values(
                "Metrics older than four scrapes are no metrics.", durations={"telemetry_stale_after_seconds": stale}
            ),
            _values("Never touched, whatever happens: login nodes, a colleague's test machine.", untouchable_nodes=[]),
        )
    )


_TEAMS_HEAD = """\
# The accounts that Slurm has. What each was promised no system knows: until you state `guarantee`, nothing
# is. `cap` is the limit on GPUs that Slurm holds it to today. Every key: teams.yaml of the source.
timezone: UTC  # Assumed.
"""


def _teams(survey: SlurmSurvey, *, now: datetime) -> Iterator[Mapping[str, object]]:
    for name, account in sorted(survey.accounts.items()):
        if account.parent is None:
            continue  # root
        entry: dict[str, object] = {"team": str(name)}
        parent = survey.accounts.get(account.parent)
        if parent is not None and parent.parent is not None:
            entry["parent"] = str(account.parent)
        contracts = [
            {"from": now.date(), "until": None, "gpu_type": str(gpu_type), "guarantee": 0, "cap": limit}
            for gpu_type, limit in sorted(account.limits.items())
            if limit <= _MOST_GPUS
        ]
        if contracts:
            entry["contracts"] = contracts
        yield entry


def _values(comment: str, **values: object) -> str:
    return f"# {' '.join(comment.split())}\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _indented(text: str, *, by: int) -> str:
    return "".join(f"{' ' * by}{line}\n" for line in text.splitlines())


# -- what the files in force say otherwise --


_COMPARED = {
    "scheduler": ("kind",),
    "telemetry": ("kind", "url", "labels"),
    "logs": ("kind", "paths", "journal_directory"),
}
"""Keys that a draft has from the systems or the operator; its others are our own."""


def find_differences(
    ours: ClusterConfig, found: ClusterConfig, *, teams: Agreements | None, accounts: Iterable[str]
) -> Iterator[str]:
    """Yield in words what the systems say now, and cluster.yaml and teams.yaml do not."""
    yield from _topology_differences(ours.topology, found.topology)
    for node in sorted(ours.bought.keys() & found.bought.keys()):
        before, now = ours.bought[node].gpu_type, found.bought[node].gpu_type
        if now and before != now:
            yield f"{node}: its GPUs are {now} to Slurm, {before or 'of no type'} in racks"
    for section, keys in _COMPARED.items():
        for key in keys:
            before, now = (getattr(getattr(config, section), key) for config in (ours, found))
            if now and before != now:
                yield f"{section}.{key} is {_shown(before)}; you point at {_shown(now)}"
    missing = sorted(set(accounts) - teams.parents.keys()) if teams is not None else []
    if missing:
        yield f"teams.yaml: {len(missing)} account(s) of Slurm are no team: {', '.join(missing[:_MOST_SHOWN])}"


def _topology_differences(ours: Topology, found: Topology) -> Iterator[str]:
    if ours.gpus_per_node != found.gpus_per_node:
        yield f"gpus_per_node is {ours.gpus_per_node}; Slurm has {found.gpus_per_node} on most nodes"
    new, gone = found.places.keys() - ours.places.keys(), ours.places.keys() - found.places.keys()
    if new:
        yield f"{len(new)} node(s) with GPUs are in no rack: {_some(new)}; add them to be watched and acted on"
    if gone:
        yield f"{len(gone)} node(s) of racks are not in Slurm, or have no GPUs there: {_some(gone)}"
    both = sorted(ours.places.keys() & found.places.keys())
    moved = [node for node in both if _is_moved(ours, found, node)]
    if moved:
        yield f"{len(moved)} node(s) hang on another leaf switch than racks say: {_some(moved)}"


def _is_moved(ours: Topology, found: Topology, node: NodeName) -> bool:
    """Return whether Slurm knows a leaf switch, and racks another. `leaf of RACK` is our own word for none."""
    before, now = ours.places[node].leaf_switch, found.places[node].leaf_switch
    return not now.startswith("leaf of ") and before != now


def _shown(value: object) -> str:
    return str(getattr(value, "value", value))[:80] or "nothing"
