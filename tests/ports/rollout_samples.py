"""What the tests of rollouts in a ledger share: a release with everything in it, a plan, a rollout and its nodes."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.identity import Digest, NodeName, PlanId, RolloutId, cause_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.release import (
    Activation,
    Artifact,
    Change,
    Claims,
    Component,
    Means,
    Release,
    ReleaseName,
    Reversibility,
)
from ops_pipelines.core.rollout import (
    Direction,
    NodeStage,
    PlannedVisit,
    Rollout,
    RolloutNode,
    RolloutPlan,
    RolloutState,
    SkippedNode,
    TeamTouched,
    Wave,
)
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.ledger.evidence import digest_document
from tests.ports.ledger_samples import NOW

HOUR = timedelta(hours=1)
NODES = ("gpu001", "gpu002", "gpu003")
RELEASE = Release(
    name=ReleaseName("driver-580"),
    about="the driver that größer means ✓",
    models=frozenset({"h100", "h200"}),
    changes=(
        Change(
            component=Component.DRIVER,
            version="580.95.05",
            install=("install-driver", "{version}"),
            rollback=("install-driver", "{version}"),
            activation=Activation.DRIVER_RELOAD,
            starts_from="535.0",
            bundle="driver",
        ),
        Change(
            component=Component.GPU_VBIOS,
            version="96.00.C1",
            means=Means.REDFISH,
            targets=("HGX_0",),
            artifact=Artifact(name="new", sha256="a" * 64, location="https://mirror.example/new.fwpkg"),
            rollback_artifacts={"96.00.A5": Artifact(name="old", sha256="b" * 64, location="/srv/old.fwpkg")},
            activation=Activation.POWER_CYCLE,
            reversibility=Reversibility.WITH_CONDITIONS,
            conditions="once",
        ),
    ),
    claims=Claims(slowest_failure=timedelta(hours=7, minutes=30)),
    opted_out=frozenset({"gpu009"}),
)
RELEASE_DIGEST = Digest(digest_document(encode(RELEASE)))


def wave(number: int, *nodes: str) -> Wave:
    return Wave(
        number=number,
        nodes=tuple(NodeName(name) for name in nodes),
        is_canary=number == 1,
        is_deciding=number == 1,
        planned_from=NOW,
        planned_until=NOW + 8 * HOUR,
    )


def rollout(number: int, *, nodes: Sequence[str] = NODES, state: RolloutState = RolloutState.RUNNING) -> Rollout:
    return Rollout(
        rollout=RolloutId(f"ROLL-{number:04d}"),
        release=RELEASE.name,
        release_digest=RELEASE_DIGEST,
        plan=PlanId(f"PLAN-R{number}"),
        state=state,
        waves=(wave(1, *nodes[:1]), wave(2, *nodes[1:]), wave(3)),
        since=NOW,
        deadline=NOW + 24 * HOUR,
        owner="autopilot",
        reason="started by ada",
        created_by="ada",
        created_at=NOW,
        finishes_at=NOW + 99 * HOUR,
        yes_through=3,
    )


def node(number: int, name: str, *, stage: NodeStage = NodeStage.PENDING, wave: int = 1) -> RolloutNode:
    return RolloutNode(
        rollout=RolloutId(f"ROLL-{number:04d}"),
        node=NodeName(name),
        wave=wave,
        stage=stage,
        since=NOW,
        deadline=NOW + HOUR,
        versions_before={Component.DRIVER: "570.12", Component.GPU_VBIOS: "96.00.A5"},
        read_at=NOW,
    )


def back(number: int, name: str, *, stage: NodeStage) -> RolloutNode:
    return replace(node(number, name, stage=stage), direction=Direction.BACK, try_number=2)


def rollout_plan(planned: Rollout, *, made_at: datetime = NOW) -> RolloutPlan:
    names = tuple(name for each in planned.waves for name in each.nodes)
    return RolloutPlan(
        plan=planned.plan,
        release=RELEASE.name,
        made_at=made_at,
        waves=planned.waves,
        visits=tuple(
            PlannedVisit(node=name, wave=1, drained_at=NOW, begins_at=NOW + HOUR, ends_at=NOW + 2 * HOUR)
            for name in names
        ),
        skipped=(SkippedNode(node=NodeName("gpu009"), reason="opted out"),),
        starts_at=NOW,
        finishes_at=None,
        lost_gpu_hours=12.5,
        teams=(TeamTouched(team="ml", nodes=names, gpu_count=24, first_at=NOW, last_at=NOW + HOUR),),
        one_way=RELEASE.changes[1:],
        warnings=("the window is short",),
    )


def open_rollout(
    ledger: Ledger,
    number: int,
    *,
    names: Sequence[str] = NODES,
    state: RolloutState = RolloutState.RUNNING,
    stage: NodeStage = NodeStage.PENDING,
) -> tuple[Rollout, tuple[RolloutNode, ...]]:
    """Open a rollout of which all nodes are in one stage, and return both as they were given."""
    opened = rollout(number, nodes=names, state=state)
    nodes = tuple(node(number, name, stage=stage) for name in names)
    ledger.open_rollout(opened, nodes, plan=rollout_plan(opened), release=RELEASE, actor="ada", now=NOW)
    return opened, nodes


def change(ledger: Ledger, after: Rollout | None, *nodes: RolloutNode, actor: str = "ada") -> None:
    ledger.change_rollout(after, nodes, actor=actor, now=NOW)


def begun(before: RolloutNode) -> RolloutNode:
    """Return a node as it is when its way begins."""
    return replace(before, stage=NodeStage.DRAINING, since=before.since + HOUR, try_number=before.try_number + 1)


def drain_for(owner: RolloutNode) -> Action:
    return Action(
        verb=Verb.DRAIN, incident=cause_of(owner.rollout), node=owner.node, text="why", try_number=owner.try_number
    )
