"""Chances in words: neither sure nor impossible where they are not, and never as high as a limit that they pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.capacity.model import against, chance_of_short, percent


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.0, "0 %"), (0.005, "below 1 %"), (0.0051, "1 %"), (0.1, "10 %"),
        (0.994, "99 %"), (0.995, "above 99 %"), (1.0, "100 %"),
    ],
)  # fmt: skip
def test_what_may_happen_is_neither_called_sure_nor_impossible(ratio: float, said: str) -> None:
    assert percent(ratio) == said


@pytest.mark.parametrize(
    ("probability", "said"),
    [
        (0.0, "at most 1 %"), (0.0099, "at most 1 %"), (0.01, "1 %"), (0.0101, "1 %"), (0.5, "50 %"),
        (0.9899, "99 %"), (0.99, "99 %"), (0.9901, "at least 99 %"), (1.0, "at least 99 %"),
    ],
)  # fmt: skip
def test_a_week_is_never_told_surer_than_a_peak_s_outermost_levels_are(probability: float, said: str) -> None:
    assert chance_of_short(probability) == said


@pytest.mark.parametrize(
    ("ratio", "limit", "said"),
    [
        (0.35, 0.1, "with 35 %, limit 10 %"),
        (0.103, 0.1, "with 10.3 %, limit 10 %"),
        (0.0997, 0.1, "with 9.97 %, limit 10 %"),
        (0.1, 0.1, "with 10 %, limit 10 %"),
        (0.04, 0.025, "with 4 %, limit 2.5 %"),
        (0.003, 0.002, "with 0.3 %, limit 0.2 %"),
        (1.0, 0.1, "with 100 %, limit 10 %"),
    ],
)
def test_a_chance_is_told_with_its_limit(ratio: float, limit: float, said: str) -> None:
    assert against(ratio, limit) == said


@given(thousandths=st.integers(0, 1000), limit=st.integers(1, 99))
def test_what_passes_a_limit_is_told_as_more(thousandths: int, limit: int) -> None:
    told = against(thousandths / 1000, limit / 100)

    chance = 0.5 if "below" in told else 99.5 if "above" in told else float(told.split()[1])
    assert (chance > limit) == (thousandths > 10 * limit)
