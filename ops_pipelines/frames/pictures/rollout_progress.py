"""A picture of rollouts: waves as bars, each node of a wave as a part in the colour of where it stands.

Says what the bars are of; drawing them is `bar_rows`'.
"""

from collections.abc import Sequence
from dataclasses import replace

from ops_pipelines.core.rollout import IN_HAND, Direction, NodeStage, Rollout, RolloutNode
from ops_pipelines.domain.returning.repair_text import escape_markdown
from ops_pipelines.frames.pictures.bar_rows import BarRow, Shade, Sheet, large_rows, small_rows

_SHEET = Sheet(
    title="rollout: waves, and where their nodes stand",
    key={
        Shade.GREEN: "updated",
        Shade.SKY: "soaks",
        Shade.BLUE: "in hand",
        Shade.YELLOW: "back",
        Shade.ORANGE: "failed",
        Shade.PINK: "left out",
        Shade.GREY: "to come",
    },
)
_ORDER = tuple(_SHEET.key)
_SMALL_LETTERS = 16
"""Of a number that stands beside a small bar and its wave's name; a longer one says how many are updated."""
_AT_WORK = frozenset({Shade.GREEN, Shade.SKY})


def progress_rows(rollout: Rollout, nodes: Sequence[RolloutNode]) -> tuple[BarRow, ...]:
    """Return a bar a wave, as long as it has nodes."""
    rows = []
    for wave in rollout.waves:
        shades = [_shade_of(each) for each in nodes if each.wave == wave.number]
        counts = {shade: shades.count(shade) for shade in _ORDER}
        kind = "deciding" if wave.is_deciding else "canary" if wave.is_canary else ""
        rows.append(
            BarRow(
                label=f"wave {wave.number} {kind}".rstrip(),
                parts=tuple((float(count), shade) for shade, count in counts.items()),
                number=", ".join(f"{count} {_SHEET.key[shade]}" for shade, count in counts.items() if count),
            )
        )
    return tuple(rows)


def picture_of_progress(rollout: Rollout, nodes: Sequence[RolloutNode]) -> tuple[str, str]:
    """Return the picture of one rollout as Markdown: small enough to be shown in place, and large."""
    rows = progress_rows(rollout, nodes)
    words = escape_markdown(f"{rollout.rollout} {rollout.release}: {rollout.state.value.replace('_', ' ')}")
    small = tuple(_small(wave.number, row) for wave, row in zip(rollout.waves, rows, strict=True))
    return small_rows(small, sheet=_SHEET, words=words), large_rows(rows, sheet=_SHEET, words=words)


def _small(wave: int, row: BarRow) -> BarRow:
    """Return the same row with few enough letters to stand beside a small bar."""
    at_work = sum(count for count, shade in row.parts if shade in _AT_WORK)
    short = f"{at_work:g} of {sum(count for count, _ in row.parts):g}"
    return replace(row, label=f"wave {wave}", number=row.number if len(row.number) <= _SMALL_LETTERS else short)


def _shade_of(node: RolloutNode) -> Shade:
    if node.stage in (NodeStage.PULLED, NodeStage.LOST):
        return Shade.ORANGE
    if node.stage is NodeStage.BACK or (node.stage in IN_HAND and node.direction is Direction.BACK):
        return Shade.YELLOW
    return {
        NodeStage.UPDATED: Shade.GREEN,
        NodeStage.SOAKING: Shade.SKY,
        NodeStage.PENDING: Shade.GREY,
        NodeStage.SKIPPED: Shade.PINK,
    }.get(node.stage, Shade.BLUE)
