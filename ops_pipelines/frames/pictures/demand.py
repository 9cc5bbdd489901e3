"""A picture of one day's demand: for each team what ran, what waited, and what did nothing. Bars are `bar_rows`'."""

from collections.abc import Mapping, Sequence
from datetime import date

from ops_pipelines.frames.pictures.bar_rows import BarRow, Shade, Sheet, small_rows

_SHEET = Sheet(
    title="GPU-hours of a day by team",
    key={Shade.BLUE: "ran", Shade.GREY: "held, and did nothing", Shade.ORANGE: "waited"},
)


def demand_bars(sums: Sequence[Mapping[str, object]], *, day: date) -> str:
    """Return the bars of a day's sums (`frames.demand.daily`), the largest demand first, with a sentence below."""
    if not sums:
        return f"{day}: nobody ran or waited for a GPU, as far as the hours are known."
    ordered = sorted(sums, key=lambda each: (-_hours(each, "demand"), str(each["team"]), str(each["gpu_type"])))
    rows = []
    for each in ordered:
        ran, waited = _hours(each, "running"), _hours(each, "pending")
        idle = min(_hours(each, "wasted"), ran)
        kind = f" {each['gpu_type']}" if each["gpu_type"] else ""
        rows.append(
            BarRow(
                label=f"{each['team']}{kind}",
                parts=((ran - idle, Shade.BLUE), (idle, Shade.GREY), (waited, Shade.ORANGE)),
                number=f"{_hours(each, 'demand'):,.0f}",
            )
        )
    ran, waited = (sum(_hours(each, name) for each in sums) for name in ("running", "pending"))
    told = f"{ran:,.0f} GPU-hours ran (blue; grey: did nothing), {waited:,.0f} waited (orange)"
    return small_rows(rows, sheet=_SHEET, words=f"{day}: {told}; beside the name: wanted")


def _hours(row: Mapping[str, object], name: str) -> float:
    amount = row[f"{name}_gpu_hours"]
    return float(amount) if isinstance(amount, int | float) else 0.0
