"""Puts a file in place whole or not at all, for its owner alone unless told otherwise: a draft, renamed.

Of two that write the same file at once the last one counts, whole. Drafts of processes that were killed are deleted.
"""

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from secrets import token_hex

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
