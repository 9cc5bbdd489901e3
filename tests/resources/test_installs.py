"""An order in plain words, or refused; and who carries out what under a key."""

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.release import Component, Means
from ops_pipelines.core.rollout import Direction, InstallReport, InstallState
from ops_pipelines.core.sources import SourceRefused, SourceUnavailable
from ops_pipelines.resources.fleet.documents import order_from_word
from ops_pipelines.resources.fleet.installs import InstallNote, InstallNotes, order_word, plain_order, worst
from tests.resources.install_orders import KEY, NODE, OTHER_KEY, OTHER_NODE, change, image, order


def test_forward_a_node_gets_the_words_and_the_artifact_of_the_release() -> None:
    told = plain_order(NODE, order(change("install", "{artifact}", artifact=image("/a"))), key=KEY)

    (only,) = told.changes
    assert (told.node, told.key, told.direction) == (NODE, KEY, Direction.FORWARD)
    assert (only.component, only.version, only.words) == (Component.DRIVER, "580.126.20", ("install", "{artifact}"))
    assert only.artifact == image("/a")


def test_back_a_node_gets_the_words_and_the_artifact_of_the_version_that_it_had() -> None:
    back = change("x", rollback=("put", "{artifact}"), rollback_artifacts={"570.1": image("/old"), "560": image("/no")})

    told = plain_order(NODE, order(back, direction=Direction.BACK, version="570.1"), key=KEY)

    assert (told.changes[0].version, told.changes[0].words) == ("570.1", ("put", "{artifact}"))
    assert told.changes[0].artifact == image("/old")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        pytest.param(order(), "names no change", id="nothing"),
        pytest.param(replace(order(change()), versions={}), "to which version is not stated", id="no version"),
        pytest.param(order(change(), version="$(id)"), "is no version", id="a version that a node made up"),
        pytest.param(order(change("x", "{artifact}")), "no artifact of 580.126.20", id="no artifact"),
        pytest.param(
            order(change(rollback=("x", "{artifact}")), direction=Direction.BACK, version="570"),
            "no artifact of 570",
            id="no artifact on rollback",
        ),
        pytest.param(order(change("x", "{weather}")), "filled with nothing", id="unknown placeholder"),
        pytest.param(order(change("{artifact}", artifact=image("/a"))), "must be fixed", id="program from outside"),
        pytest.param(order(change("sh", "-c", "install {version}")), "to sh, which", id="a shell"),
        pytest.param(order(change("sudo", "/bin/Bash", "{version}")), "to /bin/Bash, which", id="a shell behind sudo"),
        pytest.param(order(change("env", "-S", "ssh x", "{artifact}", artifact=image("/a"))), "to ssh", id="in a word"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_before_anything_is_sent(given: object, said: str) -> None:
    with pytest.raises(SourceRefused, match=said):
        order_word(NODE, given, key=KEY)  # type: ignore[arg-type]  # the rows are of one type


def test_a_shell_that_is_handed_nothing_is_the_sites_own_affair() -> None:
    word = order_word(NODE, order(change("bash", "/opt/site/install", "{node}", "{key}")), key=KEY)

    assert order_from_word(word).changes[0].words == ("bash", "/opt/site/install", "{node}", "{key}")


def test_an_order_that_is_too_long_for_one_word_is_refused() -> None:
    with pytest.raises(SourceRefused, match="does not fit"):
        order_word(NODE, order(change(*["x" * 8000] * 16)), key=KEY)


def report(state: InstallState) -> InstallReport:
    return InstallReport(key=KEY, node=NODE, state=state, said=state.value)


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ((InstallState.INSTALLED, InstallState.INSTALLED), InstallState.INSTALLED),
        ((InstallState.INSTALLED, InstallState.RUNNING), InstallState.RUNNING),
        ((InstallState.RUNNING, InstallState.FAILED), InstallState.FAILED),
        ((InstallState.FAILED, InstallState.INSTALLED), InstallState.FAILED),
    ],
)
def test_an_order_of_several_is_as_far_as_the_worst(states: tuple[InstallState, ...], state: InstallState) -> None:
    assert worst([report(each) for each in states]).state is state


def test_a_note_says_who_carries_out_what_and_outlives_us(tmp_path: Path) -> None:
    note = InstallNote(means=(Means.REDFISH, Means.COMMAND), over=frozenset({Means.REDFISH}))
    InstallNotes(tmp_path / "means", clock=SystemClock()).write(NODE, note, key=KEY)

    notes = InstallNotes(tmp_path / "means", clock=SystemClock())

    assert notes.read(NODE, key=KEY) == note
    assert note.present is Means.COMMAND
    assert notes.read(OTHER_NODE, key=KEY) is None
    assert notes.read(NODE, key=OTHER_KEY) is None


@pytest.mark.parametrize(("days", "is_kept"), [(29, True), (31, False)])
def test_notes_that_nobody_asks_for_any_more_are_forgotten(tmp_path: Path, days: int, is_kept: bool) -> None:
    notes = InstallNotes(tmp_path, clock=SystemClock())
    notes.write(NODE, InstallNote(means=(Means.COMMAND,)), key=KEY)
    at = (SystemClock().now() - timedelta(days=days)).timestamp()
    os.utime(tmp_path / f"{KEY}.json", (at, at))

    notes.write(NODE, InstallNote(means=(Means.COMMAND,)), key=OTHER_KEY)

    assert (notes.read(NODE, key=KEY) is not None) is is_kept


def test_a_note_that_makes_no_sense_says_nothing(tmp_path: Path) -> None:
    (tmp_path / f"{KEY}.json").write_text('{"node": "gpu003", "means": ["magic"]}')

    assert InstallNotes(tmp_path, clock=SystemClock()).read(NODE, key=KEY) is None


def test_without_its_note_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    note = InstallNote(means=(Means.COMMAND,))

    with pytest.raises(SourceUnavailable, match="nothing is started"):
        InstallNotes(tmp_path / "file" / "means", clock=SystemClock()).write(NODE, note, key=KEY)


def test_a_key_that_is_none_names_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        InstallNotes(tmp_path, clock=SystemClock()).read(NODE, key=ActionKey("../../x"))
