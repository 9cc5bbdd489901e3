"""Versions as rows of an inventory and as a picture: one node of a thousand that drifts is seen."""

import base64
import re
import struct
from datetime import UTC, datetime

import pytest

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.release import Component
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.report.pictures.bars import INLINE_AT_MOST
from ops_pipelines.rollouts.past_rows import inventory_versions
from ops_pipelines.rollouts.pictures import picture_of_versions
from ops_pipelines.rollouts.versions import Fit, SeenVersion, VersionLine
from tests.domain.builders import NOW, node_names

AT = datetime(2026, 11, 21, 7, tzinfo=UTC)
ONE = NodeName("gpu001")


def lines(count: int, *, drifting: int | None = None, models: int = 1) -> list[VersionLine]:
    return [
        VersionLine(
            node=name,
            model=f"model {place % models}",
            component=component,
            seen=SeenVersion(version="1", seen_at=NOW, is_live=True),
            wanted=None,
            fit=Fit.DRIFTS if place == drifting and component is Component.DRIVER else Fit.FITS,
        )
        for place, name in enumerate(node_names(count))
        for component in (Component.DRIVER, Component.BIOS, Component.KERNEL)
    ]


def image(markdown: str) -> bytes:
    found = re.search(r"base64,([^)]+)\)", markdown)
    assert found is not None
    return base64.b64decode(found[1])


def size(png: bytes) -> tuple[int, int]:
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize("place", [0, 499, 999])
def test_one_of_a_thousand_nodes_that_drifts_is_seen_in_both_pictures(place: int) -> None:
    small, large = picture_of_versions(lines(1000, drifting=place))

    for markdown in (small, large):
        quiet = picture_of_versions(lines(1000))[markdown is large]
        assert image(markdown) != image(quiet)
        assert "1000 nodes; other versions than they should have: driver on 1" in markdown


@pytest.mark.parametrize("count", [1, 2, 7, 64, 1000, 1500])
def test_small_picture_is_shown_in_place_and_the_large_one_fits_a_page(count: int) -> None:
    small, large = picture_of_versions(lines(count, drifting=count // 2, models=3))

    assert len(small) < INLINE_AT_MOST
    assert "base64" in small
    assert size(image(large))[0] < 1400


def test_without_lines_there_are_words_alone() -> None:
    assert picture_of_versions([]) == ("0 nodes, no drift", "0 nodes, no drift")


def test_hostile_names_stay_text() -> None:
    odd = [
        VersionLine(
            node=NodeName("<script>" * 9),
            model="](http://x)" * 9,
            component=Component.DRIVER,
            seen=None,
            wanted=None,
            fit=Fit.FREE,
        )
    ]

    for markdown in picture_of_versions(odd):
        assert "script" not in markdown
        assert "http" not in markdown


def test_inventory_tells_versions_of_nodes_and_their_parts() -> None:
    rows = TABLES["inventory"].from_rows(
        [
            {"node": ONE, "device": "", "time": AT, "kind": "node", "kernel_version": "6.8.0-60-generic"},
            {"node": ONE, "device": "GPU-1", "time": AT, "kind": "gpu", "driver_version": "580.1", "model": "H100"},
            {"node": ONE, "device": "GPU-2", "time": AT, "kind": "gpu", "driver_version": "570.1", "model": "H100"},
            {"node": ONE, "device": "mlx5_0", "time": AT, "kind": "nic", "firmware_version": "28.1", "model": "MT4129"},
            {"node": ONE, "device": "psu0", "time": AT, "kind": "psu", "firmware_version": "7"},
            {"node": "", "device": "switch", "time": AT, "kind": "switch", "firmware_version": "31.2"},
        ]
    )

    found = inventory_versions(rows)

    assert {spot: each.version for spot, each in found.seen.items()} == {
        (ONE, Component.KERNEL): "6.8.0-60-generic",
        (ONE, Component.DRIVER): "570.1 / 580.1",
        (ONE, Component.NIC_FIRMWARE): "28.1",
    }
    assert found.models == {(ONE, Component.GPU_VBIOS): {"H100"}, (ONE, Component.NIC_FIRMWARE): {"MT4129"}}
    assert all(each.seen_at == AT and not each.is_live for each in found.seen.values())


def test_empty_inventory_tells_nothing() -> None:
    assert inventory_versions(TABLES["inventory"].from_rows([])).seen == {}
