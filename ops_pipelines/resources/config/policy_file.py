"""Reads policy.yaml: what the operator allows, as domain values, and what is wrong with it for this cluster.

How YAML is read strictly is `strict_yaml`, the shape of the file `models`. Durations are `*_seconds` numbers in
the file and `timedelta` from here on.
"""

from dataclasses import replace
from datetime import UTC, time, timedelta
from pathlib import Path
from typing import get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ops_pipelines.core.identity import NodeName, Topology
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
    PolicyError,
    RecoveryLimits,
    Risk,
    RolloutLimits,
    WeeklyWindow,
)
from ops_pipelines.lake.node_names import expand_host_list
from ops_pipelines.remediate.guardrails.policy_lint import caution_about_rollouts, lint_policy
from ops_pipelines.resources.config.advice_section import read_advice
from ops_pipelines.resources.config.models import (
    DayName,
    FreezeWindowModel,
    LadderModel,
    PolicyModel,
    RecoveryModel,
    RolloutsModel,
    WeeklyWindowModel,
)
from ops_pipelines.resources.config.quota_section import read_quotas
from ops_pipelines.resources.config.strict_yaml import YamlFile


def read_policy(path: Path, *, topology: Topology, read_from: Path | None = None) -> Policy:
    """Return what policy.yaml allows, or the copy `read_from` of it; an empty file gives the defaults: mode observe.

    Raises ConfigError with every fault found. A name in `untouchable_nodes` that the cluster does not have is a
    fault: a misspelt name would leave the node that was meant unprotected. So is, in a mode that acts, a policy that
    allows everything or nothing by accident (`remediate.guardrails.policy_lint`).
    """
    file = YamlFile(path, read_from=read_from)
    top = file.check(PolicyModel, file.values, at=())
    file.finish()
    assert top is not None, "a file that could not be read leaves a fault"
    untouchable = _read_untouchable(file, top.untouchable_nodes, topology=topology)
    windows = _read_freeze_windows(file, top.freeze_windows)
    weekly = _read_weekly_windows(file, top.maintenance_windows)
    calendars = tuple(
        str(found)
        for index, path in enumerate(top.maintenance_calendars)
        if (found := file.find_file(path, at=("maintenance_calendars", index))) is not None
    )
    read_quotas(file, top.quotas)  # for its faults alone: who moves quotas reads them with `read_quota_policy`
    read_advice(file, top.advice)  # likewise: who gives advice reads it with `read_advice_settings`
    policy = None
    try:
        policy = Policy(
            mode=Mode(top.mode),
            consents={
                ActionClass(key): Consent(word) for key, word in top.consents.model_dump(exclude_none=True).items()
            },
            drain_budget=DrainBudget(**top.drain_budget.model_dump()),
            mass_event=MassEvent(
                min_node_count=top.mass_event.min_node_count,
                window=timedelta(seconds=top.mass_event.window_seconds),
                brake_window=timedelta(seconds=top.mass_event.brake_window_seconds),
            ),
            durations=Durations(
                **{
                    key.removesuffix("_seconds"): timedelta(seconds=value)
                    for key, value in top.durations.model_dump().items()
                }
            ),
            ladder=_ladder(top.ladder),
            recovery=_recovery(top.recovery),
            blast_caps=BlastCaps(**top.blast_caps.model_dump()),
            rollouts=_rollouts(top.rollouts),
            maintenance_windows=weekly,
            maintenance_calendars=calendars,
            freeze_windows=windows,
            accepted_risks={Risk(name): why for name, why in top.accepted_risks.model_dump(exclude_none=True).items()},
            untouchable_nodes=untouchable,
        )
    except PolicyError as exc:
        _add_fault(file, str(exc))
    if policy is not None and policy.mode is not Mode.OBSERVE:
        for reason in lint_policy(policy, topology):
            _add_fault(file, reason)
    file.finish()
    assert policy is not None, "a policy that could not be made leaves a fault"
    return policy


def find_cautions(policy: Policy, topology: Topology) -> tuple[str, ...]:
    """Return what should be meant in a policy that acts; of one that observes, why it would be refused, did it act."""
    if policy.mode is not Mode.OBSERVE:
        return tuple(caution_about_rollouts(policy))
    found = lint_policy(replace(policy, mode=Mode.AUTO), topology)
    would_be = tuple(f"mode: auto would be refused: {reason}" for reason in found)
    named = ", ".join(kind.value for kind in policy.consents)
    unused = (f"consents ({named}) change nothing while mode is observe: nothing is done",) if named else ()
    return (*unused, *would_be)


def _ladder(section: LadderModel) -> LadderLimits:
    return LadderLimits(
        max_gpu_resets_count=section.max_gpu_resets_count,
        max_reboots_count=section.max_reboots_count,
        max_power_cycles_count=section.max_power_cycles_count,
        max_reimages_count=section.max_reimages_count,
        memory=timedelta(seconds=section.memory_seconds),
        cool_down=timedelta(seconds=section.cool_down_seconds),
    )


def _recovery(section: RecoveryModel) -> RecoveryLimits:
    return RecoveryLimits(
        max_requeues_count=section.max_requeues_count,
        requeue_window=timedelta(seconds=section.requeue_window_seconds),
        interactive_notice=timedelta(seconds=section.interactive_notice_seconds),
        checkpoint_wait=timedelta(seconds=section.checkpoint_wait_seconds),
        default_min_serving_ratio=section.default_min_serving_ratio,
    )


def _rollouts(section: RolloutsModel) -> RolloutLimits:
    return RolloutLimits(
        max_out_count=section.max_out_count,
        canary_counts=tuple(section.canary_counts),
        growth_ratio=section.growth_ratio,
        soak=timedelta(seconds=section.soak_seconds),
        soak_limit=timedelta(seconds=section.soak_limit_seconds),
        gang_cap_node_count=section.gang_cap_node_count,
        max_pulled_count=section.max_pulled_count,
        job_end_limit=timedelta(seconds=section.job_end_limit_seconds),
        install_limit=timedelta(seconds=section.install_limit_seconds),
        verify_limit=timedelta(seconds=section.verify_limit_seconds),
        good_read_count=section.good_read_count,
        good_read_every=timedelta(seconds=section.good_read_every_seconds),
        answer_limit=timedelta(seconds=section.answer_limit_seconds),
    )


def _add_fault(file: YamlFile, sentence: str) -> None:
    """Keep what the domain says of the policy; its sentences open with the key: `drain_budget.max_out_count is -1`."""
    file.add_fault(tuple(sentence.split(" ", 1)[0].rstrip(":").split(".")), sentence)


def _read_freeze_windows(file: YamlFile, entries: list[FreezeWindowModel]) -> tuple[FreezeWindow, ...]:
    windows = []
    for index, entry in enumerate(entries):
        try:
            window = FreezeWindow(**entry.model_dump())
        except PolicyError as exc:
            file.add_fault(("freeze_windows", index), str(exc))
            continue
        try:
            begins_at, ends_at = window.begins_at.astimezone(UTC), window.ends_at.astimezone(UTC)
        except OverflowError:
            sentence = (
                f"freeze window {window.name!r} reaches beyond the years 1 to 9999 in UTC; expected a year like 2026"
            )
            file.add_fault(("freeze_windows", index), sentence)
            continue
        windows.append(replace(window, begins_at=begins_at, ends_at=ends_at))
    return tuple(windows)


def _read_weekly_windows(file: YamlFile, entries: list[WeeklyWindowModel] | None) -> tuple[WeeklyWindow, ...] | None:
    if entries is None:
        return None
    for index, entry in enumerate(entries):
        try:
            ZoneInfo(entry.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            at = ("maintenance_windows", index, "timezone")
            file.add_fault(at, f"found {entry.timezone!r}; expected a zone of the IANA list such as Europe/Berlin")
    names = get_args(DayName)
    return tuple(
        WeeklyWindow(
            name=entry.name,
            days=frozenset(names.index(day) for day in entry.days),
            begins=time.fromisoformat(entry.begins),
            ends=time.fromisoformat(entry.ends),
            timezone=entry.timezone,
        )
        for entry in entries
    )


def _read_untouchable(file: YamlFile, entries: list[str], *, topology: Topology) -> frozenset[NodeName]:
    nodes: set[NodeName] = set()
    for index, entry in enumerate(entries):
        at = ("untouchable_nodes", index)
        try:
            named = expand_host_list(entry)
        except ValueError as exc:
            file.add_fault(at, str(exc))
            continue
        unknown = [node for node in named if not topology.knows(node)]
        if unknown:
            file.add_fault(at, f"{unknown[0]} is not a node of the cluster; check the name against cluster.yaml")
        nodes.update(named)
    return frozenset(nodes)
