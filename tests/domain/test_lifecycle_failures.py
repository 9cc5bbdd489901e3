"""What failures are known by is the same on every node and differs from reason to reason; people read it in words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import NodeStage
from ops_pipelines.rollouts.engine import signature_of, words_of

NODE = NodeName("gpu001")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("GPU 0x1f failed after 12.5 s", "GPU 0x2a failed after 3.0 s"),
        ("gpu001: no image", "GPU001:   no image"),
        ("commit deadbeef01 is bad", "commit 0123456789ab is bad"),
        ("nvml failed: GPU 0000:1d:00 is not well", "nvml failed: GPU 0000:52:00 is not well"),
        ("GPU 1b:00.0 of 00000000:C3:00.0", "GPU 0f:00.0 of 0000:52:00.0"),
        ("GPU-2c5ef8d1-1d2e-4a5b-9f00-00000000000a is lost", "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee is lost"),
    ],
)
def test_alike_failures_have_one_signature(one: str, other: str) -> None:
    assert signature_of(NodeStage.TESTING, one, node=NODE) == signature_of(NodeStage.TESTING, other, node=NODE)


def test_failures_of_other_stages_or_words_differ() -> None:
    assert signature_of(NodeStage.TESTING, "no", node=NODE) != signature_of(NodeStage.INSTALLING, "no", node=NODE)
    assert signature_of(NodeStage.TESTING, "disk full", node=NODE) != signature_of(NodeStage.TESTING, "no", node=NODE)
    assert signature_of(NodeStage.TESTING, "diag_r1", node=NODE) != signature_of(
        NodeStage.TESTING, "diag_r2", node=NODE
    )


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=300), st.integers(min_value=0, max_value=999))
def test_a_signature_is_short_one_line_and_the_same_for_every_node(text: str, number: int) -> None:
    name = NodeName(f"gpu{number:03d}")

    found = signature_of(NodeStage.VERIFYING, f"{name} {text}", node=name)

    assert len(found) <= 120
    assert found.splitlines() == [found]
    assert name not in found


@pytest.mark.parametrize(
    ("stage", "said", "words"),
    [
        (NodeStage.VERIFYING, "driver runs 570.1.2, not 580.126.20", "while verifying: driver runs ..., not ..."),
        (NodeStage.INSTALLING, "install: exit 1", "while installing: install: exit ..."),
        (NodeStage.TESTING, "GPU 3: 0x1f after 12.5 s", "while testing: gpu ...: ... after ... s"),
        (NodeStage.RETURNING, "no answer", "while returning: no answer"),
    ],
)
def test_a_signature_is_read_in_words_without_marks_for_what_differs(stage: NodeStage, said: str, words: str) -> None:
    assert words_of(signature_of(stage, said, node=NODE)) == words


@pytest.mark.parametrize("plain", ["", "no stage: at all", "out of place"])
def test_what_names_no_stage_is_read_as_it_is(plain: str) -> None:
    assert words_of(plain) == plain
