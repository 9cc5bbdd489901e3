"""Whether we are as fast as the hold of a silent node's jobs needs: reckoned, measured while running, and judged.

At its silence limit the scheduler starts the jobs of a silent node elsewhere, while their old processes may still
write. Only a hold that comes well before prevents the second copy. What check-config reckons with is compared with what
is measured; where that is later than the limit allows, `auto` becomes `approve` until we have been on time for a while.
What is kept are two short lines of the ledger that are written over: no history. Informing people is `oversight`'s,
refusing acts `judgement`'s; reading the scheduler's limits belongs to adapters.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import GIVEN_UP, NodeStatus, Signal
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy, Risk
from ops_pipelines.core.scheduler import SchedulerLimits
from ops_pipelines.core.sources import SourceError
from ops_pipelines.remediate.ladder import Objection, find_gaps

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


def find_objections(limits: SchedulerLimits, policy: Policy) -> tuple[Objection, ...]:
    """Return what is against acting by ourselves under these limits. Only `mode: auto` is refused."""
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
        return None  # No pace would do: check-config has stated so, and nothing new is learnt.
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
            "every node that is down returns to service when it registers (ReturnToService=2), also one that a "
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


STEADY = timedelta(minutes=10)
"""# Assumption: who was late once in ten minutes may be late again; on a busy host lateness comes in minutes."""
_VERDICT = "lateness"
_REFUSALS = "start guard asked"
_LOOK_FOR_REFUSALS_EVERY = timedelta(minutes=2)
"""Often enough that what it says has not run out when it is stated again."""
_REMEDY = "Give daemon and code server CPU of their own (systemd: CPUWeight), or end what keeps the host busy."
_PASSING = (
    "this code server is one that Dagster's daemon runs by itself and replaces every few minutes, with all that it has "
    "started. Run one of its own (deploy/systemd/ops-pipelines-code.service), and daemon and webserver with "
    "`-w deploy/workspace.yaml`."
)


class Stage(Enum):
    """What takes time between a node's silence and our first act."""

    LOOK = "look"
    """From when conditions should have been read to when they were."""
    RUN_START = "run_start"
    """From the request of a run that acts to its first act."""
    LEASE = "lease"
    """For how long nobody held the right to act."""
    NOTICE = "notice"
    """From a node's last answer to our first sight of its silence: known once the scheduler gives the node up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """We were too late for the scheduler's limit, not long ago."""

    since: datetime
    last_at: datetime
    why: str


def note_look(cluster: Cluster) -> None:
    """Measure how late conditions were read, this moment; call it after each reading."""
    now = cluster.clock.now()
    before = _read(cluster.ledger, Stage.LOOK)
    if before is not None:
        due_at = before.measured_at + cluster.rules.policy.durations.look_every
        _note(Stage.LOOK, max(timedelta(0), now - due_at), before, cluster)
    else:
        _note(Stage.LOOK, timedelta(0), None, cluster)


def note_run_start(cluster: Cluster, *, requested_at: datetime) -> None:
    """Measure how long after its request a run that acts came to act."""
    took = max(timedelta(0), cluster.clock.now() - requested_at)
    _note(Stage.RUN_START, took, _read(cluster.ledger, Stage.RUN_START), cluster)


def note_lease(cluster: Cluster) -> None:
    """Measure for how long nobody has held the right to act; call it in each tick, before the lease is renewed.

    A lease that ran out longer ago shows nothing: then nobody has looked for as long, which is measured.
    """
    now = cluster.clock.now()
    last = cluster.ledger.held_lease(now - STEADY)
    if last is not None and last.expires_at < now:
        _note(Stage.LEASE, now - last.expires_at, _read(cluster.ledger, Stage.LEASE), cluster)


def note_silences(cluster: Cluster, nodes: Collection[NodeStatus]) -> None:
    """Measure how late silences were seen that the scheduler has just put an end to; call it after each reading.

    It gives a node up so long after its last answer as its limit says. Where we drained the node first, the time of
    that is in the place of the other, and nothing is measured.
    """
    now, policy = cluster.clock.now(), cluster.rules.policy
    just_now = 2 * policy.durations.look_every
    given_up = {
        each.node: each.reason_set_at
        for each in nodes
        if each.reason == GIVEN_UP and not each.is_drained and not each.is_responding
        if each.reason_set_at is not None and abs(now - each.reason_set_at) <= just_now
    }
    seen = {
        each.node: each.observed_at
        for each in (cluster.ledger.conditions() if given_up else ())
        if each.signal is Signal.NODE_UNREACHABLE and each.node in given_up
    }
    if not seen:
        return
    try:
        limit = cluster.scheduler.read_limits().silence_limit
    except SourceError:
        return
    if limit is not None:
        took = max(limit - (given_up[node] - first_seen_at) for node, first_seen_at in seen.items())
        _note(Stage.NOTICE, max(timedelta(0), took), _read(cluster.ledger, Stage.NOTICE), cluster)


def note_passing_server(cluster: Cluster) -> None:
    """Write down that this code server is one that its caller replaces: whatever it begins is cut off, sooner or later.

    Nobody's jobs are at stake on a simulated cluster.
    """
    if not cluster.is_simulated and cluster.rules.policy.mode is Mode.AUTO:
        _declare(_PASSING, cluster, cluster.clock.now())


def note_refusals(cluster: Cluster) -> None:
    """Look now and then for what check-config refuses `auto` for, and write it down; call it in each tick.

    Before the first act, too: the first tick looks. That is whether the scheduler guards restarts, and whether the site
    offers what a node needs to come back. A scheduler that does not answer is reported apart.
    """
    now, policy = cluster.clock.now(), cluster.rules.policy
    if policy.mode is not Mode.AUTO:
        return
    asked = cluster.ledger.cursor(_REFUSALS)
    if asked and abs(now - datetime.fromisoformat(asked)) < _LOOK_FOR_REFUSALS_EVERY:
        return
    refusals = [each.reason for each in find_gaps(cluster.means, policy) if each.is_refusal]
    if Risk.NO_START_GUARD not in policy.accepted_risks:
        try:
            limits = cluster.scheduler.read_limits()
        except SourceError:
            return
        if limits.unguarded:
            remedy = "Run `ops-pipelines guard install` where slurmctld runs (docs/START_GUARD.md)."
            refusals.append(f"restarts are not guarded: {limits.unguarded}. {remedy}")
    if refusals:
        _declare(" ".join(refusals), cluster, now)
    _keep(_REFUSALS, now.isoformat(), cluster)


def read_lateness(ledger: Ledger, now: datetime) -> Lateness | None:
    """Return how we are too late; None once we have been on time for `STEADY`, and where we never were late."""
    kept = ledger.cursor(_VERDICT)
    if not kept:
        return None
    told = json.loads(kept)
    last_at = datetime.fromisoformat(told["last_at"])
    if abs(now - last_at) >= STEADY:
        return None
    return Lateness(since=datetime.fromisoformat(told["since"]), last_at=last_at, why=told["why"])


def in_force(policy: Policy, lateness: Lateness | None) -> Policy:
    """Return the policy by which acts are judged: while we are late, `auto` is `approve`.

    Keeping new work off a node stays as it is: a drain that comes late is as right as one that comes early, and it
    takes nothing from anybody. What was started is finished without a new approval in every mode.
    """
    if lateness is None or policy.mode is not Mode.AUTO:
        return policy
    stricter: Mapping[ActionClass, Consent] = {
        kind: Consent.APPROVE
        for kind in ActionClass
        if kind is not ActionClass.ISOLATE and policy.consent_to(kind) is Consent.AUTO
    }
    isolation = {ActionClass.ISOLATE: policy.consent_to(ActionClass.ISOLATE)}
    return replace(policy, mode=Mode.APPROVE, consents={**policy.consents, **stricter, **isolation})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    """One stage: the longest that it took within `STEADY`, and when it was measured last."""

    longest: timedelta
    longest_at: datetime
    measured_at: datetime


def _note(stage: Stage, took: timedelta, before: _Measured | None, cluster: Cluster) -> None:
    now = cluster.clock.now()
    this_time = _this_time(stage, took, cluster, now)
    longest, longest_at = took, now
    if before is not None and before.longest > took and _is_recent(before.longest_at, now):
        longest, longest_at = before.longest, before.longest_at
    kept = {
        "longest_seconds": longest.total_seconds(),
        "longest_at": longest_at.isoformat(),
        "measured_at": now.isoformat(),
    }
    _keep(_name_of(stage), json.dumps(kept), cluster)
    if not this_time.is_quick:
        _judge(this_time, cluster, now)


def _this_time(stage: Stage, took: timedelta, cluster: Cluster, now: datetime) -> Pace:
    """Return what was measured this moment. A run sees also for how long nobody has looked, and still does not."""
    if stage is not Stage.RUN_START:
        return replace(Pace(), **{stage.value: took})
    looked = _read(cluster.ledger, Stage.LOOK)
    unseen = timedelta(0) if looked is None else now - looked.measured_at - cluster.rules.policy.durations.look_every
    return Pace(look=unseen, run_start=took)


def _judge(this_time: Pace, cluster: Cluster, now: datetime) -> None:
    """Write down that we are too late, if we are: only here the scheduler is asked for its limits."""
    try:
        limits = cluster.scheduler.read_limits()
    except SourceError:
        return  # That the scheduler is silent is reported apart.
    longest = Pace(
        look=max(this_time.look, _longest(Stage.LOOK, cluster.ledger, now)),
        run_start=max(this_time.run_start, _longest(Stage.RUN_START, cluster.ledger, now)),
        lease=_longest(Stage.LEASE, cluster.ledger, now),
        notice=_longest(Stage.NOTICE, cluster.ledger, now),
    )
    why = find_lateness(limits, cluster.rules.policy, longest)
    if why is None:
        return
    _declare(f"{why} {_REMEDY}", cluster, now)


def _declare(why: str, cluster: Cluster, now: datetime) -> None:
    before = read_lateness(cluster.ledger, now)
    since = now if before is None else before.since
    verdict = {"since": since.isoformat(), "last_at": now.isoformat(), "why": why}
    _keep(_VERDICT, json.dumps(verdict), cluster)


def _longest(stage: Stage, ledger: Ledger, now: datetime) -> timedelta:
    measured = _read(ledger, stage)
    return measured.longest if measured is not None and _is_recent(measured.longest_at, now) else timedelta(0)


def _is_recent(at: datetime, now: datetime) -> bool:
    return timedelta(0) <= now - at < STEADY


def _read(ledger: Ledger, stage: Stage) -> _Measured | None:
    kept = ledger.cursor(_name_of(stage))
    if not kept:
        return None
    told = json.loads(kept)
    return _Measured(
        longest=timedelta(seconds=told["longest_seconds"]),
        longest_at=datetime.fromisoformat(told["longest_at"]),
        measured_at=datetime.fromisoformat(told["measured_at"]),
    )


def _keep(name: str, line: str, cluster: Cluster) -> None:
    cluster.ledger.take_in(source=name, observations=(), rejected=(), cursor=line, now=cluster.clock.now())


def _name_of(stage: Stage) -> str:
    return f"pace of {stage.value}"
