"""Where the state directory is: what the file says, and the places of before, in which a process may still work."""

from pathlib import Path

import pytest

from ops_pipelines.resources.config.in_force import remember_state_directory, state_directories


@pytest.fixture
def cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "notes"))
    file = tmp_path / "cluster.yaml"
    file.write_text("state_directory: new\n")
    return file


def place(cluster_file: Path, name: str) -> Path:
    directory = cluster_file.parent / name
    directory.mkdir(exist_ok=True)
    return directory


def test_place_of_before_counts_after_the_file_was_edited(cluster_file: Path) -> None:
    """The code server works there until it is restarted: a pause has to reach it."""
    old, new = place(cluster_file, "old"), place(cluster_file, "new")
    remember_state_directory(cluster_file, old)
    remember_state_directory(cluster_file, new)
    remember_state_directory(cluster_file, new)

    assert state_directories(cluster_file) == (new, old)


def test_the_newest_four_that_are_there_are_remembered(cluster_file: Path) -> None:
    places = [place(cluster_file, f"place{number}") for number in range(6)]
    for each in places:
        remember_state_directory(cluster_file, each)
    places[4].rmdir()

    assert state_directories(cluster_file) == (places[5], places[3], places[2])
