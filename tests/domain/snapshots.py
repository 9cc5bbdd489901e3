"""Generated snapshots: small clusters in any state, with incidents that earlier decisions really left behind.

A snapshot's open incidents are made by correlating, planning and half carrying out an earlier round, so that no
incident is met that the program could not have made itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import strategies as st

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.finding import REPAIRS
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.observation import (
    HAS_PROCESSES,
    JobState,
    JobStatus,
    NodeState,
    NodeStatus,
    Observation,
    Signal,
)
from ops_pipelines.core.plan import IncidentPlan, Rules, Snapshot
from ops_pipelines.core.policy import DrainBudget, MassEvent, Mode
from ops_pipelines.diagnose.correlate import correlate
from ops_pipelines.remediate.decide import cluster_facts, find_all
from ops_pipelines.remediate.planning import plan_remediation
from tests.domain.builders import (
    CATALOGUE,
    GPU,
    NOW,
    OTHER_GPU,
    after,
    ago,
    foreign_node,
    job,
    node,
    node_names,
    observation,
    policy,
    snapshot,
    topology,
    world,
)

NODE_COUNT = 12
NAMES = node_names(NODE_COUNT)
HOT = NAMES[:3]
"""Where most things happen, so that faults, jobs and repairs meet."""
STRANGER = NodeName("stranger")
_LASTING = (Signal.GPU_MISSING, Signal.NODE_UNREACHABLE, Signal.TELEMETRY_STALE)

rules = st.builds(
    lambda mode, out, in_rack, hourly, ratio, mass, untouchable: Rules(
        policy=policy(
            mode,
            drain_budget=DrainBudget(
                max_out_count=out,
                max_out_per_rack_count=in_rack,
                max_new_per_hour_count=hourly,
                min_in_service_ratio=ratio,
            ),
            mass_event=MassEvent(min_node_count=mass, window=timedelta(seconds=120)),
            untouchable_nodes=frozenset(untouchable),
        ),
        topology=topology(NODE_COUNT),
        catalogue=CATALOGUE,
    ),
    st.sampled_from(Mode),
    st.sampled_from([12, 8, 5, 5, 3, 0]),
    st.sampled_from([4, 4, 4, 2, 1, 0]),
    st.sampled_from([12, 12, 12, 5, 3, 0]),
    st.sampled_from([0.0, 0.0, 0.5, 0.8]),
    st.sampled_from([10, 10, 4, 2]),
    st.sampled_from([(), (), NAMES[:1]]),
)

observations = st.builds(
    lambda signal, name, code, action, gpu, seconds: observation(
        signal,
        node=name,
        code={Signal.XID: code, Signal.RECOVERY_ACTION: action}.get(signal, 1),
        gpu=None if signal in _LASTING else gpu,
        seconds_ago=seconds,
        source="kernel_log" if signal is Signal.XID else "telemetry",
    ),
    st.sampled_from([*[Signal.XID] * 8, *Signal]),
    st.sampled_from([*HOT, *HOT, *NAMES, STRANGER]),
    st.sampled_from([79, 48, 95, 79, 48, 13, 31, 43, 54, 999]),
    st.sampled_from([0, 1, 2, 3, 77]),
    st.sampled_from([GPU, OTHER_GPU]),
    st.sampled_from([0, 1, 59, 60, 119, 120, 900]),
)

nodes = st.builds(
    lambda name, is_foreign, state, is_responding: replace(
        foreign_node(name) if is_foreign else node(name), state=state, is_responding=is_responding
    ),
    st.sampled_from(NAMES),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([NodeState.ALLOCATED, NodeState.IDLE, NodeState.DOWN, NodeState.UNKNOWN]),
    st.sampled_from([True, True, True, False]),
)

jobs = st.builds(
    lambda number, state, on, is_held, is_requeueable, is_dated, is_ending: job(
        str(number),
        nodes=on if state in HAS_PROCESSES or state is JobState.UNKNOWN or is_dated else (),
        state=state,
        is_held=is_held,
        is_requeueable=is_requeueable,
        started_at=ago(3600) if is_dated else None,
        ended_at=NOW if is_ending else None,
    ),
    st.integers(1, 6),
    st.sampled_from([*[JobState.RUNNING] * 10, *JobState]),
    st.sets(st.sampled_from([*HOT, *NAMES]), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([True, True, False]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([False, False, True]),
)


@st.composite
def snapshots(draw: st.DrawFn, given_rules: Rules) -> Snapshot:
    """Return a cluster in any state, some way into its incidents, with new observations."""
    statuses = {each.node: each for each in draw(st.lists(nodes, max_size=3))}
    every_job = {each.job: each for each in draw(st.lists(jobs, min_size=draw(st.sampled_from([3, 0])), max_size=6))}
    earlier = draw(st.lists(observations, min_size=draw(st.sampled_from([3, 0])), max_size=8))
    before = snapshot(
        *earlier,
        nodes=statuses.values(),
        jobs=tuple(every_job.values()),
        node_count=NODE_COUNT,
        conditions=tuple(each for each in earlier if each.signal in _LASTING),
        is_telemetry_available=draw(st.sampled_from([True, True, False])),
        is_paused=draw(st.sampled_from([False, False, False, True])),
    )
    incidents, records = _carry_on(draw, before, given_rules)
    drained = {
        record.action.node: record.action.text
        for record in records
        if record.action.verb is Verb.DRAIN and record.outcome is not None and record.action.node is not None
    }
    shown = tuple(
        replace(each, is_drained=True, reason=drained[each.node], reason_set_at=NOW)
        if each.node in drained and not each.is_drained
        else each
        for each in before.nodes
    )
    held = {
        record.action.attempt.job for record in records if record.action.verb is Verb.HOLD and record.action.attempt
    }
    return replace(
        before,
        taken_at=after(1),
        observations=tuple(draw(st.lists(observations, max_size=8))),
        nodes=shown,
        jobs=tuple(_after_hold(each) if each.job in held else each for each in before.jobs),
        incidents=tuple(each for each in incidents if each.is_open),
        incident_count=len(incidents),
        records=records,
    )


def _carry_on(
    draw: st.DrawFn, before: Snapshot, given_rules: Rules
) -> tuple[tuple[Incident, ...], tuple[ActionRecord, ...]]:
    """Return what an earlier decision left behind: incidents in every state, with the actions that fit it."""
    around = world(jobs=before.jobs, conditions=before.conditions, policy_=given_rules.policy, node_count=NODE_COUNT)
    incidents: list[Incident] = []
    records: list[ActionRecord] = []
    for each in correlate(find_all(before, given_rules), [], around):
        facts = replace(cluster_facts(before, given_rules), records=tuple(records))
        plan = plan_remediation(each, facts, policy=given_rules.policy, topology=given_rules.topology)
        step_count = draw(st.sampled_from([0, 3, 0, 5, 1, 9]))
        if each.state is not IncidentState.OPEN or not isinstance(plan, IncidentPlan) or step_count == 0:
            incidents.append(each)
            continue
        acting = replace(advance(each, IncidentEvent.PLAN_BEGUN, at=NOW, note=""), plan=plan.plan, plan_count=1)
        records += _records_of(draw, plan, step_count)
        event = draw(
            st.sampled_from([IncidentEvent.SUPERSEDED, None, IncidentEvent.NEEDS_HUMAN])
            if each.response in REPAIRS
            else st.sampled_from([None, IncidentEvent.NEEDS_HUMAN])
        )
        incidents.append(acting if event is None else advance(acting, event, at=NOW, note=""))
    return tuple(incidents), tuple(records)


def _records_of(draw: st.DrawFn, plan: IncidentPlan, step_count: int) -> Sequence[ActionRecord]:
    done = [_record(plan, action, is_done=True) for action in plan.actions[:step_count]]
    if draw(st.booleans()):
        done[-1] = replace(done[-1], outcome=None)
    return done


def _record(plan: IncidentPlan, action: Action, *, is_done: bool, at: datetime = NOW) -> ActionRecord:
    outcome = Outcome(kind=OutcomeKind.DONE, witness="seen", finished_at=at, witnessed_at=at) if is_done else None
    return ActionRecord(action=action, plan=plan.plan, begun_at=at, outcome=outcome)


def _after_hold(status: JobStatus) -> JobStatus:
    """Return a job as Slurm shows it once it was requeued and held."""
    return replace(status, state=JobState.PENDING, is_held=True, nodes=frozenset(), started_at=None, ended_at=None)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Snapshot, Rules]:
    """Return a snapshot and the rules that hold there."""
    given_rules = draw(rules)
    return draw(snapshots(given_rules)), given_rules


def carried_out(plans: Sequence[IncidentPlan], state: Snapshot) -> tuple[NodeStatus, ...]:
    """Return the nodes after every drain of the plans."""
    drained = {action.node: action.text for plan in plans for action in plan.actions if action.verb is Verb.DRAIN}
    return tuple(
        replace(each, is_drained=True, reason=drained[each.node]) if each.node in drained else each
        for each in state.nodes
    )


def shuffled_observations(state: Snapshot, order: Sequence[Observation]) -> Snapshot:
    return replace(state, observations=tuple(order))
