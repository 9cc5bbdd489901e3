"""The directory of releases and the calendars beside it: read again at each look, and refused in words."""

import hashlib
from pathlib import Path

import pytest

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.release_files import ReleaseDirectory

SHIPPED = Path(__file__).parents[2] / "releases"
RELEASE = """
name: bmc-2
about: a firmware
models: [hgx]
changes:
- component: bmc
  version: "2"
  means: redfish
  activation: live
  artifact: {name: image, sha256: %s, location: %s}
  reversible: no
"""


def directory(tmp_path: Path, *calendars: Path) -> ReleaseDirectory:
    return ReleaseDirectory(tmp_path, calendars=calendars)


def lay_down(tmp_path: Path, name: str = "kernel-6.8.0-1040") -> None:
    (tmp_path / f"{name}.yaml").write_bytes((SHIPPED / "kernel-6.8.0-1040.yaml").read_bytes())


def test_an_empty_or_missing_directory_has_no_release(tmp_path: Path) -> None:
    assert directory(tmp_path).release_names() == ()
    assert directory(tmp_path / "missing").release_names() == ()


def test_releases_are_named_in_order_readable_or_not_and_other_files_are_none(tmp_path: Path) -> None:
    lay_down(tmp_path)
    (tmp_path / "broken.yaml").write_text("about: [")
    (tmp_path / "notes.txt").write_text("for later")
    (tmp_path / "catalogue").mkdir()

    assert directory(tmp_path).release_names() == ("broken", "kernel-6.8.0-1040")
    with pytest.raises(PolicyError, match="broken"):
        directory(tmp_path).release("broken")


def test_what_is_laid_down_later_is_found_at_the_next_look(tmp_path: Path) -> None:
    files = directory(tmp_path)
    with pytest.raises(PolicyError):
        files.release("kernel-6.8.0-1040")

    lay_down(tmp_path)

    assert files.release("kernel-6.8.0-1040").name == "kernel-6.8.0-1040"


@pytest.mark.parametrize("name", ["../kernel-6.8.0-1040", "/etc/passwd", "kernel-6.8.0-1040.yaml", "", ".", "a\x00b"])
def test_a_name_that_is_no_name_leads_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "releases").mkdir()
    lay_down(tmp_path)
    lay_down(tmp_path / "releases")

    with pytest.raises(PolicyError):
        directory(tmp_path / "releases").release(name)


@pytest.mark.parametrize(("content", "is_same"), [(b"image", True), (b"imagf", False), (b"image\n", False)])
def test_an_artifact_is_what_its_release_says_or_refused(tmp_path: Path, content: bytes, is_same: bool) -> None:
    image = tmp_path / "image.bin"
    image.write_bytes(content)
    (tmp_path / "bmc-2.yaml").write_text(RELEASE % (hashlib.sha256(b"image").hexdigest(), image))
    files = directory(tmp_path)

    if is_same:
        files.check_artifacts(files.release("bmc-2"))
        return
    with pytest.raises(PolicyError, match=r"image\.bin|image"):
        files.check_artifacts(files.release("bmc-2"))


def test_rules_are_there_without_additions_of_a_site(tmp_path: Path) -> None:
    assert directory(tmp_path).tables().slurm


def test_calendars_are_handed_over_as_they_lie_there_in_the_order_of_the_policy(tmp_path: Path) -> None:
    first, second = tmp_path / "b.ics", tmp_path / "a.ics"
    first.write_bytes(b"\xff\xfe no calendar")
    second.write_bytes(b"")

    found = directory(tmp_path, first, second).calendars()

    assert [(each.name, each.text) for each in found] == [("b.ics", b"\xff\xfe no calendar"), ("a.ics", b"")]


@pytest.mark.parametrize("name", ["missing.ics", "folder.ics"])
def test_a_calendar_that_cannot_be_read_does_not_answer(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.ics").mkdir()

    with pytest.raises(SourceUnavailable, match=name):
        directory(tmp_path, tmp_path / name).calendars()


@pytest.mark.parametrize(("length", "is_read"), [(9_999_999, True), (10_000_000, True), (10_000_001, False)])
def test_a_file_that_is_too_long_is_no_calendar(tmp_path: Path, length: int, is_read: bool) -> None:
    path = tmp_path / "long.ics"
    with path.open("wb") as file:
        file.truncate(length)

    if is_read:
        assert len(directory(tmp_path, path).calendars()[0].text) == length
        return
    with pytest.raises(SourceUnavailable, match="that is no calendar"):
        directory(tmp_path, path).calendars()
