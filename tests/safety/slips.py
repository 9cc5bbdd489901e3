"""The program with one slip in what is no guardrail: what it counts, computes or believes, and a story that shows it.

Some rules of the judge have no guardrail of their own name: the planner, a timing or the proof of a repair keeps them.
Here each of those is made to err in one small way; guardrails are taken out by `mutations`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

from ops_pipelines.core.action import Action, Verb
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.entries import AUTOPILOT
from ops_pipelines.core.finding import Response
from ops_pipelines.core.incident import Incident, IncidentEvent, IncidentState, advance
from ops_pipelines.core.policy import ActionClass, Consent, LadderLimits
from ops_pipelines.people import orders
from ops_pipelines.people.orders import LinkClaim
from ops_pipelines.remediate import repair_steps, verbs
from ops_pipelines.remediate.by_hand import mark_repaired
from ops_pipelines.remediate.due import why_it_waits
from ops_pipelines.remediate.gate import escalate
from ops_pipelines.remediate.guardrails.facts import stricken_nodes
from ops_pipelines.remediate.job_moves import ActionMaker
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.remediate.oversight import settle_left_behind
from ops_pipelines.remediate.planning import is_second_hand, may_be_shared
from ops_pipelines.remediate.repair_steps import Situation
from ops_pipelines.remediate.verification import Recovery, Verdict, judge_recovery
from ops_pipelines_lab.simulator.journal import FaultKind
from tests.safety.directed_stories import (
    MEND_CALLS,
    PASS,
    break_by,
    change,
    fail_call,
    lose_gpu,
    number_of,
    story_of,
    wait,
    waiting_plan,
)
from tests.safety.hostile_plans import WIDE
from tests.safety.lies import CheckLie
from tests.safety.moves import Move, MoveKind
from tests.safety.moves_of_alerts import Told
from tests.safety.moves_of_consent import Yes
from tests.safety.mutations import replaced
from tests.safety.stage import Setting
from tests.safety.stories import Story


@dataclass(frozen=True, slots=True, kw_only=True)
class Slip:
    """One slip, and the story in which it makes the program do what must never be done."""

    happens: Callable[[], AbstractContextManager[None]]
    story: Story


def _counts_whoever_runs() -> AbstractContextManager[None]:
    """Count a replica as serving that hangs on a node which is known to be broken."""
    return replaced(stricken_nodes, lambda *_: {})


def _keeps_room_for_a_day() -> AbstractContextManager[None]:
    """Keep spare nodes free for far longer than a move may take."""
    return replaced(verbs._room_for, lambda _: timedelta(days=1))


def _asks_nobody_for_the_repair() -> AbstractContextManager[None]:
    """Call a node repaired that has waited for hands for a while: it answers, and nobody has reported a word."""

    def settle(cluster: Cluster) -> int:
        now = cluster.clock.now()
        for each in cluster.ledger.read_state(now).incidents:
            if each.state is IncidentState.IN_REPAIR and now - each.changed_at > timedelta(seconds=5):
                mark_repaired(cluster, each.incident, actor=AUTOPILOT, note="it answers", now=now)
        return settle_left_behind(cluster)

    return replaced(settle_left_behind, settle)


def _waits_for_no_checkpoint() -> AbstractContextManager[None]:
    """Hold a job at once that is worth waiting for."""
    return replaced(why_it_waits, lambda *_: None)


def _believes_every_repair() -> AbstractContextManager[None]:
    """Return a node whatever its tests found."""
    believed = Verdict(recovery=Recovery.RECOVERED, facts=("it was repaired",))
    return replaced(judge_recovery, lambda *_, **__: believed)


def _repairs_what_it_isolates() -> AbstractContextManager[None]:
    """Reboot a node that is only to be looked at."""
    repair = repair_steps._repair

    def reboot(situation: Situation, act: ActionMaker, reason: str) -> Sequence[Action]:
        if situation.incident.response is not Response.ISOLATE:
            return repair(situation, act, reason)
        return [act.on_node(Verb.REBOOT, situation.node.node, reason)]

    return replaced(repair_steps._repair, reboot)


def _waits_for_no_neighbour() -> AbstractContextManager[None]:
    """Take the first node of a switch for the only one."""
    return replaced(may_be_shared, lambda *_, **__: None)


def _believes_alerts() -> AbstractContextManager[None]:
    """Take what an alert says for what was seen."""
    return replaced(is_second_hand, lambda _: False)


def _hands_over_in_silence() -> AbstractContextManager[None]:
    """Give an incident up, and the job that is held for it, without a word to anybody."""

    def give_up(incident: Incident, cluster: Cluster, *, lease: Lease, why: str) -> bool:
        now = cluster.clock.now()
        given_up = advance(incident, IncidentEvent.NEEDS_HUMAN, at=now, note=why)
        cluster.ledger.change_incident(given_up, actor=AUTOPILOT, now=now)
        return True

    return replaced(escalate, give_up)


def _takes_dead_links() -> AbstractContextManager[None]:
    """Take an approval with a link for as long as its plan waits, as often as somebody says it."""

    def approve_again(claim: LinkClaim, cluster: Cluster) -> object:
        return orders.approve(claim.plan, cluster, actor=claim.person, valid_for=timedelta(hours=1))

    return replaced(orders.approve_by_link, approve_again)


def alert(told: Told, node: int, *, name: int = 0) -> Move:
    return Move(kind=MoveKind.ALERT, node=node, number=number_of(told) + name * len(Told))


def say(way: Yes) -> Move:
    return Move(kind=MoveKind.SAY_YES, number=number_of(way))


def show_link(node: int, *, seconds_ago: int) -> Move:
    return Move(
        kind=MoveKind.SHOW_PART,
        node=node,
        number=next(number for number in range(10_000) if number % 5 == 0 and number % 91 == seconds_ago),
    )


NO_REPAIR = LadderLimits(max_gpu_resets_count=0, max_reboots_count=0, max_power_cycles_count=0, max_reimages_count=0)

SLIPS: Mapping[str, Slip] = {
    "serving_truth": Slip(
        happens=_counts_whoever_runs,
        # The first replica hangs on a node that is left to people; the second is all that serves.
        story=story_of(
            lose_gpu(2),
            PASS,
            wait(11),
            break_by(FaultKind.ROW_REMAP_WAITS, 3),
            PASS,
            setting=Setting(node_count=5, replica_count=2, gpus_per_replica=2, untouchable=2),
        ),
    ),
    "reservation_end": Slip(happens=_keeps_room_for_a_day, story=story_of(lose_gpu(0), PASS)),
    "mended": Slip(
        happens=_asks_nobody_for_the_repair,
        story=story_of(lose_gpu(3), PASS, wait(10), PASS, setting=Setting(budget=WIDE, ladder=NO_REPAIR)),
    ),
    "moment": Slip(happens=_waits_for_no_checkpoint, story=waiting_plan()),
    "proven": Slip(
        happens=_believes_every_repair,
        story=story_of(Move(kind=MoveKind.BEND_CHECKS, number=number_of(CheckLie.FAILED)), lose_gpu(3), PASS, PASS),
    ),
    "untouched_part": Slip(happens=_repairs_what_it_isolates, story=story_of(show_link(3, seconds_ago=70), PASS, PASS)),
    "neighbours_first": Slip(happens=_waits_for_no_neighbour, story=story_of(show_link(3, seconds_ago=20), PASS, PASS)),
    "first_hand": Slip(happens=_believes_alerts, story=story_of(alert(Told.FIRES, 3), PASS, wait(8), PASS)),
    # The power switch does not answer, and then is forbidden: without it nobody can let the held job go.
    "stranded": Slip(
        happens=_hands_over_in_silence,
        story=story_of(
            break_by(FaultKind.NODE_UNREACHABLE, 0),
            wait(5),
            PASS,
            wait(6),
            fail_call("power_off"),
            PASS,
            change(ActionClass.POWER, Consent.FORBID),
            MEND_CALLS,
            PASS,
            PASS,
        ),
    ),
    "dead_link": Slip(
        happens=_takes_dead_links,
        story=story_of(
            lose_gpu(3),
            PASS,
            say(Yes.BY_LINK),
            say(Yes.BY_EVERY_LINK_AGAIN),
            setting=Setting(budget=WIDE, consents={ActionClass.ISOLATE: Consent.APPROVE}),
        ),
    ),
}
"""By the one rule that the judge must see broken."""
