"""What became of the time that jobs requested: the parts add up, weeks add up, and edges cut."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.review.job_runs import Break, Cause, Stint, find_breaks
from ops_pipelines.review.week_acts import ASSUMED_RESTART, WorkSum, sum_work

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
HOUR = timedelta(hours=1)
WEEK = timedelta(days=7)


def stint(begin: float, end: float | None, state: str = "NODE_FAIL", *, job: str = "1", gpus: int = 1) -> Stint:
    """Return an attempt between hours after Monday."""
    return Stint(
        job=job,
        team="alpha",
        started_at=MONDAY + begin * HOUR,
        ended_at=None if end is None else MONDAY + end * HOUR,
        seen_until=MONDAY + WEEK if end is None else None,
        state=state,
        gpu_count=gpus,
    )


def broken(
    of: Stint,
    resumed: float | None = None,
    *,
    saved: float | None = None,
    restart: float | None = None,
    cause: Cause = Cause.HARDWARE,
    waits_on: bool = False,
) -> Break:
    assert of.ended_at is not None
    return Break(
        stint=of,
        ended_at=of.ended_at,
        cause=cause,
        resumed_at=None if resumed is None else MONDAY + resumed * HOUR,
        waits_from=None if resumed is None else of.ended_at,
        checkpointed_at=None if saved is None else MONDAY + saved * HOUR,
        restart=None if restart is None else restart * HOUR,
        waits_on=waits_on,
    )


def work(*stints: Stint, breaks: tuple[Break, ...] = (), since: float = 0, until: float = 168) -> WorkSum:
    return sum_work(stints, breaks, since=MONDAY + since * HOUR, until=MONDAY + until * HOUR).total


def parts(found: WorkSum) -> tuple[float, float, float, float, float]:
    return tuple(round(each, 6) for each in (found.productive, found.lost, found.restart, found.queue, found.unknown))  # type: ignore[return-value]  # five numbers


@pytest.mark.parametrize(
    ("until", "expected"),
    [
        pytest.param(9, (9, 0, 0, 0, 0), id="what is lost later was productive so far"),
        pytest.param(10, (9, 1, 0, 0, 0), id="at its end"),
        pytest.param(11, (9, 1, 0, 1, 0), id="within the wait"),
        pytest.param(12, (9, 1, 0, 2, 0), id="at the next start"),
        pytest.param(12.25, (9, 1, 0.25, 2, 0), id="within the restart"),
        pytest.param(20, (16.5, 1, 0.5, 2, 0), id="whole"),
    ],
)
def test_an_interruption_is_cut_at_the_edge(until: float, expected: tuple[float, ...]) -> None:
    first, second = stint(0, 10), stint(12, 20, "COMPLETED")
    each = broken(first, 12, saved=9, restart=0.5)

    assert parts(work(first, second, breaks=(each,), until=until)) == expected


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        pytest.param(-1, (0, 10, 0, 0, 0), id="before it began: all of it"),
        pytest.param(0, (0, 10, 0, 0, 0), id="at its start"),
        pytest.param(10, (10, 0, 0, 0, 0), id="at its end"),
        pytest.param(None, (0, 0, 0, 0, 10), id="not known: neither lost nor productive"),
    ],
)
def test_what_is_lost_is_since_the_checkpoint(saved: float | None, expected: tuple[float, ...]) -> None:
    first = stint(0, 10)

    assert parts(work(first, breaks=(broken(first, saved=saved),))) == expected


def test_a_restart_that_nobody_saw_is_not_known() -> None:
    first, second = stint(0, 10), stint(10, 20, "COMPLETED")

    found = work(first, second, breaks=(broken(first, 10, saved=10),))

    assert found.unknown == pytest.approx(ASSUMED_RESTART / HOUR)
    assert found.unknown_break_count == 1
    assert found.effective_ratio == pytest.approx(found.low_ratio)
    assert found.low_ratio == pytest.approx(1 - ASSUMED_RESTART / HOUR / 20)
    assert found.high_ratio == 1.0


def test_a_job_that_runs_through_and_one_that_waits_on() -> None:
    through = stint(-100, None, "")
    waits = stint(0, 160, job="2")

    assert parts(work(through)) == (168, 0, 0, 0, 0)
    assert parts(work(waits, breaks=(broken(waits, saved=160, waits_on=True),))) == (160, 0, 0, 8, 0)
    # Nobody knows that it meant to continue.
    assert parts(work(waits, breaks=(broken(waits, saved=160),))) == (160, 0, 0, 0, 0)


def test_attempts_that_overlap_count_once_and_cpu_jobs_weigh_nothing() -> None:
    assert work(stint(0, 10, "COMPLETED"), stint(5, 15, "COMPLETED")).wanted == pytest.approx(15)
    assert work(stint(0, 10, gpus=0)).wanted == 0


@st.composite
def lives(draw: st.DrawFn) -> tuple[tuple[Stint, ...], tuple[Break, ...]]:
    """Draw jobs of attempts that follow each other, with what is known of each interruption."""
    stints: list[Stint] = []
    breaks: list[Break] = []
    for job in range(draw(st.integers(0, 3))):
        at = draw(st.floats(-50, 150))
        gpus = draw(st.integers(0, 16))
        count = draw(st.integers(1, 4))
        own: list[Stint] = []
        for _ in range(count):
            length, gap = draw(st.floats(0, 60)), draw(st.floats(0, 10))
            own.append(stint(at, at + length, job=str(job), gpus=gpus))
            at += length + gap
        stints += own
        for number, each in enumerate(own[:-1] if draw(st.booleans()) else own):
            following = own[number + 1] if number + 1 < len(own) else None
            begin = (each.started_at - MONDAY) / HOUR
            breaks.append(
                broken(
                    each,
                    None if following is None else (following.started_at - MONDAY) / HOUR,
                    saved=draw(st.none() | st.floats(begin - 5, begin + 70)),
                    restart=None if following is None else draw(st.none() | st.floats(0, 2)),
                    cause=draw(st.sampled_from(Cause)),
                    waits_on=following is None and draw(st.booleans()),
                )
            )
    return tuple(stints), tuple(breaks)


@settings(max_examples=60, deadline=None)
@given(lives())
def test_the_parts_add_up_and_no_ratio_leaves_its_bounds(life: tuple[tuple[Stint, ...], tuple[Break, ...]]) -> None:
    stints, breaks = life
    found = sum_work(stints, breaks, since=MONDAY, until=MONDAY + WEEK)
    total = found.total

    assert min(total.productive, total.lost, total.restart, total.queue, total.unknown) >= -1e-6
    assert sum(found.by_cause.values()) == pytest.approx(total.lost + total.restart + total.queue, abs=1e-6)
    if total.low_ratio is not None and total.high_ratio is not None:
        assert -1e-9 <= total.low_ratio <= total.high_ratio <= 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(lives(), st.integers(1, 167))
def test_two_halves_want_what_the_whole_wants(life: tuple[tuple[Stint, ...], tuple[Break, ...]], cut: int) -> None:
    stints, breaks = life
    middle = MONDAY + cut * HOUR

    whole = sum_work(stints, breaks, since=MONDAY, until=MONDAY + WEEK).total
    left = sum_work(stints, breaks, since=MONDAY, until=middle).total
    right = sum_work(stints, breaks, since=middle, until=MONDAY + WEEK).total

    for name in ("productive", "lost", "restart", "queue", "unknown", "break_count"):
        both = getattr(left, name) + getattr(right, name)
        assert both == pytest.approx(getattr(whole, name), abs=1e-6), name


def test_a_hold_of_somebody_else_is_no_wait_of_the_cluster_and_ours_is() -> None:
    first = stint(0, 10)
    later = Stint(
        job="1", team="alpha", started_at=MONDAY + 20 * HOUR, ended_at=None, eligible_at=MONDAY + 19 * HOUR, gpu_count=1
    )

    def waits_from(cause: Cause) -> datetime | None:
        (found,) = find_breaks((first, later), blame=lambda _: (cause, ""), hold_off=timedelta(minutes=3))
        return found.waits_from

    assert waits_from(Cause.HARDWARE) == MONDAY + 19 * HOUR
    assert waits_from(Cause.OURS) == MONDAY + 10 * HOUR
