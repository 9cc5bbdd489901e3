"""Rollouts side by side, available releases and a plan: as documents, and as JSON for the scripts of operators.

Shows values and judges nothing. The keys of the JSON are a contract.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ops_pipelines.core.identity import RolloutId, listed
from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.release import Release, activation_of
from ops_pipelines.core.rollout import (
    FINAL,
    Rollout,
    RolloutNode,
    RolloutPlan,
    Wave,
)
from ops_pipelines.report import document as doc
from ops_pipelines.report.document import clipped, code, fields_of, link, soft, strong, toned
from ops_pipelines.report.numbers import moment
from ops_pipelines.rollouts.gate.evidence import GateVerdict
from ops_pipelines.rollouts.orders import Planned
from ops_pipelines.rollouts.report import change_table, mood_of, stage_counts, state_words, team_table


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
        "sight": [] if made is None else made.sight,
        "warnings": warnings_of(planned),
    }


def kind_word(wave: Wave) -> str:
    return "deciding" if wave.is_deciding else "canary" if wave.is_canary else "growing"


def rollout_json(
    rollout: Rollout, nodes: Sequence[RolloutNode], verdict: GateVerdict | None, *, waits_for: str
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


MOST_ROLLOUTS, MOST_RELEASES = 30, 50
"""More than these nobody reads; `ops-pipelines rollout history` and the directory have them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LyingRelease:
    """One file of the directory of releases."""

    name: str
    release: Release | None
    """None: it cannot be read."""


# -- all of them --


def rollouts_document(
    *,
    cluster: str,
    rollouts: Sequence[Rollout],
    nodes: Mapping[RolloutId, Sequence[RolloutNode]],
    releases: Sequence[LyingRelease],
    policy: Policy,
    now: datetime,
) -> doc.Document:
    """Return the report of all: of `rollouts` the newest first, with the nodes of those that `nodes` names."""
    why_not = why_nothing_starts(policy)
    return doc.Document(
        title="Rollouts",
        cluster=cluster,
        about="drivers, firmware and system software on their way through the nodes",
        now=now,
        command="ops-pipelines rollout history",
        blocks=doc.sections(
            history_table(rollouts, nodes),
            doc.Heading(text="Releases that lie ready"),
            doc.Note(words=why_not, mood=doc.Mood.WARN) if why_not else None,
            _release_table(releases),
            _how_to_begin(releases),
        ),
    )


def history_document(
    rollouts: Sequence[Rollout], nodes: Mapping[RolloutId, Sequence[RolloutNode]], *, cluster: str
) -> doc.Document:
    """Return the rollouts of the last 30 days, the newest first."""
    table = history_table(rollouts, nodes)
    return doc.Document(title="Rollouts", cluster=cluster, about="of the last 30 days", blocks=(table,))


def history_table(rollouts: Sequence[Rollout], nodes: Mapping[RolloutId, Sequence[RolloutNode]]) -> doc.Table:
    """Return one row a rollout, the newest first."""
    rows = [_history_row(each, nodes.get(each.rollout, ())) for each in reversed(rollouts)]
    return doc.Table(
        columns=doc.columns_of("Rollout:name|Release|State:name|Wave:name|Nodes|Since:moment|Why:words"),
        rows=rows,
        at_most=MOST_ROLLOUTS,
        empty="None is under way, and none ended in the last 30 days.",
        more=(code("ops-pipelines rollout history --json"), " lists the older ones."),
    )


def _history_row(rollout: Rollout, nodes: Sequence[RolloutNode]) -> tuple[doc.Cell, ...]:
    why = rollout.stopped_because if rollout.state in FINAL and rollout.stopped_because else rollout.reason
    return (
        link(rollout.rollout, f"rollouts/{rollout.rollout}"),
        rollout.release,
        strong(state_words(rollout.state), mood_of(rollout.state)),
        f"{rollout.wave} of {len(rollout.waves)}",
        stage_counts(nodes) or None,
        rollout.since,
        clipped(why),
    )


def why_nothing_starts(policy: Policy) -> str:
    """Return why no rollout can be started under this policy; empty if one can."""
    if policy.mode is Mode.OBSERVE:
        return "policy.yaml says mode: observe: a plan is shown, and nothing starts."
    if policy.consent_to(ActionClass.UPDATE) is Consent.FORBID:
        return "policy.yaml says consents.update: forbid: a plan is shown, and nothing starts."
    return ""


def _release_table(releases: Sequence[LyingRelease]) -> doc.Table:
    return doc.Table(
        columns=doc.columns_of("Release:words|What it installs:words|On"),
        rows=[_release_row(each) for each in releases],
        at_most=MOST_RELEASES,
        empty=(
            "None. A release is a file of the directory ", code("releases"), " beside cluster.yaml: docs/RELEASES.md.",
        ),
    )  # fmt: skip


def _release_row(lying: LyingRelease) -> tuple[doc.Cell, ...]:
    release = lying.release
    if release is None:
        command = code(f"ops-pipelines rollout plan {lying.name}")
        return strong(lying.name), (toned("cannot be read; ", doc.Mood.BAD), command, " says why"), ""
    changes = ", ".join(f"{each.component.value.replace('_', ' ')} {each.version}" for each in release.changes)
    one_way = (toned(" cannot be rolled back", doc.Mood.WARN),) if release.is_one_way else ()
    return (strong(lying.name), soft(f" {release.about}")), (changes, *one_way), ", ".join(sorted(release.models))


def _how_to_begin(releases: Sequence[LyingRelease]) -> tuple[doc.Block, ...]:
    example = next((each.name for each in releases if each.release is not None), None)
    if example is None:
        return ()
    return (
        doc.Note(words="To see what one would do, when and to whom, and to begin it:"),
        doc.Items(items=[code(f"ops-pipelines rollout {verb} {example}") for verb in ("plan", "start")]),
        doc.Note(words=soft("In the Dagster UI: the jobs plan_rollout and start_rollout.")),
    )


# -- a plan --


def plan_document(planned: Planned, *, cluster: str) -> doc.Document:
    """Return what would be done, when, at what cost and to whom; or why nothing would."""
    release, plan = planned.release, planned.plan
    refused = refusal_words(planned)
    told = [f"{each.rule}: {each.said} ({each.source})" for each in planned.contradictions]
    return doc.Document(
        title=f"{release.name}: {release.about}",
        cluster=cluster,
        about="what a rollout would be if it began now",
        blocks=doc.sections(
            doc.Note(words=toned(f"{release.name} cannot be rolled out: {refused}", doc.Mood.BAD)) if refused else None,
            _plan_fields(plan) if isinstance(plan, RolloutPlan) else None,
            change_table(release),
            _plan_tables(plan) if isinstance(plan, RolloutPlan) else None,
            doc.Items(items=[each for each in told if each not in refused]),
            doc.Items(items=[f"note: {each}" for each in warnings_of(planned)]),
        ),
    )


def _plan_fields(plan: RolloutPlan) -> doc.Fields:
    return doc.Fields(
        rows={
            "plan": plan.plan,
            "nodes": f"{sum(len(wave.nodes) for wave in plan.waves)} in {len(plan.waves)} waves",
            "begins": moment(plan.starts_at),
            "ends": "nobody can foresee it" if plan.finishes_at is None else moment(plan.finishes_at),
            "costs": f"{plan.lost_gpu_hours:.1f} GPU-hours without work",
            "cannot be rolled back": ", ".join(each.component.value for each in plan.one_way),
        }
    )


def _plan_tables(plan: RolloutPlan) -> tuple[doc.Block, ...]:
    left_out: dict[str, list[str]] = {}
    for each in plan.skipped:
        left_out.setdefault(each.reason, []).append(each.node)
    # Hundreds of nodes have the same reason.
    most_first = sorted(left_out.items(), key=lambda item: -len(item[1]))
    return doc.sections(
        doc.Table(
            columns=doc.columns_of("Wave:name|Nodes|From:moment|Until, soak included:moment"),
            rows=[
                (
                    f"{wave.number} {kind_word(wave)}", f"{len(wave.nodes)}: {listed(wave.nodes, at_most=6)}",
                    wave.planned_from, wave.planned_until,
                )
                for wave in plan.waves
            ],
            empty="",
            at_most=max(1, len(plan.waves)),
        ),
        doc.Items(items=[f"gate: {each}" for each in plan.sight]),
        team_table(plan) if plan.teams else None,
        doc.Items(
            items=[f"not touched: {len(names)} ({listed(names)}): {reason}" for reason, names in most_first]
        ),
    )  # fmt: skip
