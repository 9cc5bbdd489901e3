"""Rollouts in the ledger's database: opened, changed and read, each change one line of the chain, by one event of its
table and never backwards.

Each function runs inside a transaction of its caller. Plan and release are documents, named by the line that opens a
rollout. Whether a rollout, or a node in it, may become what a writer says is judged from the stored value: who
reads, works and writes may be overtaken meanwhile by another process or a person, and is refused then. That part is
pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import TypeAlias

from sqlalchemy import Connection, bindparam, func, insert, or_, select, update

from ops_pipelines.core.entries import AUTOPILOT, EntryKind, LedgerConflict, LedgerError
from ops_pipelines.core.identity import Digest, NodeName, PlanId, RolloutId, cause_of, is_rollout
from ops_pipelines.core.release import Release
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutPlan,
    RolloutState,
)
from ops_pipelines.resources.documents import decode, decode_all, encode
from ops_pipelines.resources.ledger.chain import ChainWriter, RolloutChange
from ops_pipelines.resources.ledger.evidence import digest_document, read_document, write_document
from ops_pipelines.resources.ledger.tables import rollout_nodes
from ops_pipelines.resources.ledger.tables import rollouts as rollout_rows
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, IllegalRolloutTransitionError, next_direction, next_stage

# -- what may follow what --


_Standing: TypeAlias = tuple[NodeStage, Direction]

_TO_NEXT_WAVE = frozenset({RolloutEvent.WAVE_GOOD, RolloutEvent.ONE_WAY_NEXT})
_UNTOUCHED = frozenset({NodeStage.PENDING, NodeStage.SKIPPED})


def rollout_conflict(before: Rollout, after: Rollout, *, actor: str) -> str | None:
    """Return why the stored rollout does not lead to the new one by the word of `actor`; None if it does."""
    if _origin(before) != _origin(after):
        return f"{before.rollout} is another rollout: release, plan and waves of a rollout never change"
    if actor == AUTOPILOT and _is_peoples(before, after):
        return (
            f"{before.rollout} is {before.state.value} by now, and only people let it continue; read it again "
            "and decide again"
        )
    if _rollout_stays(before, after) or _rollout_moves(before, after):
        return None
    return (
        f"{before.rollout} is {before.state.value} in wave {before.wave} by now, which does not lead to "
        f"{after.state.value} in wave {after.wave}; read it again and decide again"
    )


def node_conflict(before: RolloutNode, after: RolloutNode, *, state: RolloutState) -> str | None:
    """Return why the stored node does not lead to the new one in a rollout of this state; None if it does."""
    if not (_node_stays(before, after) or _node_moves(before, after) or _is_put_off(before, after)):
        return (
            f"{before.node} is {_words(before)} in {before.rollout} by now, which does not lead to {_words(after)}; "
            "read it again and decide again"
        )
    is_begun = before.stage in _UNTOUCHED and after.stage in IN_HAND
    is_taken = before.stage not in IN_HAND and after.stage in IN_HAND
    if (is_begun and state is not RolloutState.RUNNING) or (is_taken and state in FINAL):
        return f"{before.rollout} is {state.value} by now: {before.node} is not started; read it again and decide again"
    return None


def _is_peoples(before: Rollout, after: Rollout) -> bool:
    """Return whether only a person may change this: a pass that was under way when they spoke would undo their word.

    What the gate found meanwhile stops a rollout all the same.
    """
    if before.state not in OF_PEOPLE or _rollout_stays(before, after):
        return False
    return after.state is not RolloutState.GOING_BACK or after.since < before.since


def _origin(rollout: Rollout) -> tuple[object, ...]:
    return (
        rollout.rollout,
        rollout.release,
        rollout.release_digest,
        rollout.plan,
        rollout.waves,
        rollout.created_by,
        rollout.created_at,
    )


def _rollout_stays(before: Rollout, after: Rollout) -> bool:
    """Return whether this is the same stay in the same state, in other words; when it is over, what it owes."""
    if before.state in FINAL:
        return after == replace(before, kept_off=after.kept_off, booking=after.booking)
    return (before.state, before.wave, before.since) == (after.state, after.wave, after.since)


def _rollout_moves(before: Rollout, after: Rollout) -> bool:
    return any(
        ROLLOUT_TABLE.get((before.state, event)) is after.state
        and after.wave == before.wave + (1 if event in _TO_NEXT_WAVE else 0)
        for event in RolloutEvent
    )


def _node_stays(before: RolloutNode, after: RolloutNode) -> bool:
    """Return whether this is the same stay in the same stage, in other words or with other reads."""
    is_same = (before.wave, before.since) == (after.wave, after.since)
    return is_same and _standing(before) == _standing(after) and _progress(before) == _progress(after)


def _node_moves(before: RolloutNode, after: RolloutNode) -> bool:
    is_later = after.wave == before.wave and _progress(after) >= _progress(before)
    return is_later and _standing(after) in _LEADS_TO[_standing(before)]


def _is_put_off(before: RolloutNode, after: RolloutNode) -> bool:
    """Return whether a node that waits keeps waiting, for a later wave."""
    is_same = _standing(before) == _standing(after) and _progress(before) == _progress(after)
    if before.wave is None or after.wave is None:
        return False
    return is_same and before.stage is NodeStage.PENDING and after.wave > before.wave


def _standing(node: RolloutNode) -> _Standing:
    return node.stage, node.direction


def _progress(node: RolloutNode) -> tuple[int, int]:
    """Return what only grows: a writer who was overtaken by a whole pass shows by the older number."""
    return node.try_number, node.step


def _words(node: RolloutNode) -> str:
    wave = "no wave" if node.wave is None else f"wave {node.wave}"
    where = f"{wave}, {node.direction.value}, try {node.try_number}, step {node.step}"
    return f"{node.stage.value} ({where})"


def _next_standing(standing: _Standing, event: NodeEvent) -> _Standing | None:
    stage, direction = standing
    try:
        after = next_stage(stage, event, direction=direction)
    except IllegalRolloutTransitionError:
        return None
    return after, next_direction(event, direction)


_LEADS_TO: Mapping[_Standing, frozenset[_Standing]] = {
    standing: frozenset(after for event in NodeEvent if (after := _next_standing(standing, event)) is not None)
    for standing in ((stage, direction) for stage in NodeStage for direction in Direction)
}


# -- statements --


_LOOKUP_SIZE = 500
_CACHE_SIZE = 256
"""Of decoded rollouts: open ones are read with every state."""

_IS_OPEN = rollout_rows.c.is_open == 1
_OPEN = select(rollout_rows.c.body).where(_IS_OPEN).order_by(rollout_rows.c.number)
_OPEN_OR_SINCE = (
    select(rollout_rows.c.body)
    .where(or_(_IS_OPEN, rollout_rows.c.changed_at >= bindparam("since")))
    .order_by(rollout_rows.c.number)
)
_ROLLOUT = select(rollout_rows.c.body).where(rollout_rows.c.rollout == bindparam("rollout"))
_COUNT = select(func.max(rollout_rows.c.number))
_OF_OPEN = rollout_nodes.join(rollout_rows, rollout_rows.c.rollout == rollout_nodes.c.rollout)
_OWNED = (
    select(rollout_nodes.c.node, rollout_nodes.c.rollout)
    .select_from(_OF_OPEN)
    .where(_IS_OPEN, rollout_nodes.c.stage.in_(sorted(stage.value for stage in IN_HAND)))
)
_HELD = (
    select(rollout_nodes.c.node, rollout_nodes.c.rollout, rollout_nodes.c.stage)
    .select_from(_OF_OPEN)
    .where(_IS_OPEN, rollout_nodes.c.stage != NodeStage.SKIPPED.value)
)
_NODES = select(rollout_nodes.c.body).where(rollout_nodes.c.rollout == bindparam("rollout"))
_NODES_BY_NAME = _NODES.where(rollout_nodes.c.node.in_(bindparam("wanted", expanding=True)))
_WITH_PLAN = (
    select(rollout_rows.c.rollout, rollout_rows.c.plan_document)
    .where(rollout_rows.c.plan == bindparam("plan"))
    .order_by(rollout_rows.c.number.desc())
    .limit(1)
)
"""The newest: a rollout that was ended may be planned once more, with the same nodes in the same waves."""


# -- writing ----------------------------------------------------------------------------------------------------------


def write_opening(
    connection: Connection,
    rollout: Rollout,
    nodes: Collection[RolloutNode],
    *,
    plan: RolloutPlan,
    release: Release,
    actor: str,
    now: datetime,
) -> None:
    """Write a new rollout with its nodes, plan and release; raise LedgerConflict as the port says."""
    if not is_rollout(cause_of(rollout.rollout)):
        raise LedgerError(f"{rollout.rollout} is no name of a rollout; they are named ROLL-0001 and so on")
    if rollout.plan != plan.plan:
        raise LedgerError(f"{rollout.rollout} names the plan {rollout.plan}, and {plan.plan} was given to be kept")
    name = rollout.rollout
    _by_name(nodes, rollout=name)
    plan_document, release_document = encode(plan), encode(release)
    plan_digest, release_digest = digest_document(plan_document), digest_document(release_document)
    if rollout.release_digest != release_digest:
        raise LedgerError(
            f"{name} names the release {rollout.release_digest}, but {release.name} is kept under {release_digest}; "
            "take the digest that `store_release` returns"
        )
    if read_rollout(connection, name) is not None:
        raise LedgerConflict(f"there is a rollout {name} by now; ask for their count again for the next id")
    _refuse_held(connection, [each.node for each in nodes if each.stage is not NodeStage.SKIPPED], rollout=name)
    write_document(connection, plan_digest, plan_document)
    write_document(connection, release_digest, release_document)
    change = RolloutChange(rollout=rollout, nodes=tuple(nodes), plan_document=plan_digest)
    seq = _append(connection, change, rollout=name, actor=actor, now=now)
    row = {
        **rollout_row(rollout),
        "number": read_rollout_count(connection) + 1,
        "plan_document": plan_digest,
        "first_seq": seq,
        "seq": seq,
        "body": encode(rollout),
    }
    connection.execute(insert(rollout_rows), row)
    if nodes:
        connection.execute(insert(rollout_nodes), [{**node_row(each), "seq": seq} for each in nodes])


def write_change(
    connection: Connection,
    rollout: Rollout | None,
    nodes: Collection[RolloutNode],
    *,
    actor: str,
    now: datetime,
) -> None:
    """Write what is new of a rollout and of nodes in it; raise LedgerConflict as the port says."""
    names = {each.rollout for each in nodes} | (set() if rollout is None else {rollout.rollout})
    if not names:
        return
    if len(names) > 1:
        raise LedgerError(f"one change is of one rollout; found {', '.join(sorted(names))}")
    (name,) = names
    present = read_rollout(connection, name)
    if present is None:
        raise LedgerError(f"there is no rollout {name} that could be changed")
    asked = _by_name(nodes, rollout=name)
    known = _read_nodes_of(connection, name, asked)
    changed_rollout = None if rollout is None or rollout == present else rollout
    changed = [each for each in asked.values() if each != known[each.node]]
    _refuse_impossible(present, changed_rollout, [(known[each.node], each) for each in changed], actor=actor)
    _refuse_held(
        connection, [each.node for each in changed if known[each.node].stage is NodeStage.SKIPPED], rollout=name
    )
    if changed_rollout is None and not changed:
        return
    change = RolloutChange(rollout=changed_rollout, nodes=tuple(changed))
    seq = _append(connection, change, rollout=name, actor=actor, now=now)
    _update(connection, changed_rollout, changed, name=name, seq=seq)


def _append(connection: Connection, change: RolloutChange, *, rollout: RolloutId, actor: str, now: datetime) -> int:
    with ChainWriter(connection) as writer:
        return writer.append(encode(change), kind=EntryKind.ROLLOUT, actor=actor, incident=cause_of(rollout), now=now)


def _update(
    connection: Connection, rollout: Rollout | None, nodes: Sequence[RolloutNode], *, name: RolloutId, seq: int
) -> None:
    if rollout is not None:
        row = {**rollout_row(rollout), "seq": seq, "body": encode(rollout)}
        connection.execute(update(rollout_rows).where(rollout_rows.c.rollout == name), row)
    if nodes:
        its_row = update(rollout_nodes).where(
            rollout_nodes.c.rollout == bindparam("its_rollout"), rollout_nodes.c.node == bindparam("its_node")
        )
        rows = [node_row(each) for each in nodes]
        connection.execute(
            its_row,
            [{"its_rollout": row.pop("rollout"), "its_node": row.pop("node"), **row, "seq": seq} for row in rows],
        )


def _by_name(nodes: Collection[RolloutNode], *, rollout: RolloutId) -> dict[NodeName, RolloutNode]:
    foreign = next((each for each in nodes if each.rollout != rollout), None)
    if foreign is not None:
        raise LedgerError(f"{foreign.node} is of {foreign.rollout}, and was given with {rollout}")
    found = {each.node: each for each in nodes}
    if len(found) != len(nodes):
        raise LedgerError(f"a node was given twice for {rollout}; a node is in one stage at a time")
    return found


def _refuse_impossible(
    present: Rollout, rollout: Rollout | None, changes: Iterable[tuple[RolloutNode, RolloutNode]], *, actor: str
) -> None:
    problem = None if rollout is None else rollout_conflict(present, rollout, actor=actor)
    if problem is not None:
        raise LedgerConflict(problem)
    state = present.state if rollout is None else rollout.state
    for before, after in changes:
        problem = node_conflict(before, after, state=state)
        if problem is not None:
            raise LedgerConflict(problem)


def _refuse_held(connection: Connection, nodes: Collection[NodeName], *, rollout: RolloutId) -> None:
    """Raise LedgerConflict if another rollout that is not final plans for one of these nodes."""
    if not nodes:
        return
    wanted = frozenset(nodes)
    for row in connection.execute(_HELD):
        if row.node in wanted and row.rollout != rollout:
            raise LedgerConflict(
                f"{row.node} is in {row.rollout} ({row.stage}); no node is in two rollouts: let that one end, "
                "or opt the node out of this release"
            )


# -- reading ----------------------------------------------------------------------------------------------------------


def read_rollout(connection: Connection, rollout: RolloutId) -> Rollout | None:
    """Return one rollout as it is now."""
    body = connection.execute(_ROLLOUT, {"rollout": rollout}).scalar()
    return None if body is None else _to_rollout(body)


def read_rollouts(connection: Connection, *, final_since: datetime | None) -> tuple[Rollout, ...]:
    """Return the rollouts that are not final, and those that became so at or after `final_since`; oldest first."""
    if final_since is None:
        return read_open_rollouts(connection)
    bodies = connection.execute(_OPEN_OR_SINCE, {"since": final_since}).scalars()
    return tuple(_to_rollout(body) for body in bodies)


def read_open_rollouts(connection: Connection) -> tuple[Rollout, ...]:
    """Return the rollouts that are not final, oldest first."""
    return tuple(_to_rollout(body) for body in connection.execute(_OPEN).scalars())


def read_owned(connection: Connection) -> dict[NodeName, RolloutId]:
    """Return the nodes that rollouts have in hand, each with its owner."""
    return {NodeName(row.node): RolloutId(row.rollout) for row in connection.execute(_OWNED)}


def read_rollout_count(connection: Connection) -> int:
    """Return how many rollouts there ever were."""
    return connection.execute(_COUNT).scalar() or 0


def read_rollout_nodes(connection: Connection, rollout: RolloutId) -> tuple[RolloutNode, ...]:
    """Return every node of a rollout, by name."""
    bodies = connection.execute(_NODES, {"rollout": rollout}).scalars()
    return tuple(sorted(decode_all(RolloutNode, bodies), key=lambda each: each.node))


def _read_nodes_of(
    connection: Connection, rollout: RolloutId, names: Collection[NodeName]
) -> Mapping[NodeName, RolloutNode]:
    wanted = list(names)
    bodies: list[str] = []
    for start in range(0, len(wanted), _LOOKUP_SIZE):
        asked = {"rollout": rollout, "wanted": wanted[start : start + _LOOKUP_SIZE]}
        bodies += connection.execute(_NODES_BY_NAME, asked).scalars()
    found = {each.node: each for each in decode_all(RolloutNode, bodies)}
    unknown = next((name for name in wanted if name not in found), None)
    if unknown is not None:
        raise LedgerError(f"{unknown} is not in {rollout}; the nodes of a rollout are those that it was opened with")
    return found


def read_rollout_plan(connection: Connection, plan: PlanId) -> RolloutPlan | None:
    """Return the plan of a rollout."""
    row = connection.execute(_WITH_PLAN, {"plan": plan}).one_or_none()
    return None if row is None else decode(RolloutPlan, read_document(connection, Digest(row.plan_document)))


def read_rollout_of_plan(connection: Connection, plan: PlanId) -> RolloutId | None:
    """Return the rollout that a plan is of."""
    row = connection.execute(_WITH_PLAN, {"plan": plan}).one_or_none()
    return None if row is None else RolloutId(row.rollout)


# -- rows -------------------------------------------------------------------------------------------------------------


def rollout_row(rollout: Rollout) -> dict[str, str | int | datetime]:
    """Return the columns that follow from the rollout itself."""
    return {
        "rollout": rollout.rollout,
        "is_open": int(rollout.state not in FINAL),
        "changed_at": rollout.since,
        "plan": rollout.plan,
    }


def node_row(node: RolloutNode) -> dict[str, str | int]:
    """Return the columns that follow from the node itself."""
    return {"rollout": node.rollout, "node": node.node, "stage": node.stage.value, "body": encode(node)}


@lru_cache(maxsize=_CACHE_SIZE)
def _to_rollout(body: str) -> Rollout:
    return decode(Rollout, body)
