"""What the commands of rollouts answer, as JSON. The keys are a contract with the scripts of operators."""

from collections import Counter
from collections.abc import Sequence

from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.release import activation_of
from ops_pipelines.core.rollout import (
    Rollout,
    RolloutNode,
    RolloutPlan,
    Wave,
)
from ops_pipelines.report.json_form import fields_of
from ops_pipelines.rollouts.gate.evidence import Verdict
from ops_pipelines.rollouts.orders import Planned


def plan_json(planned: Planned, *, cluster: str) -> dict[str, object]:
    """Return what `ops-pipelines rollout plan --json` prints; `plan` is None where there is none."""
    release, plan = planned.release, planned.plan
    made = plan if isinstance(plan, RolloutPlan) else None
    return {
        "cluster": cluster,
        "made_at": planned.fleet.taken_at,
        "release": release.name,
        "about": release.about,
        "plan": None if made is None else made.plan,
        "refused": refusal_words(planned),
        "changes": [
            {
                "component": change.component,
                "version": change.version,
                "activation": activation_of(step),
                "reversible": change.reversibility,
                "conditions": change.conditions,
            }
            for step in release.steps
            for change in step
        ],
        "node_count": 0 if made is None else sum(len(wave.nodes) for wave in made.waves),
        "waves": []
        if made is None
        else [
            {
                "wave": wave.number,
                "kind": kind_word(wave),
                **fields_of(wave, "nodes planned_from planned_until"),
            }
            for wave in made.waves
        ],
        "starts_at": None if made is None else made.starts_at,
        "finishes_at": None if made is None else made.finishes_at,
        "lost_gpu_hours": None if made is None else round(made.lost_gpu_hours, 1),
        "teams": []
        if made is None
        else [
            {
                **fields_of(each, "team nodes gpu_count first_at last_at"),
            }
            for each in made.teams
        ],
        "not_touched": [] if made is None else [{"node": each.node, "reason": each.reason} for each in made.skipped],
        "contradictions": [
            {"rule": each.rule, "said": each.said, "source": each.source, "nodes": each.nodes}
            for each in planned.contradictions
        ],
        "needs_yes_for": [] if made is None else [each.component for each in made.one_way],
        "warnings": warnings_of(planned),
    }


def kind_word(wave: Wave) -> str:
    return "deciding" if wave.is_deciding else "canary" if wave.is_canary else "growing"


def rollout_json(
    rollout: Rollout, nodes: Sequence[RolloutNode], verdict: Verdict | None, *, waits_for: str
) -> dict[str, object]:
    """Return one rollout as `ops-pipelines rollout status --json` prints it."""
    return {
        **fields_of(rollout, "rollout release plan state owner reason since deadline wave"),
        "wave_count": len(rollout.waves),
        "nodes_by_stage": dict(Counter(each.stage.value for each in nodes)),
        **fields_of(rollout, "finishes_at created_by created_at yes_by stopped_because"),
        "waits_for": waits_for,
        "tests": []
        if verdict is None
        else [
            {
                "test": each.name,
                "verdict": each.state,
                "said": each.said,
                "evidence_ratio": round(each.evidence_ratio, 2),
            }
            for each in verdict.tests
        ],
        "verdict": "" if verdict is None else f"{verdict.kind.value}: {verdict.reason}",
        "nodes": [
            {
                **fields_of(each, "node wave stage direction since deadline reason failure"),
            }
            for each in nodes
        ],
    }


def refusal_words(planned: Planned) -> str:
    refusal = planned.plan
    return f"{refusal.guardrail}: {refusal.reason}" if isinstance(refusal, Refusal) else ""


def warnings_of(planned: Planned) -> tuple[str, ...]:
    plan = planned.plan
    made = plan.warnings if isinstance(plan, RolloutPlan) else ()
    return *made, *(each.reason for each in planned.rejected)
