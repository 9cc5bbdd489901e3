"""The shift report as the UI shows it: the longest hand-over still fits in place."""

from datetime import UTC, datetime, timedelta

from ops_pipelines.assets.reports import as_markdown
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.review.shift import IncidentLine, ShiftReport

_UNTIL = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)
_SHOWN_IN_PLACE = 890
"""Longer Markdown becomes a link in the Dagster UI (892 characters were shown, 1,044 not)."""


def lines(count: int) -> tuple[IncidentLine, ...]:
    return tuple(
        IncidentLine(
            incident=f"INC-{number:04d}",
            state=IncidentState.ESCALATED,
            where="gpu0001, gpu0002, gpu0003, gpu0004 and 36 more",
            what="Xid 79 (GPU_OFF_THE_BUS) on GPU 0000:61:00: the GPU no longer answers on PCIe",
            did="drain, hold, fence, exclude, release, reboot",
            jobs_moved_count=1,
            open_for=timedelta(seconds=12_345),
            note="a person was paged",
        )
        for number in range(count)
    )


def report(count: int) -> ShiftReport:
    return ShiftReport(
        since=_UNTIL - timedelta(hours=8),
        until=_UNTIL,
        needs_human=lines(count),
        under_way=lines(count),
        healed=lines(count),
        told_owner=lines(count),
        merged_count=count,
        cleared_count=count,
        nodes_by_state={"allocated": 9_000, "down": 100, "drained": 100, "idle": 500, "mixed": 200, "unreachable": 100},
        jobs_by_state={"pending": 3_000, "running": 4_000},
        action_count_by_verb={"drain": count},
        failed_action_count=count,
        mean_time_to_heal=timedelta(seconds=1_234) if count else None,
    )


def test_the_longest_hand_over_is_shown_in_place() -> None:
    assert len(as_markdown(report(40), "production-cluster")) <= _SHOWN_IN_PLACE


def test_a_quiet_shift_says_so() -> None:
    text = as_markdown(report(0), "demo")

    assert "**Needs you**: nothing." in text
    assert "**Healed**: nothing broke." in text
    assert "mean time to heal" not in text


def test_what_needs_a_human_comes_first() -> None:
    text = as_markdown(report(1), "demo")

    assert text.index("Needs you") < text.index("INC-0000") < text.index("Under way") < text.index("Healed")
    assert "more\n" not in text.replace("36 more", "")


def test_what_does_not_fit_is_counted() -> None:
    assert "- and 39 more" in as_markdown(report(40), "production-cluster")
