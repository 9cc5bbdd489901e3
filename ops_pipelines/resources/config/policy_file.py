"""Reads policy.yaml: what the operator allows, as domain values, and what is wrong with it for this cluster.

What single limits must be says `core.policy`, and it says it here at the key that it is about. Sections that decide
nothing about nodes are `policy_sections`.

A policy may be read for another cluster than the one that it was written for: what-if asks it of a simulated one. Then
what names things of the real cluster, its nodes and windows of its calendar, is left out, and said.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator
from pydantic import ValidationInfo as Reading

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    Durations,
    FreezeWindow,
    LadderLimits,
    MassEvent,
    Mode,
    Policy,
    RecoveryLimits,
    Risk,
    RolloutLimits,
    WeeklyWindow,
)
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.remediate.guardrails.policy_lint import caution_about_rollouts, lint_policy
from ops_pipelines.resources.config.binding import (
    Section,
    given_with,
    keys_of,
    list_of,
    nullable,
    optional,
    section_of,
)
from ops_pipelines.resources.config.policy_sections import ADVICE, CAPACITY_POLICY, QUOTAS
from ops_pipelines.resources.config.shapes import (
    ClockTime,
    Count,
    ExistingFile,
    HostList,
    PositiveSeconds,
    Text,
    ZoneName,
)
from ops_pipelines.resources.config.strict_yaml import YamlFile

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""In their order: Monday is 0."""


def read_policy(path: Path, *, topology: Topology, read_from: Path | None = None) -> Policy:
    """Return what policy.yaml allows, or the copy `read_from` of it; an empty file gives the defaults: mode observe.

    Raises ConfigError with every fault found. A name in `untouchable_nodes` that the cluster does not have is a
    fault: a misspelt name would leave the node that was meant unprotected. So is, in a mode that acts, a policy that
    allows everything or nothing by accident (`remediate.guardrails.policy_lint`).
    """
    file = YamlFile(path, read_from=read_from)
    policy = file.read(POLICY, file.values, at=(), topology=topology)
    if policy is not None and policy.mode is not Mode.OBSERVE:
        for reason in lint_policy(policy, topology):
            # Its sentences open with the key: `drain_budget.max_out_count is -1`.
            file.add_fault(tuple(reason.split(" ", 1)[0].rstrip(":").split(".")), reason)
    file.finish()
    assert policy is not None, "a policy that could not be made leaves a fault"
    return policy


def read_borrowed_policy(path: Path, *, topology: Topology) -> tuple[Policy, tuple[str, ...]]:
    """Return what policy.yaml allows on this cluster, and what of it was left out, one sentence each.

    Raises ConfigError as `read_policy` does.
    """
    named = _named_nodes(YamlFile(path).values.get("untouchable_nodes"))
    foreign = sorted({node for node in named if not topology.knows(node)})
    stand_ins = {node: Place(rack="elsewhere", nvlink_domain=node, leaf_switch="elsewhere") for node in foreign}
    policy = read_policy(path, topology=replace(topology, places={**topology.places, **stand_ins}))
    said = []
    if foreign:
        rest = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        said.append(f"untouchable_nodes: the simulated cluster has no {foreign[0]}{rest}; it goes on without")
    if policy.freeze_windows:
        said.append("freeze_windows: simulated time has no calendar; it goes on without them")
    if policy.maintenance_windows is not None or policy.maintenance_calendars:
        said.append("maintenance_windows: simulated time has no calendar; it goes on without them")
    untouchable = frozenset(node for node in policy.untouchable_nodes if topology.knows(node))
    kept = replace(
        policy,
        untouchable_nodes=untouchable,
        freeze_windows=(),
        maintenance_windows=None,
        maintenance_calendars=(),
    )
    return kept, tuple(said)


def _named_nodes(entries: object) -> Iterable[NodeName]:
    """Yield the nodes that a list names; what is no list of host lists is left for `read_policy` to refuse."""
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, str):
            try:
                yield from expand_host_list(entry)
            except ValueError:
                continue


def find_cautions(policy: Policy, topology: Topology) -> tuple[str, ...]:
    """Return what should be meant in a policy that acts; of one that observes, why it would be refused, did it act."""
    if policy.mode is not Mode.OBSERVE:
        return tuple(caution_about_rollouts(policy))
    found = lint_policy(replace(policy, mode=Mode.AUTO), topology)
    would_be = tuple(f"mode: auto would be refused: {reason}" for reason in found)
    named = ", ".join(kind.value for kind in policy.consents)
    unused = (f"consents ({named}) change nothing while mode is observe: nothing is done",) if named else ()
    return (*unused, *would_be)


def _consents(**words: str | None) -> Mapping[ActionClass, Consent]:
    """Return what single classes of acts need; of one that is null, `mode` says it."""
    return {ActionClass(key): Consent(word) for key, word in words.items() if word is not None}


def _accepted_risks(**reasons: str | None) -> Mapping[Risk, str]:
    """Return the risks that the operator takes; each says who and why."""
    return {Risk(name): why for name, why in reasons.items() if why is not None}


def _freeze_window(*, name: str, begins_at: datetime, ends_at: datetime, allows_drains: bool = False) -> FreezeWindow:
    window = FreezeWindow(name=name, begins_at=begins_at, ends_at=ends_at, allows_drains=allows_drains)
    try:
        return replace(window, begins_at=window.begins_at.astimezone(UTC), ends_at=window.ends_at.astimezone(UTC))
    except OverflowError as problem:
        found = f"freeze window {name!r} reaches beyond the years 1 to 9999 in UTC"
        raise ValueError(f"{found}; expected a year like 2026") from problem


def _policy(*, quotas: object = None, advice: object = None, capacity: object = None, **stated: object) -> Policy:
    """Return what is decided by about nodes; the other sections are read for their faults alone."""
    return Policy(**stated)  # type: ignore[arg-type]  # each was read as its field


def _known(nodes: tuple[NodeName, ...], reading: Reading) -> tuple[NodeName, ...]:
    topology = given_with(reading).values["topology"]
    assert isinstance(topology, Topology), "a policy is read for a cluster"
    unknown = [node for node in nodes if not topology.knows(node)]
    if unknown:
        raise ValueError(f"{unknown[0]} is not a node of the cluster; check the name against cluster.yaml")
    return nodes


def _all_of(lists: list[tuple[NodeName, ...]]) -> frozenset[NodeName]:
    return frozenset(node for nodes in lists for node in nodes)


_KnownNodes = Annotated[HostList, AfterValidator(_known)]
_LIMITS: Mapping[object, object] = {int: Count}
"""Whole numbers count nodes, jobs or tries."""
DRAIN_BUDGET = section_of(DrainBudget, by_type=_LIMITS)
MASS_EVENT = section_of(MassEvent, by_type=_LIMITS, shapes={"window": PositiveSeconds})
DURATIONS = section_of(
    Durations, by_type=_LIMITS, shapes={"look_every": PositiveSeconds, "retry_after": PositiveSeconds}
)
LADDER = section_of(LadderLimits, by_type=_LIMITS)
RECOVERY = section_of(RecoveryLimits, by_type=_LIMITS)
BLAST_CAPS = section_of(BlastCaps, by_type=_LIMITS)
ROLLOUTS = section_of(RolloutLimits, by_type=_LIMITS, shapes={"canary_counts": list_of(Count)})
CONSENTS = Section(
    _consents,
    nullable(**{each.value: Literal["auto", "approve", "forbid"] for each in ActionClass}),
)
ACCEPTED_RISKS = Section(_accepted_risks, nullable(**{each.value: Text for each in Risk}))
WEEKLY_WINDOW = section_of(
    partial(WeeklyWindow, timezone="UTC"),
    shapes={
        "name": Text,
        "days": list_of(Annotated[Literal[_DAYS], AfterValidator(_DAYS.index)], least=1),
        "begins": ClockTime,
        "ends": ClockTime,
        "timezone": ZoneName,
    },
)
FREEZE_WINDOW = Section(_freeze_window, keys_of(FreezeWindow, shapes={"name": Text}))
"""Times with a zone, and without quotes: 2026-12-24T00:00:00Z."""
POLICY = Section(
    _policy,
    {
        **keys_of(
            Policy,
            shapes={
                "consents": CONSENTS,
                "drain_budget": DRAIN_BUDGET,
                "mass_event": MASS_EVENT,
                "durations": DURATIONS,
                "ladder": LADDER,
                "recovery": RECOVERY,
                "blast_caps": BLAST_CAPS,
                "rollouts": ROLLOUTS,
                "maintenance_windows": list_of(WEEKLY_WINDOW),
                "maintenance_calendars": list_of(Annotated[ExistingFile, AfterValidator(str)]),
                "freeze_windows": list_of(FREEZE_WINDOW),
                "accepted_risks": ACCEPTED_RISKS,
                "untouchable_nodes": Annotated[list[_KnownNodes], AfterValidator(_all_of)],
            },
            without=("lacking",),
        ),
        **optional(quotas=QUOTAS, advice=ADVICE, capacity=CAPACITY_POLICY),
    },
)
"""policy.yaml. Every key may be left out: the defaults are the domain's, and observe."""
