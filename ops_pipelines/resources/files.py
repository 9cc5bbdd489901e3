"""Files as they come and go: one put in place whole or not at all, for its owner alone unless stated otherwise (a
draft, renamed), and one from outside read within bounds, plain, gzipped, an archive or a directory.

Of two that write the same file at once the last one counts, whole. Drafts of processes that were killed are deleted.
Nothing from outside is ever written to disk here, and sizes are bounded after decompression: a small file may unpack to
terabytes.
"""

import hashlib
import io
import os
import stat
import sys
import tarfile
import zlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

from ops_pipelines.observe.imports import Document

_MODE = 0o600
_DRAFT = ".draft"


def keep_private() -> None:
    """Let this process make files and directories for its own user alone, whatever umask it was started with.

    For processes that keep the state of a cluster: what libraries create (a database, a Parquet file) is ours, too.
    """
    os.umask(os.umask(0o077) | 0o077)


def put_whole(file: Path, text: str, *, written_at: datetime | None = None, mode: int | None = None) -> None:
    """Write `text` in place of what is there, dated `written_at` and with `mode`, whatever the umask, where given.

    Raises OSError; then nothing changed. A symlink at that name is replaced and not followed.
    """
    put_whole_bytes(file, text.encode("utf-8", errors="replace"), written_at=written_at, mode=mode)


def put_whole_bytes(file: Path, content: bytes, *, written_at: datetime | None = None, mode: int | None = None) -> None:
    """Write `content` as `put_whole` writes a text."""
    draft = file.with_name(f".{file.name}.{token_hex(4)}{_DRAFT}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _MODE)
        with os.fdopen(descriptor, "wb") as stream:
            if mode is not None:
                os.fchmod(descriptor, mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # Else a power cut may leave the new name with nothing behind it.
        if written_at is not None:
            os.utime(draft, (written_at.timestamp(), written_at.timestamp()))
        draft.replace(file)
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def make_directories(directory: Path, *, mode: int) -> None:
    """Make a directory and those above it that are missing, whatever the umask; of each see `hand_over`. Raises
    OSError."""
    if not directory.is_dir():
        make_directories(directory.parent, mode=mode)
        directory.mkdir()
        directory.chmod(mode)
        hand_over(directory)


def hand_over(made: Path) -> None:
    """Give what root made to whom its directory belongs: the program's own user has to read it. Raises OSError."""
    if os.geteuid() == 0:
        owner = made.parent.stat()
        # Not through a symlink that the directory's owner put there meanwhile: that file may be root's.
        os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)


def delete_drafts(directory: Path, *, before: datetime) -> None:
    """Delete the drafts that were left before that time. Raises OSError."""
    for draft in directory.glob(f".*{_DRAFT}"):
        with suppress(FileNotFoundError):
            if draft.lstat().st_mtime < before.timestamp():
                draft.unlink()


MAX_BYTES = 4 * 1024**3
"""# Assumption: a log of one day of a large cluster fits; more is given file by file."""
STANDARD_INPUT = "-"
_GZIP = b"\x1f\x8b"
_CHUNK = 1 << 20


class UnreadableFile(ValueError):
    """The file cannot be read. The message says which and why."""


def read_document(path: str, *, at: datetime | None, now: datetime, max_bytes: int = MAX_BYTES) -> Document:
    """Return what `path` holds (`-`: standard input). Raises UnreadableFile.

    `at` None: the time at which the file was last changed, which for a capture is when it was taken.
    """
    try:
        if path == STANDARD_INPUT:
            return _document("stdin", sys.stdin.buffer.read(max_bytes + 1), at=at or now, max_bytes=max_bytes)
        place = Path(path)
        found = place.stat()
        taken_at = at or datetime.fromtimestamp(int(found.st_mtime), UTC)
        if stat.S_ISDIR(found.st_mode):
            files = _read_directory(place, max_bytes=max_bytes)
            return Document(source=f"{place.name}@{_digest(files)}", at=taken_at, body=None, files=files)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableFile(f"{path} is neither a file nor a directory")
        if found.st_size > max_bytes:
            raise UnreadableFile(f"{path} has {found.st_size} bytes; give at most {max_bytes} at once")
        return _document(place.name, place.read_bytes(), at=taken_at, max_bytes=max_bytes)
    except OSError as problem:
        raise UnreadableFile(f"{path} cannot be read: {problem.strerror or problem}") from problem


def _document(name: str, data: bytes, *, at: datetime, max_bytes: int) -> Document:
    if len(data) > max_bytes:
        raise UnreadableFile(f"{name} has more than {max_bytes} bytes; give it in parts")
    body = _gunzip(name, data, max_bytes=max_bytes) if data.startswith(_GZIP) else data
    source = f"{name}@{hashlib.sha256(body).hexdigest()[:12]}"
    if body[257:262] == b"ustar":
        return Document(source=source, at=at, body=None, files=_read_archive(name, body))
    return Document(source=source, at=at, body=body, files=None)


def _gunzip(name: str, data: bytes, *, max_bytes: int) -> bytes:
    """Return the content of every member of a gzip file; one that was cut gives what is there with an error."""
    parts: list[bytes] = []
    size = 0
    while data.startswith(_GZIP):
        engine = zlib.decompressobj(wbits=31)
        try:
            while data and not engine.eof:
                part = engine.decompress(data, _CHUNK * 64)
                size += len(part)
                if size > max_bytes:
                    raise UnreadableFile(f"{name} unpacks to more than {max_bytes} bytes; give it in parts")
                parts.append(part)
                data = engine.unconsumed_tail
        except zlib.error as problem:
            raise UnreadableFile(f"{name} begins as gzip and is damaged: {problem}") from problem
        if not engine.eof:
            raise UnreadableFile(f"{name} begins as gzip and ends too early: the file was cut")
        data = engine.unused_data
    return b"".join(parts)


def _read_archive(name: str, body: bytes) -> dict[str, bytes]:
    """Return the plain files of a tar archive; links and devices are passed over."""
    try:
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as archive:
            found: dict[str, bytes] = {}
            for member in archive:
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is not None:
                    found[member.name] = opened.read()
            return found
    except (tarfile.TarError, EOFError, OSError) as problem:
        raise UnreadableFile(f"{name} begins as a tar archive and is damaged: {problem}") from problem


def _read_directory(place: Path, *, max_bytes: int) -> dict[str, bytes]:
    """Return the files below a directory. Links to directories are not followed, for sysfs links in circles.

    But for those that a class of sysfs is made of: right below `place`, named as the directory that they lead to.
    """
    found: dict[str, bytes] = {}
    size = 0
    entries = [each for each in place.iterdir() if each.is_symlink() and each.is_dir()]
    members = [each for each in entries if each.resolve().name == each.name]
    for path in sorted((*place.rglob("*"), *(path for each in members for path in each.rglob("*")))):
        if not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError:
            continue  # sysfs has files that only take, and counters that a driver refuses
        size += len(content)
        if size > max_bytes:
            raise UnreadableFile(f"{place} holds more than {max_bytes} bytes; give it in parts")
        found[str(path.relative_to(place))] = content
    return found


def _digest(files: dict[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name, content in sorted(files.items()):
        whole.update(f"{name}\0{len(content)}\0".encode())
        whole.update(content)
    return whole.hexdigest()[:12]
