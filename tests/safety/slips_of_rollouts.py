"""Slips of what rollouts rest on, each with a story in which it makes a rollout do what must never be done.

Where a guardrail keeps the same, it is taken out as well: one of the two alone must not be enough. What is no matter of
rollouts errs in `slips`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import time

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.policy import BlastCaps, WeeklyWindow
from ops_pipelines.core.rollout import NodeEvent, NodeStage
from ops_pipelines.rollouts.candidates import Places, pick
from ops_pipelines.rollouts.cycle import calendar_of
from ops_pipelines.rollouts.engine import Act, Step, Wait, next_move
from ops_pipelines.rollouts.engine import Move as NextMove
from ops_pipelines.rollouts.fleet import FleetNode
from ops_pipelines_lab.simulator.versions import ReleaseFault, ReleaseTrouble
from tests.safety.directed_stories import PASS, story_of, wait
from tests.safety.hostile_plans import WIDE
from tests.safety.moves import Move, MoveKind
from tests.safety.mutations import replaced
from tests.safety.stage import Setting
from tests.safety.stories import Story
from tests.scenarios.rollout_stage import bad_kernel
from tests.simulator.fake_clock import BEGINNING

BEGIN, SEND_BACK = Move(kind=MoveKind.ROLL_OUT, number=1), Move(kind=MoveKind.ROLL_OUT, number=6)
"""The first order of a story begins a rollout, whatever its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSlip:
    """One slip, the guardrail that keeps the same, and the story that shows which rule is then broken."""

    happens: Callable[[], AbstractContextManager[None]]
    story: Story
    breaks: str
    kept_by: tuple[str, ...] = ()


def _counts_no_place() -> AbstractContextManager[None]:
    """Begin anyone who is ready, however many are out."""

    def pick_all(ready: Iterable[FleetNode], _places: Places) -> tuple[NodeName, ...]:
        return tuple(each.node for each in ready)

    return replaced(pick, pick_all)


def _knows_no_window() -> AbstractContextManager[None]:
    """Take every time for one in which nodes may be started."""
    return replaced(calendar_of, lambda *_, **__: (WorkCalendar(windows=None), ()))


def _errs_in_next_move(err: Callable[[NodeStage, NextMove], NextMove]) -> AbstractContextManager[None]:
    return replaced(next_move, lambda way: err(way.node.stage, next_move(way)))


def _waits_for_no_job() -> AbstractContextManager[None]:
    """Continue with a node whose jobs still run."""

    def err(stage: NodeStage, move: NextMove) -> NextMove:
        is_waiting = stage is NodeStage.DRAINING and isinstance(move, Wait)
        return Step(event=NodeEvent.FREE, reason="it will be free soon") if is_waiting else move

    return _errs_in_next_move(err)


def _reads_no_version() -> AbstractContextManager[None]:
    """Believe that what was installed runs."""

    def err(stage: NodeStage, move: NextMove) -> NextMove:
        is_verified = stage is NodeStage.VERIFYING and isinstance(move, Wait)
        return Step(event=NodeEvent.VERIFIED, reason="it lies there") if is_verified else move

    return _errs_in_next_move(err)


def _forgets_who_was_drained() -> AbstractContextManager[None]:
    """Give up a node that was only drained, and leave it as it is."""

    def err(stage: NodeStage, move: NextMove) -> NextMove:
        is_put_back = stage is NodeStage.DRAINING and isinstance(move, Act) and move.action.verb is Verb.RESUME
        return Step(event=NodeEvent.NOT_NOW, reason="somebody will see to it") if is_put_back else move

    return _errs_in_next_move(err)


def _rolled_out(
    *meanwhile: Move,
    pass_count: int,
    fault: ReleaseFault | None = None,
    job_count: int = 1,
    most_out: int = 1,
    window: int | None = None,
) -> Story:
    """Return a story of three nodes and one rollout; `job_count` 2 leaves none of them idle."""
    windows = None if window is None else (_all_day(window),)
    setting = Setting(
        budget=WIDE,
        node_count=3,
        job_count=job_count,
        caps=BlastCaps(max_out_per_partition_ratio=1.0),
        release_fault=fault,
        most_updated_count=most_out,
        windows=windows,
    )
    return story_of(
        BEGIN, PASS, *meanwhile, *(move for _ in range(pass_count) for move in (wait(3), PASS)), setting=setting
    )


def _all_day(days_from_now: int) -> WeeklyWindow:
    day = (BEGINNING.weekday() + days_from_now) % 7
    return WeeklyWindow(name="another day", days=frozenset({day}), begins=time(0), ends=time(0), timezone="UTC")


ROLLOUT_SLIPS: Mapping[str, RolloutSlip] = {
    # The second wave has two nodes, and one may be out.
    "more nodes than rollouts may have out": RolloutSlip(
        happens=_counts_no_place, story=_rolled_out(pass_count=10), breaks="rollout_share", kept_by=("rollout_share",)
    ),
    "an installation under a job": RolloutSlip(
        happens=_waits_for_no_job,
        # What is installed under a job is lost at once: people's, and no longer counted among what rollouts have out.
        story=_rolled_out(pass_count=2, job_count=2, most_out=3),
        breaks="idle_node",
        kept_by=("idle_node",),
    ),
    "a node started outside of every window": RolloutSlip(
        happens=_knows_no_window, story=_rolled_out(pass_count=1, window=3), breaks="window"
    ),
    "a node returned with what it ran before": RolloutSlip(
        happens=_reads_no_version,
        story=_rolled_out(pass_count=8, fault=bad_kernel(ReleaseTrouble.COMES_UP_OLD)),
        breaks="verified",
    ),
    "a node left drained that nobody has": RolloutSlip(
        happens=_forgets_who_was_drained, story=_rolled_out(SEND_BACK, pass_count=2, job_count=2), breaks="ownerless"
    ),
}
"""By what a rollout then does."""
