"""The picture of proposed quotas: what is not known is not shown as free, and every bar can be named."""

from base64 import b64decode

import pytest

from ops_pipelines.core.proposal import GpuType, TeamName
from ops_pipelines.report.document import Shade
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST, _row, draw_quotas
from tests.pages.quota_samples import H100, line


@pytest.mark.parametrize(
    ("used", "parts"),
    [
        (None, {Shade.GREY: 40.0, Shade.ORANGE: 5.0}),
        (0.0, {Shade.PALE: 40.0, Shade.ORANGE: 5.0}),
        (24.0, {Shade.BLUE: 24.0, Shade.PALE: 16.0, Shade.ORANGE: 5.0}),
        (25.0, {Shade.BLUE: 24.0, Shade.SKY: 1.0, Shade.PALE: 15.0, Shade.ORANGE: 5.0}),
        (99.0, {Shade.BLUE: 24.0, Shade.SKY: 16.0, Shade.ORANGE: 5.0}),
    ],
)
def test_a_quota_whose_use_nobody_knows_is_not_shown_as_free(used: float | None, parts: dict[Shade, float]) -> None:
    row = _row(line(before=32, after=40, guarantee=24, wanted=45), used=used)

    assert {shade: length for length, shade in row.parts if length} == parts


@pytest.mark.parametrize("count", [1, 6, 16])
def test_up_to_sixteen_teams_are_all_named_in_the_small_picture(count: int) -> None:
    lines = [line(f"team-number-{number:02d}") for number in range(count)]

    small, large = draw_quotas(lines, used={(each.team, H100): 20.0 for each in lines})

    assert len(small) < INLINE_AT_MOST
    assert "more not drawn" not in small
    if count > 1:
        assert all(f"team-number-{number:02d}" in small for number in range(count))
    assert large.startswith("![Quotas proposed, used and requested](data:image/png")


def test_types_of_gpu_stand_one_after_another() -> None:
    types = {"a": ("h100", 8), "b": ("a100", 80)}
    lines = [
        line(f"{team}{number}", kind=GpuType(kind), after=least + number, wanted=0)
        for number in range(6)
        for team, (kind, least) in types.items()
    ]

    small, _ = draw_quotas(lines, used={(TeamName("a0"), GpuType("h100")): 1.0})

    small = b64decode(small.partition("base64,")[2].partition(")")[0]).decode()
    assert small.index("a100 b5") < small.index("a100 b0")
    assert small.index("a100 b0") < small.index("h100 a5")
