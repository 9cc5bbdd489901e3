"""Medians, spreads and excesses over groups, against the plain way of computing them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ops_pipelines.observe.detectors.shared import (
    above_least,
    excess_over_busier,
    group_by,
    group_count,
    group_median,
    most_of_group,
    robust_z,
)

Matrix = NDArray[np.float64]
LABELS = ("a", "b", "a", "c", "b", "a")
COLUMNS = {"a": [0, 2, 5], "b": [1, 4], "c": [3]}
NUMBERS = arrays(np.float64, (4, 6), elements=st.one_of(st.integers(-50, 50).map(float), st.just(float("nan"))))


def test_columns_are_grouped_in_the_order_of_their_first() -> None:
    groups = group_by(LABELS)

    assert groups.index.tolist() == [0, 1, 0, 2, 1, 0]
    assert groups.members.tolist() == [[0, 2, 5], [1, 4, -1], [3, -1, -1]]
    assert groups.sizes.tolist() == [3, 2, 1]
    assert len(group_by(())) == 0


@given(NUMBERS)
def test_a_median_is_that_of_the_samples_that_are_there(
    values: Matrix,
) -> None:
    found = group_median(values, group_by(LABELS))

    for row in range(len(values)):
        for group, columns in enumerate(COLUMNS.values()):
            there = [value for value in values[row, columns] if not np.isnan(value)]
            expected = float(np.median(there)) if there else float("nan")
            assert found[row, group] == pytest.approx(expected, nan_ok=True)


@given(NUMBERS)
def test_counts_are_those_of_each_group(values: Matrix) -> None:
    flags = values > 0

    for labels in (LABELS, ("x",) * 6):
        groups = group_by(labels)
        expected = [[int(flags[row, groups.index == group].sum()) for group in range(len(groups))] for row in range(4)]

        assert group_count(flags, groups).tolist() == expected


def test_peers_that_agree_to_the_last_digit_make_no_outlier_of_noise() -> None:
    values = np.array([[1.0, 1.0, 1.0, 1.001, 9.0]])

    z = robust_z(values, group_by("aaaaa"), least_spread=0.5)

    assert z[0].tolist() == pytest.approx([0, 0, 0, 0.002, 16])


def test_only_peers_that_work_at_least_as_hard_are_a_measure() -> None:
    celsius = np.array([[80.0, 60.0, 61.0, 62.0, 40.0]], np.float32)
    watts = np.array([[500.0, 450.0, 600.0, 700.0, 449.0]], np.float32)
    groups, everyone = group_by("aaaaa"), np.ones((1, 5), dtype=bool)

    def excess(peer_count: int) -> list[float]:
        found = excess_over_busier(
            celsius, work=(watts,), groups=groups, candidates=everyone, slack_ratio=0.1, peer_count=peer_count
        )
        return [float(value) for value in found[0]]

    assert excess(3)[0] == 19  # 80 - median of 60, 61, 62: who draws 449 W does not count
    assert np.isnan(excess(4)[0])
    assert np.isnan(excess(3)[3])  # nobody draws 630 W but itself


@given(NUMBERS)
def test_who_exceeds_peers_exceeds_the_least_of_its_group(
    values: Matrix,
) -> None:
    groups = group_by(LABELS)
    excess = excess_over_busier(
        values, work=(np.ones_like(values),), groups=groups, candidates=np.ones(values.shape, dtype=bool),
        slack_ratio=0, peer_count=1,
    )  # fmt: skip

    assert not ((excess >= 10) & ~above_least(values, groups, limit=10)).any()


def test_most_of_a_group_is_half_of_those_that_are_known() -> None:
    groups = group_by("aaaa")
    flags = np.array([[True, True, False, False], [True, False, False, False], [True, True, True, False]])
    known = np.array([[True] * 4, [True, True, False, False], [True, False, False, False]])

    assert most_of_group(flags, known, groups, least=1).ravel().tolist() == [True, True, True]
    assert most_of_group(flags, known, groups, least=2).ravel().tolist() == [True, False, False]
