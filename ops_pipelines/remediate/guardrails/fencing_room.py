"""What the scheduler does by itself when a node falls silent, and what the site offers: is there room to act.

At its silence limit the scheduler starts the jobs of a silent node elsewhere, while their old processes may still
write. Only a hold that comes well before prevents the second copy. Reading the limits belongs to adapters.

Which commands a site names is read by adapters (`resources.config.cluster_config`). Whether each one works shows when
it is asked; here counts only that it is there at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from ops_pipelines.core.machines import SiteMeans
from ops_pipelines.core.policy import ActionClass, Consent, LadderLimits, Mode, Policy, Risk
from ops_pipelines.core.scheduler import SchedulerLimits

# -- what the scheduler does by itself when a node falls silent --


SENSOR_TICK = timedelta(seconds=5)
"""Dagster's sensor loop: on an idle host, what happened just after one look waits this long for the next."""
RUN_START = timedelta(seconds=10)
"""How long after its request a run acts on an idle host: 3 to 8 s were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast we are: on an idle host, as check-config reckons, or as it was measured while running."""

    look: timedelta = SENSOR_TICK
    """How late conditions are read."""
    run_start: timedelta = RUN_START
    lease: timedelta = timedelta(0)
    """For how long nobody held the right to act: what was under way was refused meanwhile."""
    notice: timedelta = timedelta(0)
    """How long after a node's last answer its silence was first seen, where that was measured; 0: it was not."""

    @property
    def is_quick(self) -> bool:
        """Return whether nothing takes longer than on an idle host."""
        within = self.look <= SENSOR_TICK and self.run_start <= RUN_START
        return within and not self.lease and not self.notice


BUSY = Pace(look=timedelta(seconds=35), run_start=timedelta(seconds=45))
"""What check-config reckons with, for who is to hold jobs in time must do so on a bad day. Measured on a host whose
cores were all busy (Slurm 22.05, SlurmdTimeout 180 s): silences were seen 120 s after a death, which leaves 35 s beside
a ping of 60 s, MessageTimeout 10 s and look_every 15 s; a run acted 36 s after its request; here a quarter more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """What speaks against acting on this scheduler. A refusal stands in the way of the mode; others are to be known."""

    reason: str
    is_refusal: bool


def find_objections(limits: SchedulerLimits, policy: Policy) -> tuple[Objection, ...]:
    """Return what speaks against acting by ourselves under these limits. Only `mode: auto` is refused."""
    is_auto = policy.mode is Mode.AUTO
    verdict = "mode: auto is refused" if is_auto else "mode: auto would be refused"
    lacks, cautions = _lacks(limits, policy, BUSY), _cautions(limits)
    if not limits.unguarded:
        # No second copy starts. What is lost is time: the job waits held until its node is seen to be clear.
        cautions = [*(f"the start guard will have to hold jobs: {reason}" for reason in lacks), *cautions]
        lacks = []
    else:
        why = (
            f"restarts are not guarded: {limits.unguarded}. Run `ops-pipelines guard install` where slurmctld runs, "
            f"or take the risk by name in policy.yaml: accepted_risks: {{{Risk.NO_START_GUARD.value}: who, and why}}"
        )
        taken = policy.accepted_risks.get(Risk.NO_START_GUARD)
        if taken is None:
            lacks.insert(0, why)
        else:
            cautions.insert(0, f"restarts are not guarded ({limits.unguarded}); the risk is taken: {taken}")
    refusals = [Objection(reason=f"{verdict}: {reason}", is_refusal=is_auto) for reason in lacks]
    return (*refusals, *(Objection(reason=reason, is_refusal=False) for reason in cautions))


def find_lateness(limits: SchedulerLimits, policy: Policy, measured: Pace) -> str | None:
    """Return why a measured pace is too slow where that of an idle host is not; None where it is not too slow."""
    if _lacks(limits, policy, Pace()):
        return None  # No pace would do: check-config has said so, and nothing new is learnt.
    pace = replace(measured, look=max(SENSOR_TICK, measured.look), run_start=max(RUN_START, measured.run_start))
    lacks = _lacks(limits, policy, pace)
    if not lacks:
        return None
    slow = []
    if measured.look > SENSOR_TICK:
        slow.append(
            f"nodes were looked at {_seconds(measured.look)} late ({_seconds(SENSOR_TICK)} on an idle host): the "
            "daemon or the code server gets too little CPU, or the scheduler answers slowly"
        )
    if measured.run_start > RUN_START:
        slow.append(
            f"a run that acts came to act {_seconds(measured.run_start)} after its request "
            f"({_seconds(RUN_START)} on an idle host): the host is busy, or too many runs start at once"
        )
    if measured.lease:
        slow.append(
            f"nobody held the right to act for {_seconds(measured.lease)}, because its lease was not renewed in time: "
            "the code server gets too little CPU, stood still or was restarted, or the database answers slowly"
        )
    if measured.notice > _noticed_after(limits, policy):
        slow.append(
            f"a silence was first seen {_seconds(measured.notice)} after the node's last answer, by when the scheduler "
            "gave it up: the scheduler is slow to tell, or we were to look"
        )
    return f"{'; '.join(slow)}. {lacks[0]}"


def _lacks(limits: SchedulerLimits, policy: Policy, pace: Pace) -> list[str]:
    if limits.silence_limit is None or limits.ping_interval is None:
        return []
    silence, ping = limits.silence_limit, limits.ping_interval
    look, first_try = policy.durations.look_every, _first_try(policy)
    seen_after = max(ping + limits.answer_limit + pace.look, pace.notice - look)
    danger = (
        f"at SlurmdTimeout ({_seconds(silence)}) the scheduler itself gives a silent node up and starts its jobs "
        "elsewhere, while the old processes may still write"
    )
    noticing = (
        f"a ping every {_seconds(ping)}, MessageTimeout {_seconds(limits.answer_limit)} and a look that is up to "
        f"{_seconds(pace.look)} late"
    )
    lacks = []
    if seen_after >= silence / 2:
        lacks.append(
            f"{danger}. The silence is noticed only after up to {_seconds(seen_after)} ({noticing}), which must be "
            f"below half of SlurmdTimeout, {_seconds(silence / 2)}. {_raise(limits, seen_after - ping, share=0.5)}"
        )
    start = pace.run_start + pace.lease
    held_after = seen_after + look + first_try + start
    if held_after >= silence:
        room = silence - seen_after - look - start
        lower = "" if room <= timedelta(0) else f", or set the duration below {_seconds(room)}"
        lacks.append(
            f"{danger}. Its jobs are held only after up to {_seconds(held_after)} ({noticing}, "
            f"durations.look_every_seconds, {_seconds(look)}, the first try after "
            f"durations.confirm_unreachable_after_seconds, {_seconds(first_try)}, and "
            f"{_seconds(start)} for a run to start), which must be below SlurmdTimeout. "
            f"{_raise(limits, held_after - ping, share=1.0)}{lower}"
        )
    return lacks


def _noticed_after(limits: SchedulerLimits, policy: Policy) -> timedelta:
    """Return after which time a silence is first seen on an idle host."""
    return (limits.ping_interval or timedelta(0)) + limits.answer_limit + SENSOR_TICK + policy.durations.look_every


def _first_try(policy: Policy) -> timedelta:
    """Return when a silence that must last is first acted on: it is looked at again after once, twice, four times
    `retry_after`."""
    confirm, tried_after = policy.durations.confirm_unreachable_after, policy.durations.retry_after
    while tried_after < confirm:
        tried_after *= 2
    return tried_after if confirm > timedelta(0) else timedelta(0)


def _cautions(limits: SchedulerLimits) -> list[str]:
    cautions = []
    if limits.ping_interval is None:
        cautions.append(
            "the scheduler does not ask its nodes whether they live (SlurmdTimeout=0): a node that falls silent is "
            "not seen through it, so neither reported nor fenced. Set SlurmdTimeout, such as to 300 s"
        )
    if limits.is_every_down_node_returned:
        cautions.append(
            "every node that is down goes back into service when it registers (ReturnToService=2), also one that a "
            "person set down; only a drain holds it. Set ReturnToService to 0 or 1"
        )
    if not limits.is_requeue_the_default:
        cautions.append(
            "jobs must not be requeued unless their users ask for it (JobRequeue=0): such jobs are not moved, and "
            "the repair of their node waits for their end. Set JobRequeue to 1, or tell users of `sbatch --requeue`"
        )
    return cautions


def _raise(limits: SchedulerLimits, spent: timedelta, *, share: float) -> str:
    """Return the remedy: the limit at which `spent` and a ping fit into `share` of it; pings grow with the limit."""
    assert limits.silence_limit is not None
    assert limits.ping_interval is not None
    left = share - limits.ping_interval / limits.silence_limit
    if left <= 0:
        return "Let the scheduler ask its nodes more often"
    return f"Raise SlurmdTimeout above {_seconds(spent / left)}"


def _seconds(duration: timedelta) -> str:
    return f"{round(duration.total_seconds(), 1):g} s"


# -- what a policy's plans need of the machines and the site does not offer --


_VITAL: Mapping[SiteMeans, tuple[ActionClass, Risk, str]] = {
    SiteMeans.INSPECT: (
        ActionClass.RETURN_NODE,
        Risk.NO_INSPECTION,
        "no repaired node can be looked at, so none is proven well: repairs are not begun, and no node is returned",
    ),
    SiteMeans.CHECK: (
        ActionClass.CHECK,
        Risk.NO_NODE_TESTS,
        "no repaired node can be tested, so none is proven well: repairs are not begun",
    ),
    SiteMeans.POWER: (
        ActionClass.POWER,
        Risk.NO_POWER_SWITCH,
        "a silent node cannot be fenced, so its jobs are not moved, and it is left to you",
    ),
}
"""Without which a node never comes back: the class whose `forbid` says that this is meant, the risk by name, what
follows."""
_REPAIRS: Mapping[SiteMeans, tuple[ActionClass, str]] = {
    SiteMeans.RESET_GPU: (ActionClass.RESET_GPU, "the node is rebooted instead"),
    SiteMeans.REBOOT: (ActionClass.REBOOT, "the node goes to the repair queue instead"),
    SiteMeans.POWER: (ActionClass.POWER, "the node goes to the repair queue instead"),
    SiteMeans.REIMAGE: (ActionClass.REIMAGE, "the node goes to the repair queue instead"),
}
"""What is tried on the ladder, in its order: its class, and what comes in its place."""
_PROOFS = (SiteMeans.INSPECT, SiteMeans.CHECK)


def find_gaps(offered: frozenset[SiteMeans], policy: Policy) -> tuple[Objection, ...]:
    """Return what plans would need and the site does not offer. Only `mode: auto` is refused, and only for what keeps
    nodes from ever coming back."""
    is_auto = policy.mode is Mode.AUTO
    verdict = "mode: auto is refused" if is_auto else "mode: auto would be refused"
    found = []
    for means, (kind, risk, what_follows) in _VITAL.items():
        if means in offered or _is_forbidden(kind, policy):
            continue
        missing = f"{_names_no(means)}: {what_follows}"
        taken = policy.accepted_risks.get(risk)
        if taken is not None:
            found.append(Objection(reason=f"{missing}; the risk is taken: {taken}", is_refusal=False))
            continue
        ways = (
            f"Name it, or say in policy.yaml that this is meant: consents: {{{kind.value}: forbid}}, or "
            f"accepted_risks: {{{risk.value}: who, and why}}"
        )
        found.append(Objection(reason=f"{verdict}: {missing}. {ways}", is_refusal=is_auto))
    for means, (kind, instead) in _REPAIRS.items():
        is_planned = kind in policy.lacking or _without(means, policy.ladder) != policy.ladder
        if means not in offered and means not in _VITAL and is_planned and not _is_forbidden(kind, policy):
            what = means.name.lower().replace("_", " ")
            found.append(
                Objection(reason=f"{_names_no(means)}: where a {what} is called for, {instead}", is_refusal=False)
            )
    return tuple(found)


def within_means(policy: Policy, offered: frozenset[SiteMeans]) -> Policy:
    """Return the policy with everything left out that cannot be done here, or whose proof cannot be had.

    A repair that could never be proven is not begun: the node is drained, its jobs are moved, and a person is told.
    Fencing a silent node goes on where there is a power switch: that is for its jobs.
    """
    unproven = next(_unproven(offered, policy), None)
    lacking: dict[ActionClass, str] = {}
    ladder = policy.ladder
    for means, (kind, _) in _REPAIRS.items():
        if means in offered and unproven is None:
            continue
        if means in (SiteMeans.RESET_GPU, SiteMeans.REIMAGE) and _without(means, ladder) == ladder:
            continue  # Never planned; a reboot also stands in for a reset, and the power switch fences.
        ladder = _without(means, ladder)
        if means not in offered or kind is not ActionClass.POWER:
            lacking[kind] = _names_no(means) if means not in offered else unproven or ""
    return replace(policy, ladder=ladder, lacking=lacking)


def _without(means: SiteMeans, ladder: LadderLimits) -> LadderLimits:
    """Return the ladder without the rung that needs this means."""
    match means:
        case SiteMeans.RESET_GPU:
            return replace(ladder, max_gpu_resets_count=0)
        case SiteMeans.REBOOT:
            return replace(ladder, max_reboots_count=0)
        case SiteMeans.POWER:
            return replace(ladder, max_power_cycles_count=0)
        case SiteMeans.REIMAGE:
            return replace(ladder, max_reimages_count=0)
    return ladder


def _unproven(offered: frozenset[SiteMeans], policy: Policy) -> Iterator[str]:
    for means in _PROOFS:
        kind, risk, _ = _VITAL[means]
        if means not in offered and not _is_forbidden(kind, policy) and risk not in policy.accepted_risks:
            yield f"{_names_no(means)}, so that no repair could be proven"


def _names_no(means: SiteMeans) -> str:
    return f"cluster.yaml names no {means.value} under fleet"


def _is_forbidden(kind: ActionClass, policy: Policy) -> bool:
    return policy.consents.get(kind) is Consent.FORBID
