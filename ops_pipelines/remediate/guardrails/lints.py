"""Refuses a policy that allows everything, or nothing, by accident; and gates of node tests that decide nothing.

Each limit alone is checked where it is defined (`core.policy`). A limit that is meant to forbid everything has one
plain way to say so, which is never refused: `mode: observe`, or `drain_budget.max_out_count: 0`. Cautions refuse
nothing.

Two gates that were really published: DCGM's `minimum_bandwidth` of the H200 is 2333 MB/s, a thousandth of what it
reads, and a sample of AWS asks 800 GB/s of an all-reduce that reaches 480. What a gate means is `core.node_tests`'.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.node_tests import GPU_COUNT, TESTS, HealthGate, Suite, covers
from ops_pipelines.core.policy import ActionClass, BlastCaps, Consent, DrainBudget, Mode, Policy, RolloutLimits

USUAL_CLAIM = timedelta(hours=6)
"""Which failure a release promises to find on its first nodes, where it does not say: the default of its claims."""
_JUDGED_AFTER = timedelta(hours=1)
"""# Assumption: so long after the slowest failure would have started, it has shown itself."""


def lint_rollouts(policy: Policy) -> Iterator[str]:
    """Yield why rollouts must not be started under this policy, one sentence a reason, opening with its key."""
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
            "while a rollout continues, a broken node may find no place"
        )


_LONGEST_FREEZE = timedelta(days=60)
"""# Assumption: who freezes for longer than a quarter's end means `mode: observe`."""
_A_MONTH_HOURS = 31 * 24
_MOST_TRIES_COUNT = 10
"""# Assumption: what ten repairs of one kind within a day did not repair, the eleventh does not."""
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
    """Every repair opens with a drain; what is behind an act that is never done is never done either."""
    if not policy.consents:
        return
    if all(policy.consent_to(kind) is Consent.FORBID for kind in ActionClass):
        yield "consents forbid every class of acts, so nothing could ever be done; set mode: observe"
    elif policy.consent_to(ActionClass.ISOLATE) is Consent.FORBID:
        # Quotas touch no node: who wants nothing else done may have it so.
        others = ", ".join(
            f"{kind.value}: {policy.consent_to(kind).value}"
            for kind in ActionClass
            if kind is not ActionClass.QUOTAS and policy.consent_to(kind) is not Consent.FORBID
        )
        if not others:
            return
        yield (
            f"consents.isolate is forbid while others are not ({others}): a broken node would continue taking work, so "
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
        return  # Stated in plain words: nothing is drained.
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
    """Windows that touch are one interval; those in the past harm nobody, and keep the record of why."""
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
            "durations.soak_seconds is 0: a repaired node would return to service unwatched; 300 is the default, "
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


CANNOT_FAIL_BELOW_RATIO = 0.2
"""# Assumption: a part that brings less than a fifth of what is usual is not slow but broken, and is seen to be so."""
CANNOT_PASS_ABOVE_RATIO = 1.05
"""# Assumption: healthy parts differ by a few percent; a floor 5 % above what is typical holds most of them back."""
MIN_BASELINE_RATIO, MAX_BASELINE_RATIO = 0.2, 0.98
"""# Assumption: two runs on one healthy node differ by up to 2 %; closer, and half of all runs would be faults."""
_MEASURED: Mapping[str, frozenset[str]] = {
    "nvml": frozenset({
        "ecc_uncorrectable", "ecc_corrected", "rows_remapped", "pcie_width", "pcie_generation",
        "nvlinks_active", "nvlinks_inactive", "temperature",
    }),
    "nvidia_smi": frozenset(),
    "dcgm_diag_r1": frozenset({"host_to_gpu", "gpu_to_host"}),
    "dcgm_diag_r2": frozenset({"host_to_gpu", "gpu_to_host"}),
    "dcgm_diag_r3": frozenset({"host_to_gpu", "gpu_to_host"}),
    "dcgm_memtest": frozenset(),
    "nccl_loopback": frozenset({"busbw", GPU_COUNT}),
    "nic_pairwise": frozenset({"rate_ratio", "nic_count"}),
    "software": frozenset({"free_ratio"}),
    "host": frozenset({"host_memory_corrected"}),
}  # fmt: skip
"""Test -> what `node-check` measures in it."""
_UNIT_SLIPS = (1e3, 1e6, 1e9, 8.0, 8e3, 2.0**10, 2.0**20, 2.0**30)
"""What separates units that are taken for each other: kilo, mega, giga, bits and bytes, powers of 1024."""


def lint_suites(suites: Sequence[Suite]) -> tuple[str, ...]:
    """Return what is wrong with the table of suites, one sentence each; empty: nothing."""
    faults = [f"suite {name} is there twice" for name in _twice(suite.name for suite in suites)]
    faults += [
        f"family {family} belongs to more than one suite"
        for family in _twice(family.value for suite in suites for family in suite.families)
    ]
    for_faults = [suite for suite in suites if not suite.is_by_name]
    default_count = sum(not suite.families for suite in for_faults)
    if default_count != 1:
        faults.append(f"{default_count} suites name no family; expected exactly one, for all that fits no other")
    if not any(covers(suite, for_faults) for suite in for_faults):
        faults.append("no suite covers all others: a fault of several families could not be tested")
    for suite in suites:
        if suite.is_by_name and suite.families:
            faults.append(f"suite {suite.name} is asked for by its name, and names families of faults; leave one out")
        faults += [f"suite {suite.name} runs {test!r}, and there is no such test" for test in suite.tests
                   if test not in TESTS]  # fmt: skip
        if not suite.required:
            faults.append(f"suite {suite.name} requires nothing: a node that was not looked at would be proven well")
        faults += [f"suite {suite.name} requires {test}, which it does not run" for test in
                   sorted(suite.required - set(suite.tests))]  # fmt: skip
        faults += [f"suite {suite.name} runs {test} twice" for test in _twice(suite.tests)]
    return tuple(faults)


def lint_gates(gates: Sequence[HealthGate]) -> tuple[str, ...]:
    """Return what is wrong with the gates, one sentence each; empty: nothing.

    Refused are gates that cannot fail or cannot pass, that judge nothing, units that differ within one measurement,
    and duplicates. A floor needs `typical` or `physical`: without either nobody can tell whether it is in range.
    """
    faults: list[str] = []
    units: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for gate in gates:
        faults += [f"{_name(gate)}: {fault}" for fault in _faults_of(gate)]
        units[gate.test, gate.measurement].add(gate.unit)
    for (test, measurement), told in sorted(units.items()):
        if len(told) > 1:
            faults.append(f"{test} {measurement}: it is given in {' and '.join(sorted(told))}; expected one unit")
    faults += [f"{name}: it is there twice" for name in _twice(_name(gate) for gate in gates)]
    return tuple(faults)


def _faults_of(gate: HealthGate) -> list[str]:
    numbers = {
        "low": gate.low,
        "high": gate.high,
        "typical": gate.typical,
        "physical": gate.physical,
        "baseline_ratio": gate.baseline_ratio,
    }
    odd = [name for name, number in numbers.items() if number is not None and not math.isfinite(number)]
    if odd:
        return [f"{name} is no finite number" for name in odd]
    if gate.low is None and gate.high is None and gate.baseline_ratio is None:
        return ["it judges nothing: give a floor, a ceiling or baseline_ratio"]
    faults = []
    if gate.gpu_count is not None and gate.gpu_count < 1:
        faults.append(f"gpu_count is {gate.gpu_count}; expected 1 or more, or nothing")
    if gate.typical is not None and gate.physical is not None and gate.typical > gate.physical:
        faults.append(f"typical {gate.typical:g} is above physical {gate.physical:g}: are both in {gate.unit}?")
    if gate.low is not None:
        faults += _faults_of_floor(gate, gate.low)
    if gate.high is not None:
        faults += _faults_of_ceiling(gate, gate.high)
    if gate.baseline_ratio is not None:
        faults += _faults_of_ratio(gate, gate.baseline_ratio)
    measured = _MEASURED.get(gate.test, frozenset())
    if not faults and gate.measurement not in measured:
        words = ", ".join(sorted(measured)) or "nothing"
        faults.append(f"it judges nothing: {gate.test} measures no {gate.measurement[:80]!r}, but {words}")
    return faults


def _faults_of_floor(gate: HealthGate, low: float) -> list[str]:
    usual = gate.typical if gate.typical is not None else gate.physical
    if usual is None or usual <= 0.0:
        return [f"its floor {low:g} cannot be judged: give what is typical or what is physical, above 0"]
    if low < CANNOT_FAIL_BELOW_RATIO * usual:
        return [f"it cannot fail: its floor {low:g} {gate.unit} is {low / usual:.2%} of {usual:g}{_slip(low, usual)}"]
    if gate.physical is not None and low > gate.physical:
        return [f"it cannot pass: its floor {low:g} is above the physical {gate.physical:g} {gate.unit}"]
    if gate.typical is not None and low > CANNOT_PASS_ABOVE_RATIO * gate.typical:
        return [
            f"it cannot pass: its floor {low:g} is above the typical {gate.typical:g} {gate.unit} by more than "
            f"{CANNOT_PASS_ABOVE_RATIO - 1:.0%}{_slip(low, gate.typical)}"
        ]
    if gate.high is not None and low > gate.high:
        return [f"it cannot pass: its floor {low:g} is above its ceiling {gate.high:g}"]
    return []


def _faults_of_ceiling(gate: HealthGate, high: float) -> list[str]:
    if gate.physical is not None and high >= gate.physical:
        return [f"it cannot fail: nothing passes its ceiling {high:g}, as {gate.physical:g} {gate.unit} is physical"]
    if gate.typical is None:
        return [f"its ceiling {high:g} cannot be judged: give what is typical"]
    if high < gate.typical:
        return [f"it cannot pass: what is typical, {gate.typical:g} {gate.unit}, is above its ceiling {high:g}"]
    if 0.0 < gate.typical < CANNOT_FAIL_BELOW_RATIO * high:
        return [f"it cannot fail: its ceiling {high:g} is {high / gate.typical:.0f} times the typical {gate.typical:g}"]
    return []


def _faults_of_ratio(gate: HealthGate, ratio: float) -> list[str]:
    if gate.low is None and gate.high is not None:
        return ["baseline_ratio is a share to be reached; a ceiling has none"]
    if ratio < MIN_BASELINE_RATIO:
        return [f"it cannot fail: baseline_ratio {ratio:g} is below {MIN_BASELINE_RATIO:g}"]
    if ratio > MAX_BASELINE_RATIO:
        return [f"it cannot pass: baseline_ratio {ratio:g} is above {MAX_BASELINE_RATIO:g}"]
    return []


def _slip(found: float, usual: float) -> str:
    """Return a hint if the number would be in range in another unit."""
    for factor in _UNIT_SLIPS:
        for scaled, words in ((found * factor, "times"), (found / factor, "divided by")):
            if 0.5 * usual <= scaled <= CANNOT_PASS_ABOVE_RATIO * usual:
                return f"; {words} {factor:g} it would be {scaled / usual:.0%} of it: is it in another unit?"
    return ""


def _name(gate: HealthGate) -> str:
    of = f" of {gate.gpu_model}" if gate.gpu_model else ""
    count = f" on {gate.gpu_count} GPUs" if gate.gpu_count is not None else ""
    return f"{gate.test} {gate.measurement}{of}{count}"


def _twice(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)
