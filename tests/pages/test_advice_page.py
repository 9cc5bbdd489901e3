"""The page of advice: by team, the largest gain first, with what became of it; subjects of users stay text."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ops_pipelines.core.periods import parse_week
from ops_pipelines.efficiency.week import AdviceRow, advice_document
from ops_pipelines.report.html import page_of

END = datetime(2026, 11, 23, tzinfo=UTC)
EVIL = '"><script>alert(1)</script> **bold** \u202e'


def row(team: str = "vision", *, gain: float = 120.0, **changes: object) -> AdviceRow:
    known = AdviceRow(
        team=team, kind="input_stall", subject="ada/resnet_#", withheld_because=None, told_at=END,
        evidence="its GPUs waited for data in 61 % of 60 hours; 12 % of its reads took above 50 ms",
        counter_evidence="in 4 of the hours the file system was slow for everybody",
        what_to_do="more loader workers, or the data on local disks", confidence="high", gain_low_gpu_hours=gain / 2,
        gain_gpu_hours=gain, gain_cents=34_500, gain_bytes=0.0, followed=None, saved_gpu_hours=None,
    )  # fmt: skip
    return replace(known, **changes)  # type: ignore[arg-type]  # values are of a test


def page(*rows: AdviceRow, currency: str | None = "EUR", not_known: Sequence[str] = (), now: datetime = END) -> str:
    return page_of(
        advice_document(
            rows, cluster="small", week=parse_week("2026-W47"), weeks=["2026-W47", "2026-W46"],
            currency=currency, not_known=not_known, now=now,
        )
    )  # fmt: skip


def test_teams_stand_by_their_gain() -> None:
    shown = page(row("small", gain=10), row("large", gain=500), row("middle", gain=90))

    places = [shown.index(f"<bdi>{team}</bdi>") for team in ("large", "middle", "small")]
    assert places == sorted(places)


def test_each_item_says_what_was_seen_what_speaks_against_it_the_gain_and_what_to_do() -> None:
    shown = page(row())

    for words in ("61 % of 60 hours", "slow for everybody", "60.0 to 120.0 GPU-hours a week, about 345 EUR", "loader"):
        assert words in shown


def test_without_prices_no_money_is_shown() -> None:
    assert "345" not in page(row(), currency=None)


@pytest.mark.parametrize(
    ("followed", "said"),
    [
        ("followed", "it saved 99.0 GPU-hours"),
        ("not_followed", "not followed"),
        ("not_run_again", "did not run again"),
        ("unknown", "was not measured"),
        ("of a newer version", "of a newer version"),
    ],
)
def test_what_became_of_it_is_said(followed: str, said: str) -> None:
    assert said in page(row(followed=followed, saved_gpu_hours=99.0))


def test_what_was_not_told_is_not_counted_as_told() -> None:
    shown = page(row(told_at=None, followed=None))

    assert "teams notified: 0" in shown
    assert "not reported" in shown


def test_what_is_withheld_is_counted_by_reason_and_not_shown_as_advice() -> None:
    quiet = row("quiet", withheld_because="the gain is below 20 GPU-hours")

    shown = page(row(), quiet, quiet)

    assert "2 \u00d7 the gain is below 20 GPU-hours" in shown
    assert "<bdi>quiet</bdi>" not in shown


def test_storage_is_told_in_bytes() -> None:
    assert "2.0 TiB of storage, once" in page(row(kind="unused_datasets", gain=0, gain_bytes=2.0 * 2**40))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (END - timedelta(seconds=1), "it is not over"),
        (END, "nothing was seen"),
        (END + timedelta(days=9), "nobody looked"),
    ],
)
def test_a_week_without_rows_says_what_fills_it(now: datetime, said: str) -> None:
    shown = page(now=now)

    assert said in shown
    assert "advise_teams" in shown


def test_what_is_not_known_is_said() -> None:
    assert "no advice.storage_listing" in page(not_known=["policy.yaml names no advice.storage_listing"])


def test_words_of_users_stay_short_text() -> None:
    long = EVIL + "x" * 10_000

    shown = page(
        row(long, subject=long, evidence=long, counter_evidence=long, what_to_do=long, kind=long, followed=long)
    )

    assert "<script>" not in shown
    assert "\u202e" not in shown
    assert len(shown) < 20_000
