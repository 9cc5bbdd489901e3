"""Bundles on disk: whole or not at all, bounded, named without surprises, and gone when they have served their time."""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.record import BundleError, SavedBundle
from ops_pipelines.resources.page_files import BundleFiles
from tests.domain.builders import INCIDENT, NOW, after, ago, incident

OTHER = IncidentId("INC-0002")


@pytest.fixture
def bundles(tmp_path: Path) -> BundleFiles:
    return BundleFiles(tmp_path / "evidence")


def save(
    bundles: BundleFiles,
    *,
    of: IncidentId = INCIDENT,
    reason: str = "opened",
    at: datetime = NOW,
    files: Mapping[str, bytes] | None = None,
) -> SavedBundle:
    return bundles.save(
        of,
        reason=reason,
        at=at,
        documents={"incident.json": incident()},
        files={"lines.txt": b"a line\n"} if files is None else files,
        missing=["telemetry: none"],
    )


def test_saved_bundle_is_found_again_with_what_it_holds_and_lacks(bundles: BundleFiles) -> None:
    saved = save(bundles)

    assert bundles.of(INCIDENT) == (saved,)
    assert saved.files == ("incident.json", "lines.txt")
    assert saved.missing == ("telemetry: none",)
    assert (Path(saved.place) / "lines.txt").read_bytes() == b"a line\n"
    assert json.loads((Path(saved.place) / "incident.json").read_text())["incident"] == INCIDENT


def test_digest_is_that_of_the_manifest_which_names_every_file(bundles: BundleFiles) -> None:
    saved = save(bundles)
    manifest = (Path(saved.place) / "manifest.json").read_bytes()

    assert saved.digest == sha256(manifest).hexdigest()
    assert json.loads(manifest)["sha256"]["lines.txt"] == sha256(b"a line\n").hexdigest()


def test_bundle_of_the_same_reason_takes_the_place_of_the_one_before(bundles: BundleFiles) -> None:
    save(bundles, reason="changed", files={"lines.txt": b"old", "telemetry.png": b"old"})
    save(bundles, reason="opened", at=after(1))
    newer = save(bundles, reason="changed", at=after(2), files={"lines.txt": b"new"})

    assert [(each.reason, each.saved_at) for each in bundles.of(INCIDENT)] == [
        ("opened", after(1)),
        ("changed", after(2)),
    ]
    assert sorted(path.name for path in Path(newer.place).iterdir()) == ["incident.json", "lines.txt", "manifest.json"]
    assert sorted(path.name for path in Path(newer.place).parent.iterdir()) == ["changed", "opened"]


@pytest.mark.parametrize(("size", "is_kept"), [(900, True), (1_000, True), (1_001, False)])
def test_file_that_does_not_fit_is_left_out_and_named(tmp_path: Path, size: int, is_kept: bool) -> None:
    bundles = BundleFiles(tmp_path, max_bytes=1_000)

    saved = bundles.save(INCIDENT, reason="opened", at=NOW, documents={}, files={"big": b"x" * size}, missing=())

    assert ("big" in saved.files) is is_kept
    assert (Path(saved.place) / "big").exists() is is_kept
    assert any(sentence.startswith("big: its") for sentence in saved.missing) is not is_kept


def test_small_file_behind_one_that_does_not_fit_is_kept(tmp_path: Path) -> None:
    bundles = BundleFiles(tmp_path, max_bytes=1_000)

    saved = bundles.save(
        INCIDENT, reason="opened", at=NOW, documents={}, files={"big": b"x" * 2_000, "small": b"y"}, missing=()
    )

    assert saved.files == ("small",)


@pytest.mark.parametrize("name", ["../outside", "a/b", "", ".hidden", "x" * 101, "new\nline"])
def test_names_that_leave_the_directory_are_refused(bundles: BundleFiles, tmp_path: Path, name: str) -> None:
    with pytest.raises(BundleError):
        save(bundles, of=IncidentId(name))
    with pytest.raises(BundleError):
        save(bundles, reason=name)
    with pytest.raises(BundleError):
        save(bundles, files={name: b""})

    assert not (tmp_path / "outside").exists()
    assert bundles.of(INCIDENT) == ()


def test_bundle_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    bundles = BundleFiles(tmp_path)
    kept = save(bundles, reason="changed")

    with pytest.raises(BundleError, match="cannot be saved"):
        bundles.save(
            INCIDENT, reason="changed", at=after(1), documents={"no.json": datetime(2026, 1, 1)}, files={}, missing=()
        )

    assert bundles.of(INCIDENT) == (kept,)


def test_state_directory_that_is_a_file_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("in the way")

    with pytest.raises(BundleError, match="space and rights"):
        save(BundleFiles(tmp_path / "evidence"))


def test_directory_that_was_never_finished_is_no_bundle(bundles: BundleFiles) -> None:
    saved = save(bundles)
    (Path(saved.place).parent / ".tmp-0123").mkdir()
    (Path(saved.place).parent / "before-PLAN-1").mkdir()

    assert bundles.of(INCIDENT) == (saved,)


def test_damaged_manifest_is_an_error_and_not_silence(bundles: BundleFiles) -> None:
    saved = save(bundles)
    (Path(saved.place) / "manifest.json").write_text("{")

    with pytest.raises(BundleError, match="is damaged"):
        bundles.of(INCIDENT)


def with_time(saved_at: str) -> str:
    return json.dumps({"reason": "opened", "saved_at": saved_at, "sha256": {}, "missing": []})


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(with_time("2026-01-01T00:00:00"), id="a time without offset"),
        pytest.param(with_time("0001-01-01T00:00:00+14:00"), id="before all time"),
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param("[]", id="a list"),
    ],
)
def test_manifest_that_says_something_else_is_damaged_also_beside_a_good_one(
    bundles: BundleFiles, manifest: str
) -> None:
    save(bundles, reason="changed")
    (Path(save(bundles).place) / "manifest.json").write_text(manifest)

    with pytest.raises(BundleError, match="is damaged"):
        bundles.of(INCIDENT)


class FullDisk:
    """Renames as the system does, but for one of the renames."""

    def __init__(self, *, fails_at: int) -> None:
        self._left = fails_at

    def __call__(self, source: Path, target: Path) -> None:
        self._left -= 1
        if self._left == 0:
            raise OSError(28, "No space left on device")
        source.rename(target)


@pytest.mark.parametrize("fails_at", [2, 3], ids=["it is not set aside", "the new one does not take its place"])
def test_bundle_whose_successor_cannot_take_its_place_is_still_there(tmp_path: Path, fails_at: int) -> None:
    bundles = BundleFiles(tmp_path, rename=FullDisk(fails_at=fails_at))
    kept = save(bundles)

    with pytest.raises(BundleError, match="No space left"):
        save(bundles, at=after(1))

    assert bundles.of(INCIDENT) == (kept,)
    assert [path.name for path in Path(kept.place).parent.iterdir()] == ["opened"]


def test_incident_without_bundles_has_none(bundles: BundleFiles) -> None:
    assert bundles.of(INCIDENT) == ()
    assert bundles.of(IncidentId("../../etc")) == ()
    assert bundles.tidy(NOW, keep=()) == 0


@pytest.mark.parametrize(
    ("age", "is_kept"),
    [(timedelta(days=89), True), (timedelta(days=90), True), (timedelta(days=90, seconds=1), False)],
)
def test_bundles_go_when_they_have_served_their_time(bundles: BundleFiles, age: timedelta, is_kept: bool) -> None:
    save(bundles, at=NOW)

    removed = bundles.tidy(NOW + age, keep=())

    assert (removed == 0, bool(bundles.of(INCIDENT))) == (is_kept, is_kept)


def test_bundles_of_open_incidents_stay_however_old_or_many(tmp_path: Path) -> None:
    bundles = BundleFiles(tmp_path, max_incident_count=1)
    save(bundles, of=INCIDENT, at=ago(3600))
    save(bundles, of=OTHER, at=NOW)

    assert bundles.tidy(NOW + timedelta(days=365), keep={INCIDENT, OTHER}) == 0
    assert bundles.tidy(NOW, keep=()) == 1
    assert (len(bundles.of(INCIDENT)), len(bundles.of(OTHER))) == (0, 1)


def test_what_cannot_be_tidied_hinders_nothing_else_and_is_told(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / ".tmp-0123").mkdir(parents=True)
    bundles = BundleFiles(tmp_path / "evidence")
    for name in (INCIDENT, OTHER):
        save(bundles, of=name)
    for link in ("link-1", "link-2", "link-3", "link-4"):
        (tmp_path / "evidence" / link).symlink_to(outside)

    with pytest.raises(BundleError, match=r"2 are removed, and some cannot be: .*link.*; 1 more$"):
        bundles.tidy(NOW + timedelta(days=365_000), keep=())

    assert (bundles.of(INCIDENT), bundles.of(OTHER)) == ((), ())
    assert (outside / ".tmp-0123").is_dir()
