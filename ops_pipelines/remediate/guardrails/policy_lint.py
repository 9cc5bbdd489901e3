"""Finds a policy that allows everything, or nothing, by accident; its limits of rollouts among it.

What holds of all other limits is `policy_lint`'s, which asks this too. What is only said refuses nothing.

Each limit alone is checked where it is defined (`policy`). A limit that is meant to forbid everything has one plain way
to say so, which is never refused: `mode: observe`, or `drain_budget.max_out_count: 0`.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.policy import ActionClass, BlastCaps, Consent, DrainBudget, Mode, Policy, RolloutLimits

# -- finds limits of rollouts that forbid everything, or limit nothing, by accident --


USUAL_CLAIM = timedelta(hours=6)
"""Which failure a release promises to find on its first nodes, where it does not say: the default of its claims."""
_JUDGED_AFTER = timedelta(hours=1)
"""# Assumption: so long after the slowest failure would have begun, it has shown itself."""


def lint_rollouts(policy: Policy) -> Iterator[str]:
    """Yield why rollouts must not be begun under this policy, one sentence a reason, opening with its key."""
    limits, budget = policy.rollouts, policy.drain_budget
    if limits.max_out_count > budget.max_out_count > 0 and limits.max_out_count != RolloutLimits().max_out_count:
        yield (
            f"rollouts.max_out_count is {limits.max_out_count}, more than drain_budget.max_out_count, "
            f"{budget.max_out_count}: it limits nothing; it is the rollouts' own part of that budget"
        )
    for name in ("install_limit", "verify_limit"):
        if getattr(limits, name) == timedelta(0):
            yield f"rollouts.{name}_seconds is 0: nothing could ever be seen within it, so that everything would fail"
    reading = limits.good_read_every * (limits.good_read_count - 1)
    if timedelta(0) < limits.verify_limit <= reading:
        yield (
            f"rollouts.verify_limit_seconds is {limits.verify_limit.total_seconds():g}, and {limits.good_read_count} "
            f"reads take {reading.total_seconds():g} s: no version could ever be seen to run"
        )
    if policy.maintenance_windows == () and not policy.maintenance_calendars:
        yield (
            "maintenance_windows is empty: no rollout could ever begin; leave it out for any time outside freezes, or "
            "say consents.update: forbid"
        )


def caution_about_rollouts(policy: Policy) -> Iterator[str]:
    """Yield what is no mistake, and yet should be meant: when rollouts begin, and what they leave to faults.

    Not of a policy that says nothing of rollouts: who begins none need not read of them.
    """
    is_said = ActionClass.UPDATE in policy.consents or policy.rollouts != RolloutLimits()
    if not is_said or policy.consent_to(ActionClass.UPDATE) is Consent.FORBID:
        return
    if policy.maintenance_windows is None and not policy.maintenance_calendars:
        yield "maintenance_windows is not declared: a rollout may take nodes at any time outside freeze windows"
    limit, least = policy.rollouts.soak_limit, USUAL_CLAIM + _JUDGED_AFTER
    if limit < least:
        yield (
            f"rollouts.soak_limit_seconds is {limit.total_seconds():g}: a release that claims the usual "
            f"{USUAL_CLAIM.total_seconds() / 3600:g} hours works {least.total_seconds():g} s on its first nodes before "
            "they can be found good, so that its rollout would stop and ask"
        )
    most, budget = policy.rollouts.max_out_count, policy.drain_budget.max_out_count
    if 0 < budget <= most:
        yield (
            f"rollouts.max_out_count is {most} of the {budget} nodes that may be out (drain_budget.max_out_count): "
            "while a rollout goes on, a broken node may find no place"
        )


# -- finds a policy that allows everything, or nothing, by accident --


_LONGEST_FREEZE = timedelta(days=60)
"""# Assumption: who freezes for longer than a quarter's end means `mode: observe`."""
_A_MONTH_HOURS = 31 * 24
_MOST_TRIES_COUNT = 10
"""# Assumption: what ten repairs of one kind within a day did not mend, the eleventh does not."""
_MOST_REQUEUES_COUNT = 24
"""# Assumption: a job that is moved more often than hourly does no work."""
_SHORTEST_MEMORY = timedelta(hours=1)
"""# Assumption: a repair and its proof take up to an hour; what is forgotten sooner is never counted."""
_LONGEST_STALENESS = timedelta(hours=1)
"""# Assumption: no system of metrics scrapes less often."""


def lint_policy(policy: Policy, topology: Topology) -> tuple[str, ...]:
    """Return why this policy must not be acted under on this cluster, one sentence a reason, opening with its key."""
    return (
        *_lint_consents(policy),
        *_lint_budget(policy, topology),
        *_lint_mass_event(policy, topology),
        *_lint_caps(policy, topology),
        *_lint_freeze(policy),
        *_lint_times(policy),
        *_lint_counts(policy, topology),
        *_lint_memories(policy),
        *_lint_targets(policy, topology),
        *lint_rollouts(policy),
    )


def _lint_consents(policy: Policy) -> Iterator[str]:
    """Every repair opens with a drain; what stands behind an act that is never done is never done either."""
    if not policy.consents:
        return
    if all(policy.consent_to(kind) is Consent.FORBID for kind in ActionClass):
        yield "consents forbid every class of acts, so nothing could ever be done; set mode: observe"
    elif policy.consent_to(ActionClass.ISOLATE) is Consent.FORBID:
        # Quotas touch no node: whoever wants nothing else done may have it so.
        others = ", ".join(
            f"{kind.value}: {policy.consent_to(kind).value}"
            for kind in ActionClass
            if kind is not ActionClass.QUOTAS and policy.consent_to(kind) is not Consent.FORBID
        )
        if not others:
            return
        yield (
            f"consents.isolate is forbid while others are not ({others}): a broken node would go on taking work, so "
            "that no job is moved off it and no repair begins; allow isolate, or set mode: observe"
        )


def _most_out(policy: Policy, topology: Topology) -> int:
    """Return how many nodes the drain budget lets out at once."""
    node_count, budget = len(topology.places), policy.drain_budget
    by_ratio = [
        out
        for out in range(node_count + 1)
        if node_count and (node_count - out) / node_count >= budget.min_in_service_ratio
    ]
    return min(budget.max_out_count, max(by_ratio, default=0))


def _lint_budget(policy: Policy, topology: Topology) -> Iterator[str]:
    budget, node_count = policy.drain_budget, len(topology.places)
    if budget.max_out_count == 0:
        return  # Said in plain words: nothing is drained.
    if _most_out(policy, topology) >= node_count > 0:
        yield (
            f"drain_budget.max_out_count is {budget.max_out_count} of {node_count} nodes and min_in_service_ratio is "
            f"{budget.min_in_service_ratio:g}: the whole cluster could be taken out; lower the one or raise the other"
        )
    # The default on a handful of nodes is no slip of anybody's; each plan that it holds back says so.
    if _most_out(policy, topology) == 0 and budget.min_in_service_ratio != DrainBudget().min_in_service_ratio:
        yield (
            f"drain_budget.min_in_service_ratio is {budget.min_in_service_ratio:g}: of {node_count} node(s) not one "
            f"could ever be drained; at most {(node_count - 1) / max(1, node_count):.3g} lets one out, and "
            "max_out_count: 0 says that none shall be"
        )
    for name in ("max_out_per_rack_count", "max_new_per_hour_count"):
        if getattr(budget, name) == 0:
            yield (
                f"drain_budget.{name} is 0 while max_out_count is {budget.max_out_count}: no node could ever be "
                "drained; max_out_count: 0 says that none shall be"
            )


def _lint_mass_event(policy: Policy, topology: Topology) -> Iterator[str]:
    """A small cluster never reaches the default; that matters only where no other limit keeps half of it in service."""
    node_count, event, budget = len(topology.places), policy.mass_event, policy.drain_budget
    most_new = min(_most_out(policy, topology), budget.max_new_per_hour_count)
    if event.min_node_count > node_count and 2 * most_new > node_count:
        yield (
            f"mass_event.min_node_count is {event.min_node_count} on a cluster of {node_count}: it could never stop "
            f"anything, while {most_new} nodes may be taken out within an hour; set it to "
            f"{max(2, node_count // 2)} or less"
        )
    if event.brake_window < event.window:
        yield (
            f"mass_event.brake_window_seconds is {event.brake_window.total_seconds():g}, less than window_seconds, "
            f"{event.window.total_seconds():g}: acts would be forgotten before the faults that they answer"
        )


def _lint_caps(policy: Policy, topology: Topology) -> Iterator[str]:
    caps, places = policy.blast_caps, topology.places.values()
    domains = Counter(place.nvlink_domain for place in places)
    shared = [size for size in domains.values() if size > 1]
    for name, sizes in (
        ("max_out_per_leaf_count", list(Counter(place.leaf_switch for place in places).values())),
        ("max_out_per_nvlink_domain_count", shared if len(shared) == len(domains) else []),
    ):
        if getattr(caps, name) == 0 and sizes:
            yield f"blast_caps.{name} is 0: no node could ever be drained; leave it out, or use 1 or more"
    for name, sizes in (
        ("max_out_per_leaf_count", list(Counter(place.leaf_switch for place in places).values())),
        ("max_out_per_nvlink_domain_count", shared),
    ):
        cap = getattr(caps, name)
        if cap is not None and sizes and cap >= max(sizes) > 1:
            yield (
                f"blast_caps.{name} is {cap}, and the largest has {max(sizes)} nodes: it limits nothing; use "
                f"{max(sizes) - 1} or less, or leave it out"
            )
    for name in ("max_jobs_per_plan_count", "max_gpu_hours_per_plan", "max_gpu_hours_per_hour"):
        if getattr(caps, name) == 0:
            yield (
                f"blast_caps.{name} is 0: no job could ever be moved off a broken node; "
                "recovery.max_requeues_count: 0 says that none shall be"
            )
    most_hours = len(places) * topology.gpus_per_node * _A_MONTH_HOURS
    if 0 < most_hours < caps.max_gpu_hours_per_plan:
        yield (
            f"blast_caps.max_gpu_hours_per_plan is {caps.max_gpu_hours_per_plan:g}, more than a month's work of "
            f"every GPU here ({most_hours}): it limits nothing; the default is 2000"
        )


def _lint_freeze(policy: Policy) -> Iterator[str]:
    """Windows that touch are one stretch; those in the past harm nobody, and keep the record of why."""
    begins_at, ends_at, names = None, None, list[str]()
    for window in sorted(policy.freeze_windows, key=lambda each: each.begins_at):
        if ends_at is not None and begins_at is not None and window.begins_at <= ends_at:
            ends_at = max(ends_at, window.ends_at)
            names.append(window.name)
        else:
            begins_at, ends_at, names = window.begins_at, window.ends_at, [window.name]
        if ends_at - begins_at > _LONGEST_FREEZE:
            yield (
                f"freeze_windows: {', '.join(names)} hold for {(ends_at - begins_at).days} days without a gap, from "
                f"{begins_at:%Y-%m-%d}; {_LONGEST_FREEZE.days} are the most, and mode: observe says that nothing is "
                "done"
            )
            return


def _lint_times(policy: Policy) -> Iterator[str]:
    durations, ladder = policy.durations, policy.ladder
    if durations.soak == timedelta(0) and policy.mode is not Mode.APPROVE:
        yield (
            "durations.soak_seconds is 0: a repaired node would go back into service unwatched; 300 is the default, "
            "and a few seconds are enough for a drill"
        )
    for name in ("command_limit", "fence_limit", "reset_limit", "reboot_limit", "check_limit", "telemetry_stale_after"):
        if getattr(durations, name) == timedelta(0):
            yield f"durations.{name}_seconds is 0: nothing could ever be seen within it, so that everything would fail"
    if durations.reimage_limit == timedelta(0) and ladder.max_reimages_count:
        yield "durations.reimage_limit_seconds is 0: no installing could ever be seen within it; 7200 is the default"
    if durations.telemetry_stale_after > _LONGEST_STALENESS:
        yield (
            f"durations.telemetry_stale_after_seconds is {durations.telemetry_stale_after.total_seconds():g}: what was "
            f"measured then says nothing of now; {_LONGEST_STALENESS.total_seconds():g} is the most, 120 the default"
        )
    counts = (
        ladder.max_gpu_resets_count,
        ladder.max_reboots_count,
        ladder.max_power_cycles_count,
        ladder.max_reimages_count,
    )
    if not any(counts):
        yield (
            "ladder.max_reboots_count and every other count of tries is 0: each fault would drain a node for hands; "
            "allow one repair, or set mode: observe"
        )


def _lint_counts(policy: Policy, topology: Topology) -> Iterator[str]:
    """A count that nothing reaches is no limit. No default is ever refused, however small the cluster."""
    node_count = len(topology.places)
    gpu_count = node_count * topology.gpus_per_node
    caps, usual = policy.blast_caps, BlastCaps()
    most_hours = max(float(gpu_count * _A_MONTH_HOURS), usual.max_gpu_hours_per_hour)
    limits: list[tuple[str, float, float]] = [
        (f"ladder.{name}", getattr(policy.ladder, name), _MOST_TRIES_COUNT)
        for name in ("max_gpu_resets_count", "max_reboots_count", "max_power_cycles_count", "max_reimages_count")
    ]
    limits += [
        ("recovery.max_requeues_count", policy.recovery.max_requeues_count, _MOST_REQUEUES_COUNT),
        (
            "blast_caps.max_jobs_per_plan_count",
            caps.max_jobs_per_plan_count,
            max(gpu_count, usual.max_jobs_per_plan_count),
        ),
        ("blast_caps.max_gpu_hours_per_hour", caps.max_gpu_hours_per_hour, most_hours),
    ]
    for key, found, most in limits:
        if node_count and found > most:
            yield f"{key} is {found:g}, more than is ever reached here: it limits nothing; {most:g} is the most"


def _lint_memories(policy: Policy) -> Iterator[str]:
    ladder, recovery = policy.ladder, policy.recovery
    shortest = f"{_SHORTEST_MEMORY.total_seconds():g} is the least, 86400 the default"
    if ladder.memory < _SHORTEST_MEMORY:
        yield (
            f"ladder.memory_seconds is {ladder.memory.total_seconds():g}: a repair would be forgotten before the next, "
            f"so that no count of tries is ever used up; {shortest}"
        )
    if recovery.max_requeues_count and recovery.requeue_window < _SHORTEST_MEMORY:
        yield (
            f"recovery.requeue_window_seconds is {recovery.requeue_window.total_seconds():g}: a move would be "
            f"forgotten before the next, so that max_requeues_count limits nothing; {shortest}"
        )


def _lint_targets(policy: Policy, topology: Topology) -> Iterator[str]:
    if topology.places and topology.places.keys() <= policy.untouchable_nodes:
        yield "untouchable_nodes lists every node, so nothing could ever be done; set mode: observe"
