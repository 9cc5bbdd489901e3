"""Plans a rollout on the fleet as it is now, and opens it: from then on the ledger has it, and passes advance it."""

from collections.abc import Collection

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.identity import RolloutId
from ops_pipelines.core.policy import ActionClass, Consent, Mode
from ops_pipelines.core.proof import Refusal
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import NodeStage, Rollout, RolloutNode, RolloutPlan, RolloutState
from ops_pipelines.flow.lifecycle.planning import Planned, files_of
from ops_pipelines.flow.lifecycle.rollout_pass import PEOPLE
from ops_pipelines.remediate.by_hand import ByHandRefused


def start_release(planned: Planned, cluster: Cluster, *, actor: str) -> Rollout:
    """Open the rollout that was planned; raise ByHandRefused where there is no plan, with why."""
    if isinstance(planned.plan, Refusal):
        raise ByHandRefused(f"{planned.release.name} is not rolled out. {planned.plan.reason}")
    files_of(cluster).check_artifacts(planned.release)
    return open_rollout(planned.release, planned.plan, cluster, actor=actor)


def open_rollout(release: Release, plan: RolloutPlan, cluster: Cluster, *, actor: str) -> Rollout:
    """Write a rollout into the ledger: it begins by itself where the policy lets it, else it waits for a yes.

    Raises ByHandRefused where nothing may be installed at all, and LedgerConflict if one of its nodes is in another
    rollout.
    """
    policy = cluster.rules.policy
    if policy.mode is Mode.OBSERVE:
        raise ByHandRefused(
            "policy.yaml says mode: observe, so nothing is rolled out; `rollout plan` shows what would be"
        )
    consent = policy.consent_to(ActionClass.UPDATE)
    if consent is Consent.FORBID:
        raise ByHandRefused("policy.yaml says consents.update: forbid, so nothing is rolled out")
    if not plan.waves:
        raise ByHandRefused(f"{release.name} would touch no node; `rollout plan {release.name}` says why")
    now = cluster.clock.now()
    needs_yes = release.is_one_way or consent is Consent.APPROVE
    rollout = Rollout(
        rollout=_next_id(cluster),
        release=release.name,
        release_digest=cluster.ledger.store_release(release),
        plan=plan.plan,
        state=RolloutState.AWAITING_YES if needs_yes else RolloutState.RUNNING,
        waves=plan.waves,
        since=now,
        deadline=now + policy.rollouts.answer_limit if needs_yes else None,
        owner=PEOPLE if needs_yes else AUTOPILOT,
        reason=_why_asked(release) if needs_yes else f"started by {actor}",
        created_by=actor,
        created_at=now,
        finishes_at=plan.finishes_at,
        yes_through=0 if needs_yes else len(plan.waves),
    )
    nodes = _nodes_of(rollout, plan)
    cluster.ledger.open_rollout(rollout, nodes, plan=plan, release=release, actor=actor, now=now)
    return rollout


def _next_id(cluster: Cluster) -> RolloutId:
    # Two at once take the same number: the second finds it taken (LedgerConflict), and asks again.
    return RolloutId(f"ROLL-{cluster.ledger.rollout_count() + 1:04d}")


def _nodes_of(rollout: Rollout, plan: RolloutPlan) -> Collection[RolloutNode]:
    waiting = [
        RolloutNode(rollout=rollout.rollout, node=node, wave=wave.number, since=rollout.created_at)
        for wave in plan.waves
        for node in wave.nodes
    ]
    skipped = [
        RolloutNode(
            rollout=rollout.rollout,
            node=each.node,
            wave=None,
            stage=NodeStage.SKIPPED,
            since=rollout.created_at,
            reason=each.reason,
        )
        for each in plan.skipped
    ]
    return (*waiting, *skipped)


def _why_asked(release: Release) -> str:
    if release.is_one_way:
        return f"{release.name} installs what cannot go back: each wave needs a yes"
    return "policy.yaml wants a yes before anything is installed"
