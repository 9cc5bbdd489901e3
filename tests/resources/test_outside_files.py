"""Files from outside: plain, packed, cut, hostile. What is read is what is in them, or an error that names them."""

import gzip
import io
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ops_pipelines.resources.files import UnreadableFile, read_document

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_a_plain_file_and_its_gzipped_copy_are_the_same_document(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(b"one\ntwo\n")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(b"one\ntwo\n"))

    plain = read_document(str(tmp_path / "a.log"), at=NOW, now=NOW)
    packed = read_document(str(tmp_path / "b.log.gz"), at=NOW, now=NOW)

    assert plain.body == packed.body == b"one\ntwo\n"
    assert plain.source.split("@")[1] == packed.source.split("@")[1]


def test_several_gzip_members_are_one_body(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))

    assert read_document(str(tmp_path / "a.gz"), at=NOW, now=NOW).body == b"one\ntwo\n"


def test_records_without_a_time_take_that_of_the_last_change(tmp_path: Path) -> None:
    path = tmp_path / "capture.txt"
    path.write_bytes(b"x")
    os.utime(path, (1_700_000_000, 1_700_000_000))

    assert read_document(str(path), at=None, now=NOW).at == datetime.fromtimestamp(1_700_000_000, UTC)


@pytest.mark.parametrize("kept", [10, 25])
def test_a_gzip_that_was_cut_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(os.urandom(100))[:kept])

    with pytest.raises(UnreadableFile, match=r"a\.gz .*(early|damaged)"):
        read_document(str(tmp_path / "a.gz"), at=NOW, now=NOW)


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(3_000_000)))

    with pytest.raises(UnreadableFile, match="unpacks to more than 1000000 bytes"):
        read_document(str(tmp_path / "bomb.gz"), at=NOW, now=NOW, max_bytes=1_000_000)


def test_an_archive_is_a_tree_and_its_links_are_passed_over(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        member = tarfile.TarInfo("a/index.json")
        member.size = 2
        archive.addfile(member, io.BytesIO(b"{}"))
        link = tarfile.TarInfo("evil")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    (tmp_path / "tree.tar.gz").write_bytes(packed.getvalue())

    document = read_document(str(tmp_path / "tree.tar.gz"), at=NOW, now=NOW)

    assert (document.body, document.files) == (None, {"a/index.json": b"{}"})


def test_a_directory_is_a_tree(tmp_path: Path) -> None:
    (tmp_path / "ports/1").mkdir(parents=True)
    (tmp_path / "ports/1/state").write_bytes(b"4: ACTIVE\n")

    assert read_document(str(tmp_path), at=NOW, now=NOW).files == {"ports/1/state": b"4: ACTIVE\n"}


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="none cannot be read: No such file"):
        read_document(str(tmp_path / "none"), at=NOW, now=NOW)


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UnreadableFile, match="neither a file nor a directory"):
        read_document(str(tmp_path / "pipe"), at=NOW, now=NOW)


def test_a_class_of_sysfs_is_read_through_its_links_and_its_circles_are_not_followed(tmp_path: Path) -> None:
    device = tmp_path / "devices" / "0000:18:00.0" / "infiniband" / "mlx5_0"
    (device / "ports" / "1").mkdir(parents=True)
    (device / "ports" / "1" / "state").write_bytes(b"4: ACTIVE\n")
    (device / "device").symlink_to(device.parent.parent)
    directory = tmp_path / "class" / "infiniband"
    directory.mkdir(parents=True)
    (directory / "mlx5_0").symlink_to(device)
    (directory / "other").symlink_to(tmp_path / "devices")

    document = read_document(str(directory), at=NOW, now=NOW)

    assert document.files == {"mlx5_0/ports/1/state": b"4: ACTIVE\n"}
