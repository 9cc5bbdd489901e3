"""What the second opinion costs at 2,048 nodes: a usual plan, 128 plans at once, one act, 1,000 drains in a row.

The peer is who is checked: the planner's own decision on the same snapshot, and the guardrails' judgement of the same
acts. Run it with `make bench AREA=proof`, or `python -m bench.proof`; exits 1 where a usual plan takes 50 ms or more,
or where a proof contradicts what was planned.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console
from rich.table import Table

from ops_pipelines.core.action import Action, ActionRecord, Verb
from ops_pipelines.core.identity import IncidentId, digest_of
from ops_pipelines.core.plan import Snapshot
from ops_pipelines.core.policy import DrainBudget, MassEvent
from ops_pipelines.core.proof import Authority
from ops_pipelines.remediate.act_proof import Sight, prove_act
from ops_pipelines.remediate.decide import decide
from ops_pipelines.remediate.guardrails.facts import ClusterFacts
from ops_pipelines.remediate.guardrails.judge import judge
from ops_pipelines.remediate.plan_proof import prove_plans
from tests.domain.builders import NOW, job, node_names, policy, rules, snapshot, xid

NODE_COUNT, JOB_COUNT, REPEATS = 2_048, 1_458, 9
MOST_SECONDS = 0.05
WIDE = DrainBudget(
    max_out_count=9_999, max_out_per_rack_count=9_999, max_new_per_hour_count=9_999, min_in_service_ratio=0.0
)
RULES = rules(replace(policy(drain_budget=WIDE), mass_event=MassEvent(min_node_count=9_999)), node_count=NODE_COUNT)
NAMES = node_names(NODE_COUNT)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement: seconds of ours and of the peer, medians."""

    what: str
    ours: float
    peer: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 where a limit is missed."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    rows = [_plans(1, "a usual plan"), _plans(128, "128 plans at once"), _one_act(), _drains(1_000)]
    table = Table(title=f"the second opinion at {NODE_COUNT:,} nodes and {JOB_COUNT:,} jobs, milliseconds")
    for heading in ("", "second opinion", "planner or guardrails", "ratio"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        table.add_row(row.what, f"{row.ours * 1e3:.1f}", f"{row.peer * 1e3:.1f}", f"{row.ours / row.peer:.2f}")
    console = Console(highlight=False)
    console.print(table)
    if rows[0].ours >= MOST_SECONDS:
        console.print(f"a usual plan took {rows[0].ours * 1e3:.0f} ms; the limit is {MOST_SECONDS * 1e3:.0f} ms")
        return 1
    return 0


def _state(fault_count: int) -> Snapshot:
    jobs = [job(str(number), nodes=(NAMES[number],)) for number in range(JOB_COUNT)]
    lines = [each for name in NAMES[:fault_count] for each in xid(79, node=name).evidence]
    return snapshot(*lines, jobs=jobs, node_count=NODE_COUNT)


def _plans(count: int, what: str) -> Row:
    state = _state(count)
    plans = decide(state, RULES).plans
    contents = [digest_of(each.plan) for each in plans]

    def prove() -> None:
        proofs = prove_plans(plans, state, RULES, inputs=digest_of("inputs"), contents=contents)
        if len(plans) != count or any(each.contradictions for each in proofs):
            raise SystemExit(f"bench: {len(plans)} plans of {count}, or one is contradicted; nothing here counts")

    return Row(what=what, ours=_seconds(prove), peer=_seconds(lambda: decide(state, RULES)))


def _facts(state: Snapshot) -> ClusterFacts:
    return ClusterFacts(
        nodes={each.node: each for each in state.nodes},
        jobs={each.job: each for each in state.jobs},
        records=(),
        is_telemetry_available=True,
        is_paused=False,
        taken_at=NOW,
    )


def _sight(state: Snapshot) -> Sight:
    return Sight(node_list=state.nodes, job_list=state.jobs, taken_at=NOW, rules=RULES, rules_digest=state.rules_digest)


def _one_act() -> Row:
    state, facts = _state(0), _facts(_state(0))
    return Row(
        what="one drain, on a fresh look",
        ours=_seconds(lambda: _prove([_drain(0)], _sight(state))),
        peer=_seconds(lambda: _judge([_drain(0)], facts)),
    )


def _drains(count: int) -> Row:
    state, facts = _state(0), _facts(_state(0))
    acts = [_drain(number) for number in range(count)]
    return Row(
        what=f"{count:,} drains on one look",
        ours=_seconds(lambda: _prove(acts, _sight(state)), repeats=3),
        peer=_seconds(lambda: _judge(acts, facts), repeats=3),
    )


def _drain(number: int) -> Action:
    return Action(verb=Verb.DRAIN, incident=IncidentId(f"INC-{number:04d}"), node=NAMES[number], text="why")


def _prove(acts: Sequence[Action], sight: Sight) -> None:
    begun: list[ActionRecord] = []
    for act in acts:
        proof = prove_act(act, sight, records=begun, is_by_hand=False, now=NOW)
        if proof.contradictions:
            raise SystemExit(f"bench: {'; '.join(proof.contradictions)}; nothing here counts")
        begun.append(ActionRecord(action=act, plan=None, begun_at=NOW))


def _judge(acts: Sequence[Action], facts: ClusterFacts) -> None:
    begun: tuple[ActionRecord, ...] = ()
    for act in acts:
        present = replace(facts, records=begun)
        refusal = judge(act, present, policy=RULES.policy, topology=RULES.topology, authority=Authority.AUTOPILOT)
        if refusal is not None:
            raise SystemExit(f"bench: {refusal.reason}; nothing here counts")
        begun = (*begun, ActionRecord(action=act, plan=None, begun_at=NOW))


def _seconds(work: Callable[[], object], *, repeats: int = REPEATS) -> float:
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return median(taken)


if __name__ == "__main__":
    sys.exit(main())
