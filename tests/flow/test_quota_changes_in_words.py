"""The changes of a proposal in a few words: the largest first, none lost, within what the UI shows at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.proposal import GpuType, ProposedQuota, TeamName
from ops_pipelines.quotas.changes import list_changes

INLINE = 890


def line(team: str, before: int, after: int, *, reason: str = "it waits", gpu_type: str = "") -> ProposedQuota:
    return ProposedQuota(
        team=TeamName(team),
        gpu_type=GpuType(gpu_type),
        limit=before,
        before=float(before),
        after=after,
        guarantee=0.0,
        most=1e9,
        floor=0.0,
        ran_last=0.0,
        wanted_mean=0.0,
        debt=0.0,
        reason=reason,
        counterfactual="",
    )


def test_each_change_is_a_line_the_largest_first() -> None:
    said = list_changes(
        [line("a", 8, 8), line("b", 16, 8, gpu_type="h100"), line("science", 80, 104)], most_chars=INLINE
    )

    assert said.splitlines() == ["- **science** 80 → 104: it waits", "- **b** h100 16 → 8: it waits"]


def test_without_a_change_it_says_so() -> None:
    assert list_changes([line("a", 8, 8)], most_chars=INLINE) == "no quota changes"


def test_words_of_others_stay_words() -> None:
    said = list_changes([line("*a*](http://x)\n# <b>", 8, 9, reason="<script>\n- **x**")], most_chars=INLINE)

    assert len(said.splitlines()) == 1
    assert "<b>" not in said
    assert "<script>" not in said
    assert r"a\*\](http\:" in said


@pytest.mark.parametrize("count", [1, 2, 40, 200])
def test_what_does_not_fit_is_counted(count: int) -> None:
    said = list_changes([line(f"team{each:03}", 8, 9, reason="x" * 900) for each in range(count)], most_chars=INLINE)

    shown = [each for each in said.splitlines() if "→" in each]
    assert len(said) < INLINE
    rest = count - len(shown)
    assert (f"- and {rest} more: see `why`" in said) is bool(rest)


@given(
    moves=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 300)), max_size=30),
    most_chars=st.integers(250, 900),
)
def test_no_change_is_lost_whatever_the_room(moves: list[tuple[int, int, int]], most_chars: int) -> None:
    lines = [line(f"t{number}", *ends, reason="w" * size) for number, (*ends, size) in enumerate(moves)]
    said = list_changes(lines, most_chars=most_chars).splitlines()

    shown = sum("→" in each for each in said)
    rest = int(said[-1].split()[2]) if "more: see" in said[-1] else 0
    assert shown + rest == sum(before != after for before, after, _ in moves)
    assert len("\n".join(said)) < most_chars
