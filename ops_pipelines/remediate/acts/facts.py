"""The right to act, and the fresh state that acts are judged on.

The code server holds it and gives its token to the runs it starts; a job launched where no code server runs takes the
lease for itself. Each other holder begins a new epoch, and the token is of one epoch: a process that was suspended
after its before-entry finds its token outdated and sends nothing. The gap that remains is between that look and the
start of the command itself.

What follows from it for an act is `judgement`'s; what bears witness of an act that was begun is `commands`'.
"""

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import LedgerConflict, LedgerState
from ops_pipelines.core.identity import ActionKey, NodeName, digest_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import PowerState
from ops_pipelines.core.sources import SourceError
from ops_pipelines.lake.telemetry import is_any_fresh
from ops_pipelines.observe.job_facts import merge_jobs, read_job_facts
from ops_pipelines.remediate.guardrails.facts import ClusterFacts, nodes_in_trouble, stricken_nodes
from ops_pipelines.remediate.guardrails.judge import NEEDS_EYES
from ops_pipelines.remediate.job_fate import nodes_in_doubt

# -- the right to act --


TTL = timedelta(seconds=15)
"""Three missed sensor turns of 5 s; every command's own limit is below a third of it."""


class Lease:
    """A token to act with. `given` is the token of a run request; without one the current lease is used, or taken."""

    def __init__(self, *, holder: str, given: str | None) -> None:
        self._holder = holder
        self._given = given

    def token(self, ledger: Ledger, now: datetime) -> str | None:
        """Return the token to show; an outdated one is shown as it is, and refused."""
        if self._given is not None:
            return self._given
        return ledger.current_lease(now) or ledger.take_lease(holder=self._holder, ttl=TTL, now=now)

    def renew(self, ledger: Ledger, now: datetime) -> None:
        """Extend the lease if this process holds it: many acts take longer than it lasts. Another's is left alone."""
        held = ledger.held_lease(now)
        if held is not None and held.holder == self._holder:
            ledger.take_lease(holder=self._holder, ttl=TTL, now=now)

    def require(self, ledger: Ledger, now: datetime) -> None:
        """Raise LedgerConflict where the right to act is gone: to be asked right before what is sent beside acts."""
        token = self.token(ledger, now)
        if token is None or not is_current(token, ledger, now):
            raise LedgerConflict(
                "the right to act ran out or went to another process; nothing was sent, and whoever has it goes on"
            )


def is_current(token: str | None, ledger: Ledger, now: datetime) -> bool:
    """Return whether a token still gives the right to send; None is a person's word, which needs no lease."""
    return token is None or token == ledger.current_lease(now)


# -- reads the fresh state that acts are judged on --


CHEAP = frozenset({Verb.DRAIN})
"""Facts for a drain do not ask for the metrics: enough for whoever needs the jobs only."""
_SWITCHES_AT_ONCE = 4
"""Ten at once starved each other on a busy host: each is a program of the site's, and none answered in its time."""
_SWITCHES_FOR = timedelta(seconds=4)
"""How long switches are asked: the tick that asks must not be late for the next fault."""


_PASSED_ON_FOR = timedelta(seconds=2)
"""What was read to put a plan in force also serves its first act, if keeping the evidence did not take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshFacts:
    """Facts that were read for acts of some verbs, handed on from who judged first to who judges next."""

    facts: ClusterFacts
    verbs: frozenset[Verb]

    def still_serve(self, verbs: Collection[Verb], *, now: datetime) -> bool:
        """Return whether acts of these verbs may be judged on them: they were read for such, and a moment ago."""
        # A clock that was set back leaves an age that nobody knows.
        return self.verbs.issuperset(verbs) and abs(now - self.facts.taken_at) <= _PASSED_ON_FOR


def read_facts(verbs: Collection[Verb], cluster: Cluster, *, state: LedgerState | None = None) -> ClusterFacts:
    """Return the fresh state that actions of these verbs are judged on; raise SourceError if the scheduler is silent.

    The metrics are asked for only where a verb needs eyes: the answer may be large. `state` is what the caller has just
    read of the ledger.
    """
    # The ledger first: a drain that is done by then shows in the nodes. For one that is done later see `ActJudge`.
    state = cluster.ledger.read_state(cluster.clock.now()) if state is None else state
    # Nothing of the cluster is judged of a page: it goes out although the scheduler is silent.
    needs_scheduler = not {Verb.PAGE_HUMAN}.issuperset(verbs)
    asked_at = cluster.clock.now()  # What was true when it was asked for may be over when the answer is here.
    nodes = cluster.scheduler.read_nodes() if needs_scheduler else ()
    jobs = cluster.scheduler.read_jobs() if needs_scheduler else ()
    learned = read_job_facts(cluster.job_facts)
    now = cluster.clock.now()
    facts = ClusterFacts(
        nodes={node.node: node for node in nodes},
        jobs={job.job: job for job in merge_jobs(jobs, learned, now=now)},
        records=state.records,
        is_telemetry_available=NEEDS_EYES.isdisjoint(verbs) or _can_see(cluster),
        is_paused=state.pause is not None,
        taken_at=asked_at,
        costs=learned.costs,
        hazards=cluster.rules.catalogue.hazards,
        stricken=stricken_nodes(state.incidents, state.records, cluster.rules.catalogue.hazards),
        owned=state.owned,
        in_trouble=nodes_in_trouble(state.incidents),
        in_begun_waves=nodes_in_begun_waves(state),
    )
    in_doubt = nodes_in_doubt(facts) if Verb.UNMARK in verbs else frozenset()
    return replace(facts, without_power=_without_power(in_doubt, cluster)) if in_doubt else facts


def _without_power(nodes: Collection[NodeName], cluster: Cluster) -> frozenset[NodeName]:
    """Return which of some nodes have no power, as far as switches answer; of many, others are the first to be asked.

    Those for whom there was no time are asked by a later look.
    """
    began_at = cluster.clock.now()

    def is_off(node: NodeName) -> bool:
        if cluster.clock.now() - began_at >= _SWITCHES_FOR:
            return False
        try:
            return cluster.fleet.power_state(node) is PowerState.OFF
        except SourceError:
            return False

    # Another order in each look: by turns of the clock the looks' own rhythm could leave the same ones out for ever.
    asked = sorted(nodes, key=lambda node: digest_of(node, began_at.isoformat()))
    with ThreadPoolExecutor(_SWITCHES_AT_ONCE) as pool:
        return frozenset(name for name, off in zip(asked, pool.map(is_off, asked), strict=True) if off)


def nodes_in_begun_waves(state: LedgerState) -> frozenset[NodeName]:
    """Return the nodes of every wave that an open rollout has begun."""
    return frozenset(
        name
        for rollout in state.rollouts
        for wave in rollout.waves
        if wave.number <= rollout.wave
        for name in wave.nodes
    )


def _can_see(cluster: Cluster) -> bool:
    now = cluster.clock.now()
    try:
        samples = cluster.telemetry.read_samples(now)
    except SourceError:
        return False
    return is_any_fresh(samples, at=now, stale_after=cluster.rules.policy.durations.telemetry_stale_after)


def over_by(facts: ClusterFacts) -> frozenset[ActionKey]:
    """Return the drains that were over when these facts were read."""
    return frozenset(
        record.action.key for record in facts.records if record.action.verb is Verb.DRAIN and record.outcome is not None
    )
