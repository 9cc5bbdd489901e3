"""Reads policy.yaml: what the operator allows, as domain values, and what is wrong with it for this cluster.

What single limits must be is `core.policy`'s, which reports it here at the key that it is about. The sections that
decide nothing about nodes (`quotas`, `advice`, `capacity`) are read by themselves too: they are no part of
`core.policy.Policy`, under whose digest decisions about nodes are kept, so a quota that moves otherwise changes no
plan.

A policy may be read for another cluster than the one that it was written for: what-if asks it of a simulated one. Then
what names things of the real cluster, its nodes and windows of its calendar, is left out, and reported.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic import ValidationInfo as Reading
from pydantic_core import PydanticCustomError

from ops_pipelines.core.identity import NodeName, Place, Topology
from ops_pipelines.core.policy import (
    ActionClass,
    BlastCaps,
    Consent,
    DrainBudget,
    Durations,
    EvidenceBound,
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
from ops_pipelines.remediate.guardrails.lints import caution_about_rollouts, lint_policy
from ops_pipelines.resources.config.binding import (
    Fault,
    FaultsFound,
    Made,
    Section,
    dict_of,
    given_with,
    keys_of,
    list_of,
    located,
    nullable,
    optional,
    section_of,
)
from ops_pipelines.resources.config.yaml_file import (
    ClockTime,
    Count,
    ExistingFile,
    GpuTypeName,
    HostList,
    Line,
    PositiveSeconds,
    Ratio,
    Text,
    YamlFile,
    ZoneName,
    expand_home,
)
from ops_pipelines.teams.desk import AdviceSettings, LadderSettings, QuotaFreeze, QuotaPolicy, RebalanceSettings
from ops_pipelines.teams.projects import CapacityPolicy

# Assumption: no limit here is meant to be longer than a year; more is a slip of units.
_YEAR_DAYS = 366
_Hours = Annotated[float, Field(gt=0, le=_YEAR_DAYS * 24)]
_DayCount = Annotated[int, Field(ge=1, le=_YEAR_DAYS)]
_Days = Annotated[float, Field(gt=0, le=3660)]
_Minutes = Annotated[float, Field(ge=0, le=7 * 1440)]
_Some = Annotated[int, Field(ge=1, le=1000)]
_MAX_LISTING_BYTES = 2**30
"""Assumption: a listing of ten million files; more is to be listed by directory."""


def read_quota_policy(path: Path, *, read_from: Path | None = None) -> QuotaPolicy:
    """Return what policy.yaml, or a copy of it, says of quotas; raise ConfigError with every fault of that section."""
    return _read(path, "quotas", QUOTAS, read_from=read_from)


def read_capacity_policy(path: Path, *, read_from: Path | None = None) -> CapacityPolicy:
    """Return what policy.yaml, or a copy, says of capacity; raise ConfigError with every fault of that section."""
    return _read(path, "capacity", CAPACITY_POLICY, read_from=read_from)


def read_advice_settings(
    path: Path, *, read_from: Path | None = None
) -> tuple[AdviceSettings, Callable[[], bytes] | None]:
    """Return what policy.yaml, or a copy of it, says of advice, and what reads the listing that it names.

    Raises ConfigError.
    """
    settings, listing = _read(path, "advice", ADVICE, read_from=read_from)
    return settings, None if listing is None else listing_reader(path, listing)


def listing_reader(policy: Path, name: str) -> Callable[[], bytes]:
    """Return what reads the listing, whose path counts from the directory of policy.yaml. It may not be there yet."""
    place = policy.resolve().parent / expand_home(name)

    def read() -> bytes:
        size = place.stat().st_size
        if size > _MAX_LISTING_BYTES:
            raise ValueError(f"{place.name} has {size} bytes; list directories in place of files, up to 1 GiB")
        return place.read_bytes()

    return read


def _read(path: Path, key: str, section: Section[Made], *, read_from: Path | None) -> Made:
    file = YamlFile(path, read_from=read_from)
    made = file.read(section, file.values.get(key, {}), at=(key,))
    file.finish()
    assert made is not None, "a section that could not be read leaves a fault"
    return made


# -- quotas --

_REBALANCE = tuple(each.name for each in fields(RebalanceSettings))


def _quota_freeze(*, name: str, begins_at: datetime, ends_at: datetime | None) -> QuotaFreeze:
    freeze = QuotaFreeze(name=name, begins_at=begins_at, ends_at=ends_at)
    try:
        until = None if freeze.ends_at is None else freeze.ends_at.astimezone(UTC)
        return QuotaFreeze(name=name, begins_at=freeze.begins_at.astimezone(UTC), ends_at=until)
    except OverflowError as problem:
        found = f"{name} reaches beyond the years 1 to 9999 in UTC"
        raise ValueError(f"{found}; expected a year like 2026") from problem


def _quota_policy(**stated: object) -> QuotaPolicy:
    """Return it with what is beside it in the file; the faults of both parts are reported."""
    faults: list[Fault] = []
    rebalance = RebalanceSettings()
    try:
        # What follows was read as the fields of both.
        rebalance = RebalanceSettings(**{name: stated.pop(name) for name in _REBALANCE if name in stated})  # type: ignore[arg-type]
    except ValueError as problem:
        faults.append(located(problem, QUOTAS.keys))
    try:
        policy = QuotaPolicy(rebalance=rebalance, **stated)  # type: ignore[arg-type]
    except ValueError as problem:
        faults.append(located(problem, QUOTAS.keys))
    if faults:
        raise FaultsFound(*faults)
    return policy


QUOTA_FREEZE = Section(_quota_freeze, keys_of(QuotaFreeze, shapes={"name": Line}))
"""Times with a zone, and without quotes: 2026-12-24T00:00:00Z. `ends_at` must be stated; null: no end is known."""
QUOTAS = Section(
    _quota_policy,
    keys_of(
        RebalanceSettings,
        shapes={"half_life_hours": _Hours},
        by_type={int: _DayCount},
    )
    | keys_of(
        QuotaPolicy,
        names={"demand_max_age": "demand_max_age_hours"},
        shapes={"demand_max_age": _Hours, "freezes": list_of(QUOTA_FREEZE)},
        without=("rebalance",),
    ),
)

# -- advice --


def _advice(*, storage_listing: str | None = None, **stated: object) -> tuple[AdviceSettings, str | None]:
    return AdviceSettings(**stated), storage_listing  # type: ignore[arg-type]  # each was read as its field


IDLE_LADDER = section_of(
    LadderSettings,
    names={name: f"{name}_minutes" for name in ("first_warning_after", "second_warning_after", "release_after")},
    by_type={timedelta: _Minutes},
)
ADVICE = Section(
    _advice,
    keys_of(
        AdviceSettings,
        names={
            "least_gain_bytes": "least_gain_tib",
            "idle_grace": "idle_grace_minutes",
            "warm_up": "warm_up_minutes",
            "light_most_memory_bytes": "light_most_memory_gb",
            "stale_after": "stale_after_days",
            "unused_after": "unused_after_days",
            "ladder": "idle_ladder",
        },
        shapes={
            "quiet_weeks": Annotated[int, Field(ge=1, le=52)],
            "followed_ratio": Ratio,
            "least_gain_bytes": Annotated[float, Field(ge=0, le=2**20), AfterValidator(lambda tib: round(tib * 2**40))],
            "least_seen_ratio": Ratio,
            "stall_least_ratio": Ratio,
            "communication_least_ratio": Ratio,
            "communication_gain_ratio": Ratio,
            "small_batch_least_ratio": Ratio,
            "small_batch_most_memory_ratio": Ratio,
            "straggler_least_ratio": Ratio,
            "lesser_types": dict_of(GpuTypeName, GpuTypeName),
            "light_most_utilisation_ratio": Ratio,
            "light_most_memory_bytes": Annotated[
                float, Field(gt=0, le=100_000), AfterValidator(lambda gigabytes: gigabytes * 1e9)
            ],
            "memory_least_unneeded_ratio": Ratio,
            "stale_after": _Days,
            "unused_after": _Days,
            "ladder": IDLE_LADDER,
        },
        by_type={int: _Some, timedelta: _Minutes},
        # What is measured or assumed and no site has to choose.
        without=(
            "sm_target_ratio",
            "straggler_low_ratio",
            "straggler_loss_ratio",
            "memory_margin_ratio",
            "wall_time_gain_ratio",
            "least_interval_count",
        ),
    )
    | nullable(storage_listing=Annotated[str, Field(min_length=1, max_length=4096)]),
)

# -- capacity --


def _rising(ratios: list[float]) -> list[float]:
    if any(low >= high for low, high in pairwise(ratios)):
        raise PydanticCustomError("rising", "expected ratios that rise, such as [3, 5, 10]")
    return ratios


CAPACITY_POLICY = section_of(
    CapacityPolicy,
    shapes={
        "shortage_probability_max": Annotated[float, Field(gt=0, le=0.5)],
        "horizon_weeks": Annotated[int, Field(ge=4, le=104)],
        "lead_time_quantile": Annotated[float, Field(ge=0.5, le=0.99)],
        "least_short_weeks": Annotated[int, Field(ge=1, le=4)],
        "regret_ratios": Annotated[
            list[Annotated[float, Field(gt=0, le=1e6)]], Field(min_length=1, max_length=8), AfterValidator(_rising)
        ],
        "refresh_after_months": Annotated[int, Field(ge=1, le=600)],
        "network_ratio_max": Annotated[float, Field(gt=0, le=1)],
    },
)


_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
"""In their order: Monday is 0."""


def read_policy(path: Path, *, topology: Topology, read_from: Path | None = None) -> Policy:
    """Return what policy.yaml allows, or the copy `read_from` of it; an empty file gives the defaults: mode observe.

    Raises ConfigError with every fault found. A name in `untouchable_nodes` that the cluster does not have is a
    fault: a misspelt name would leave the node that was meant unprotected. So is, in a mode that acts, a policy that
    allows everything or nothing by accident (`remediate.guardrails.lints`).
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
        said.append(f"untouchable_nodes: the simulated cluster has no {foreign[0]}{rest}; it is read without")
    if policy.freeze_windows:
        said.append("freeze_windows: simulated time has no calendar; it is read without them")
    if policy.maintenance_windows is not None or policy.maintenance_calendars:
        said.append("maintenance_windows: simulated time has no calendar; it is read without them")
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
ROLLOUTS = section_of(
    RolloutLimits,
    by_type=_LIMITS,
    shapes={"canary_counts": list_of(Count), "bounds": list_of(section_of(EvidenceBound))},
)
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
