"""A picture of a rollout's plan as Markdown: small, a bar a wave; large, a row a node over windows and freezes.

Knows the plan, not how it came about. Drawing the large one is `rollout_plan_png`'s.
"""

from base64 import b64encode
from collections.abc import Mapping

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.periods import WorkCalendar
from ops_pipelines.core.rollout import RolloutPlan
from ops_pipelines.domain.returning.repair_text import escape_markdown
from ops_pipelines.frames.pictures.bar_rows import BarRow, Shade, Sheet, small_rows
from ops_pipelines.frames.pictures.rollout_plan_png import plan_axis, plan_png

_TITLE = "plan: nodes x time"
_SMALL = Sheet(title="plan: waves x time", key={Shade.BLUE: "updated", Shade.PALE: "soaks"})


def picture_of_plan(plan: RolloutPlan, calendar: WorkCalendar, *, racks: Mapping[NodeName, str]) -> tuple[str, str]:
    """Return the picture of a plan as Markdown: small enough to be shown in place, and large."""
    words = _words(plan)
    if not plan.visits:
        return words, words
    image = b64encode(plan_png(plan, calendar, racks=racks)).decode()
    return small_rows(_wave_rows(plan), sheet=_SMALL, words=words), (
        f"![{_TITLE}](data:image/png;base64,{image})\n\n{words}"
    )


def _wave_rows(plan: RolloutPlan) -> tuple[BarRow, ...]:
    """Return a bar a wave: from its first drain to its last return, and its soak."""
    axis, rows = plan_axis(plan), []
    for wave in plan.waves:
        visits = [each for each in plan.visits if each.wave == wave.number]
        parts: tuple[tuple[float, Shade], ...] = ()
        if visits:
            first = axis.across(min(each.drained_at for each in visits))
            last = axis.across(max(each.ends_at for each in visits))
            until = last if wave.planned_until is None else axis.across(wave.planned_until)
            parts = ((first, Shade.NONE), (last - first, Shade.BLUE), (until - last, Shade.PALE))
        rows.append(BarRow(label=f"wave {wave.number}:", parts=parts, number=f"{len(wave.nodes):,}"))
    return tuple(rows)


def _words(plan: RolloutPlan) -> str:
    count = sum(len(wave.nodes) for wave in plan.waves)
    ends = "no end foreseen" if plan.finishes_at is None else f"ends {plan.finishes_at:%Y-%m-%d %H:%M} UTC"
    left = count - len(plan.visits)
    return " · ".join(
        [
            f"{escape_markdown(plan.release)}: {_counted(count, 'node')} in {_counted(len(plan.waves), 'wave')}",
            f"begins {plan.starts_at:%Y-%m-%d %H:%M} UTC, {ends}",
            f"{plan.lost_gpu_hours:,.0f} GPU-hours lost",
            *(["dark: updated, pale: soaks"] if plan.visits else []),
            *([f"{left:,} without a foreseen time"] if left else []),
            *([f"{len(plan.skipped):,} left out"] if plan.skipped else []),
        ]
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
