"""What stays in service of each part of the cluster when nodes are drained: the counts of a plan's proof.

Counted over every declared node, before and after, and by other means than the guardrails', which judge one drain.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.observation import NodeState
from ops_pipelines.core.plan import Remaining
from ops_pipelines.core.policy import Policy
from ops_pipelines.domain.guardrails.budgets import out_limit
from ops_pipelines.domain.guardrails.facts import ClusterFacts

_DRAIN_SHOWS_WITHIN = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    max_out_count: int
    words: str


def count_parts(
    drained: frozenset[NodeName], facts: ClusterFacts, *, policy: Policy, topology: Topology
) -> tuple[list[Remaining], list[str]]:
    """Return every part that a drain touches, before and after, and the limits that are broken by what is new."""
    total: Counter[tuple[str, str]] = Counter()
    before: Counter[tuple[str, str]] = Counter()
    after: Counter[tuple[str, str]] = Counter()
    concerned = {
        part for name in drained if topology.knows(name) for part in _parts_of(name, topology.places[name], facts)
    }
    being_drained = {
        record.action.node
        for record in facts.records
        if record.action.verb is Verb.DRAIN
        and record.outcome is None
        and facts.taken_at - record.begun_at <= _DRAIN_SHOWS_WITHIN
    }
    # Of a large cluster few nodes share more with a drain than the cluster itself.
    places = {name for kind, name in concerned if kind != "cluster"}
    in_partitions = any(kind == "partition" for kind, _ in concerned)
    for name, place in topology.places.items():
        was_out = _is_out(name, facts) or name in being_drained
        shares = in_partitions or not places.isdisjoint((place.rack, place.leaf_switch, place.nvlink_domain))
        for part in _parts_of(name, place, facts) if shares else _WHOLE:
            if part in concerned:
                total[part] += 1
                before[part] += was_out
                after[part] += was_out or name in drained
    remaining, broken = [], []
    for part in sorted(concerned, key=lambda each: (_KINDS.index(each[0]), each[1])):
        kind, part_name = part
        limits = _limits_of(kind, total[part], policy)
        remaining.append(
            Remaining(
                kind=kind,
                name=part_name,
                total_count=total[part],
                out_before_count=before[part],
                out_after_count=after[part],
                limit=", ".join(limit.words for limit in limits),
            )
        )
        if after[part] > before[part]:
            where = "the cluster" if kind == "cluster" else f"{kind.replace('_', ' ')} {part_name}"
            broken += [
                f"{after[part]} of {total[part]} nodes of {where} would be out; {limit.words}"
                for limit in limits
                if after[part] > limit.max_out_count
            ]
    return remaining, broken


_WHOLE = (("cluster", ""),)
_KINDS = ("cluster", "partition", "rack", "leaf_switch", "nvlink_domain")


def _parts_of(name: NodeName, place: Place, facts: ClusterFacts) -> list[tuple[str, str]]:
    status = facts.nodes.get(name)
    return [
        ("cluster", ""),
        ("rack", place.rack),
        ("leaf_switch", place.leaf_switch),
        ("nvlink_domain", place.nvlink_domain),
        *(("partition", partition) for partition in (() if status is None else status.partitions)),
    ]


def _is_out(name: NodeName, facts: ClusterFacts) -> bool:
    node = facts.nodes.get(name)
    return node is not None and (node.is_drained or node.state is NodeState.DOWN or not node.is_responding)


def _limits_of(kind: str, total: int, policy: Policy) -> list[_Limit]:
    budget, caps = policy.drain_budget, policy.blast_caps
    match kind:
        case "cluster":
            # The highest count at which the share is still met, found by trying: no rounding of our own.
            in_service = max(
                (out for out in range(total + 1) if (total - out) / total >= budget.min_in_service_ratio), default=-1
            )
            return [
                _Limit(max_out_count=budget.max_out_count, words=f"max_out_count is {budget.max_out_count}"),
                _Limit(max_out_count=in_service, words=f"min_in_service_ratio is {budget.min_in_service_ratio}"),
            ]
        case "rack":
            limit = budget.max_out_per_rack_count
            return [_Limit(max_out_count=limit, words=f"max_out_per_rack_count is {limit}")]
        case "partition":
            ratio = caps.max_out_per_partition_ratio
            return [_Limit(max_out_count=out_limit(total, ratio), words=f"max_out_per_partition_ratio is {ratio}")]
        case "leaf_switch":
            per_leaf = caps.max_out_per_leaf_count
            return (
                []
                if per_leaf is None
                else [_Limit(max_out_count=per_leaf, words=f"max_out_per_leaf_count is {per_leaf}")]
            )
    per_domain = caps.max_out_per_nvlink_domain_count
    if per_domain is None or total == 1:
        return []
    return [_Limit(max_out_count=per_domain, words=f"max_out_per_nvlink_domain_count is {per_domain}")]
