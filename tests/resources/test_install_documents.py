"""What goes to a node for an installation, and what comes back: whole, or not believed."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops_pipelines.core.release import Artifact, Component
from ops_pipelines.core.rollout import Direction, InstallReport, InstallState
from ops_pipelines.resources.fleet.documents import (
    MOST_ORDER_CHARACTERS,
    PlainChange,
    PlainOrder,
    order_from_word,
    order_to_dict,
    order_to_word,
    report_from_json,
    report_to_json,
    versions_from_json,
    versions_to_json,
)
from tests.resources.install_orders import KEY, NODE, OTHER_KEY, OTHER_NODE, SHA256

VERSIONS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.+:~_-]{0,63}", fullmatch=True)
CHANGES = st.builds(
    PlainChange,
    component=st.sampled_from(Component),
    version=VERSIONS,
    words=st.lists(st.text(max_size=30), min_size=1, max_size=5).map(tuple),
    artifact=st.none() | st.builds(Artifact, name=st.text(max_size=20), sha256=st.just(SHA256), location=st.just("/x")),
)
ORDERS = st.builds(
    PlainOrder,
    node=st.just(NODE),
    key=st.just(KEY),
    direction=st.sampled_from(Direction),
    changes=st.lists(CHANGES, min_size=1, max_size=4).map(tuple),
)
PLAIN = PlainOrder(
    node=NODE,
    key=KEY,
    direction=Direction.FORWARD,
    changes=(PlainChange(component=Component.DRIVER, version="580.126.20", words=("true",)),),
)
REPORT = InstallReport(
    key=KEY,
    node=NODE,
    state=InstallState.RUNNING,
    said="<b>`$(reboot)`</b>",
    progress_ratio=0.5,
    changed_at=datetime(2026, 11, 22, 3, tzinfo=UTC),
)


@given(ORDERS)
def test_an_order_is_one_word_that_no_shell_reads_and_comes_back_as_it_was(order: PlainOrder) -> None:
    word = order_to_word(order)

    assert re.fullmatch(r"[A-Za-z0-9_-]+", word)
    assert order_from_word(word) == order


@pytest.mark.parametrize("excess", [0, 1])
def test_an_order_fits_into_one_word_or_is_none(excess: int) -> None:
    def sized(length: int) -> PlainOrder:
        words = (*("y" * 8000 for _ in range(9)), "z" * length)
        change = PlainChange(component=Component.DRIVER, version="1", words=words)
        return PlainOrder(node=NODE, key=KEY, direction=Direction.FORWARD, changes=(change,))

    left = (MOST_ORDER_CHARACTERS - len(_word(sized(1)))) * 3 // 4
    room = next(size for size in range(left + 8, 0, -1) if len(_word(sized(size))) <= MOST_ORDER_CHARACTERS)

    if excess:
        with pytest.raises(ValueError, match="characters as a word"):
            order_to_word(sized(room + excess))
    else:
        assert len(order_to_word(sized(room))) <= MOST_ORDER_CHARACTERS


def _word(order: PlainOrder) -> str:
    text = json.dumps(order_to_dict(order), separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"node": "gpu003;reboot"}, id="no node"),
        pytest.param({"key": "../../x"}, id="no key"),
        pytest.param({"direction": "sideways"}, id="no direction"),
        pytest.param({"changes": []}, id="nothing to do"),
        pytest.param({"more": 1}, id="something unknown"),
        pytest.param(
            {"changes": [{"component": "driver", "version": "580", "words": [], "artifact": None}]}, id="mute"
        ),
        pytest.param(
            {"changes": [{"component": "driver", "version": "$(id)", "words": ["x"], "artifact": None}]}, id="version"
        ),
        pytest.param(
            {"changes": [{"component": "engine", "version": "1", "words": ["x"], "artifact": None}]}, id="component"
        ),
        pytest.param(
            {
                "changes": [
                    {
                        "component": "driver",
                        "version": "1",
                        "words": ["x"],
                        "artifact": {"name": "a", "sha256": "0", "location": "/x"},
                    }
                ]
            },
            id="hash",
        ),
    ],
)
def test_an_order_that_makes_no_sense_is_none(changes: Mapping[str, object]) -> None:
    text = json.dumps({**order_to_dict(PLAIN), **changes})

    with pytest.raises(ValueError):
        order_from_word(base64.urlsafe_b64encode(text.encode()).decode().rstrip("="))


@pytest.mark.parametrize("word", ["", "a", "$(reboot)", "e30=", "AAAA", "-" * 40, "é"])
def test_a_word_that_is_no_order_is_refused(word: str) -> None:
    with pytest.raises(ValueError):
        order_from_word(word)


def test_a_report_comes_back_as_it_was() -> None:
    assert report_from_json(report_to_json(REPORT), node=NODE, key=KEY) == REPORT


@pytest.mark.parametrize(
    "changes",
    [
        {"node": OTHER_NODE},
        {"key": OTHER_KEY},
        {"state": "perhaps"},
        {"progress_ratio": 1.01},
        {"progress_ratio": -0.01},
        {"progress_ratio": "half"},
        {"changed_at": "2026-11-22T03:00:00"},
        {"said": None},
        {"said": "x" * 4001},
    ],
)
def test_a_report_that_makes_no_sense_is_not_believed(changes: Mapping[str, object]) -> None:
    text = json.dumps({**json.loads(report_to_json(REPORT)), **changes})

    with pytest.raises(ValueError):
        report_from_json(text, node=NODE, key=KEY)


@given(st.dictionaries(st.sampled_from(Component), VERSIONS))
def test_versions_come_back_as_they_were(versions: Mapping[Component, str]) -> None:
    assert versions_from_json(versions_to_json(versions, node=NODE), node=NODE) == versions


def test_a_node_may_tell_more_than_is_known_here_and_need_not_name_itself() -> None:
    assert versions_from_json('{"driver": "580.126.20", "weather": "fine"}', node=NODE) == {
        Component.DRIVER: "580.126.20"
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"driver": ""}',
        '{"driver": null}',
        '{"driver": 580}',
        '{"driver": "580 126"}',
        '{"driver": "$(id)"}',
        f'{{"driver": "{"5" * 65}"}}',
        '{"driver": "580", "driver": "570"}',
        '{"node": "gpu004", "driver": "580"}',
        " " * (2**18 + 1),
    ],
)
def test_versions_that_make_no_sense_are_not_believed(text: str) -> None:
    with pytest.raises(ValueError):
        versions_from_json(text, node=NODE)


def test_the_longest_version_is_one() -> None:
    assert versions_from_json(f'{{"driver": "{"5" * 64}"}}', node=NODE) == {Component.DRIVER: "5" * 64}
