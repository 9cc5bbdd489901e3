"""A bar a team: what it used within its guarantee and beyond, what its new quota leaves free, what it wants in vain.

Where nobody knows what a team used, its quota is grey: it is not shown as free. Types of GPU stand one after another.
"""

from collections.abc import Mapping, Sequence

from ops_pipelines.core.proposal import GpuType, ProposedQuota, TeamName
from ops_pipelines.frames.pictures.bar_rows import BarRow, Shade, Sheet, large_rows, small_rows

_KEY = {
    Shade.BLUE: "used within its guarantee",
    Shade.SKY: "used beyond it",
    Shade.PALE: "free in the new quota",
    Shade.GREY: "use not known",
    Shade.ORANGE: "wanted beyond the new quota",
}
_WORDS = "blue: used, guaranteed · sky: used beyond · pale: free · grey: use not known · orange: wanted in vain"


def draw_quotas(lines: Sequence[ProposedQuota], *, used: Mapping[tuple[TeamName, GpuType], float]) -> tuple[str, str]:
    """Return the picture as Markdown, small and large: by type, the largest quotas first.

    Who is not in `used`, of that nobody knows what it used.
    """
    ordered = sorted(lines, key=lambda each: (each.gpu_type, -max(each.after, each.wanted_mean), each.team))
    rows = [_row(each, used=used.get((each.team, each.gpu_type))) for each in ordered]
    sheet = Sheet(title="Quotas proposed, used and wanted", key=_KEY)
    return small_rows(rows, sheet=sheet, words=_WORDS), large_rows(rows, sheet=sheet, words=_WORDS)


def _row(line: ProposedQuota, *, used: float | None) -> BarRow:
    label = f"{line.gpu_type} {line.team}" if line.gpu_type else str(line.team)
    held, parts = _held(line, used)
    return BarRow(
        label=label,
        parts=(*parts, (max(0.0, line.wanted_mean - max(held, float(line.after))), Shade.ORANGE)),
        number=f"{line.before:g} to {line.after}",
    )


def _held(line: ProposedQuota, used: float | None) -> tuple[float, tuple[tuple[float, Shade], ...]]:
    """Return how long the bar is before what is wanted in vain, and its parts."""
    if used is None:
        return line.after, ((float(line.after), Shade.GREY),)
    within = min(used, line.guarantee)
    beyond = max(0.0, min(used, float(max(line.after, line.guarantee))) - within)
    free = max(0.0, line.after - within - beyond)
    return within + beyond, ((within, Shade.BLUE), (beyond, Shade.SKY), (free, Shade.PALE))
