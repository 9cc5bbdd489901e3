"""What the gate sees of a rollout, and what it says: gathered once a pass, judged as often as it is asked.

Reading is `gate_sources`', what it means is `domain.lifecycle.gate.judge_wave`'s. A source that does not answer makes
nothing good: the wave waits, and the verdict says for what.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.identity import Topology
from ops_pipelines.core.periods import Stretch
from ops_pipelines.core.rollout import FINAL, NodeStage, Rollout, RolloutNode, RolloutState
from ops_pipelines.domain.lifecycle.course import is_wave_updated, present_wave
from ops_pipelines.domain.lifecycle.gate.evidence import GateEvidence, TestLine, UpdateTry, Verdict, VerdictKind
from ops_pipelines.domain.lifecycle.gate.judge_wave import Looking, judge_wave
from ops_pipelines.domain.lifecycle.gate.seen_events import Worked, worked_within
from ops_pipelines.flow.lifecycle.gate_sources import Seen, read_seen
from ops_pipelines.flow.lifecycle.rollout_pass import Judge

_AT_WORK = frozenset({NodeStage.SOAKING, NodeStage.UPDATED})
_NOT_JUDGED = FINAL | {RolloutState.GOING_BACK, RolloutState.STUCK}
"""What goes back has its verdict."""


def judge_of(rollout: Rollout, cluster: Cluster) -> Judge:
    """Return who judges a rollout in one pass: what the world shows is read when it is first asked.

    Raises LedgerError when asked; of other sources the verdict says what they did not tell.
    """
    seen: list[Seen] = []

    def judge(present: Rollout, nodes: Sequence[RolloutNode]) -> Verdict | None:
        tries = update_tries(nodes, cluster.rules.topology)
        if not tries or present.state in _NOT_JUDGED:
            return None
        now = cluster.clock.now()
        if not seen:
            seen.append(read_seen(rollout, nodes, cluster, now=now))
        return _judged(present, gate_evidence(present, nodes, tries, seen[0], now=now), seen[0], nodes, cluster)

    return judge


def update_tries(nodes: Collection[RolloutNode], topology: Topology) -> tuple[UpdateTry, ...]:
    """Return the updates that came to an end, well or not, in the order of their names."""
    return tuple(
        UpdateTry(
            node=each.node,
            model=topology.places[each.node].model if each.node in topology.places else "",
            is_good=not each.failure,
            signature=each.failure,
        )
        for each in sorted(nodes, key=lambda each: each.node)
        if each.failure or each.stage in _AT_WORK
    )


def gate_evidence(
    rollout: Rollout, nodes: Sequence[RolloutNode], tries: tuple[UpdateTry, ...], seen: Seen, *, now: datetime
) -> GateEvidence:
    """Return everything that the gate judges the present wave on."""
    of_wave = [each for each in nodes if each.wave == rollout.wave]
    return GateEvidence(
        at=now,
        tries=tries,
        counts=seen.counts,
        levels=seen.levels,
        shifts=seen.shifts,
        causes=seen.causes,
        soaks={each.node: _soaked(each, seen.worked, now=now) for each in of_wave if each.stage in _AT_WORK},
        soak_began_at=_soak_began_at(of_wave) if is_wave_updated(rollout, nodes) else None,
    )


def _judged(
    rollout: Rollout, evidence: GateEvidence, seen: Seen, nodes: Sequence[RolloutNode], cluster: Cluster
) -> Verdict:
    wave, limits = present_wave(rollout), cluster.rules.policy.rollouts
    verdict = judge_wave(
        evidence,
        Looking(
            claims=cluster.ledger.release(rollout.release_digest).claims,
            limits=limits,
            is_deciding=wave.is_deciding,
            is_updated=is_wave_updated(rollout, nodes),
            is_canary=wave.is_canary,
            resumed_at=rollout.resumed_at,
        ),
    )
    began = max((at for at in (evidence.soak_began_at, rollout.resumed_at) if at is not None), default=evidence.at)
    return _with_sources(verdict, seen, at=evidence.at, decides_by=began + limits.soak_limit)


def _soaked(node: RolloutNode, worked: Worked, *, now: datetime) -> timedelta:
    """Return for how long a node has worked under jobs since its return."""
    if node.returned_at is None or node.returned_at >= now:
        return timedelta(0)
    return worked_within(worked.get(node.node, ()), Stretch(begins_at=node.returned_at, ends_at=now))


def _soak_began_at(of_wave: Collection[RolloutNode]) -> datetime | None:
    """Return when the last node of a wave went back to work; of a wave in which none did, when the last gave up.

    What a node that failed alone does on its way back holds up no soak.
    """
    begun = [each for each in of_wave if each.stage is not NodeStage.SKIPPED]
    returned = [each.returned_at for each in begun if each.returned_at is not None and not each.failure]
    return max(returned, default=None) or max((each.since for each in begun), default=None)


def _with_sources(verdict: Verdict, seen: Seen, *, at: datetime, decides_by: datetime) -> Verdict:
    """Return the verdict with what could not be looked at: while a source is silent nothing is good, nor bad for it."""
    lines = tuple(
        TestLine(name="sources", state=VerdictKind.UNDECIDED, said=each, evidence_ratio=0.0)
        for each in (*seen.silent, *seen.notes)
    )
    tests = (*verdict.tests, *lines)
    if verdict.kind is not VerdictKind.GOOD or not seen.silent:
        return replace(verdict, tests=tests)
    why = "; ".join(seen.silent)
    if at >= decides_by:
        return Verdict(kind=VerdictKind.ASK, reason=why, tests=tests)
    return Verdict(kind=VerdictKind.UNDECIDED, reason=why, tests=tests, decides_by=decides_by)
