"""Evidence bundles as directories: `<root>/<incident>/<reason>/`, written beside and renamed. Implements `Bundles`.

A bundle is not flushed to the disk: it must not delay the act that it precedes. One that a power cut spoiled is told by
its manifest, which holds the sha256 of every file; of what was saved before an act, the ledger's chain holds the sha256
of the manifest.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import Digest, IncidentId
from ops_pipelines.core.record import BundleError, SavedBundle
from ops_pipelines.resources.documents import encode

BUNDLE_DIRECTORY = "evidence"
MAX_BUNDLE_BYTES = 5_000_000
KEPT_FOR = timedelta(days=90)
"""# Assumption: who reviews an incident does so within a quarter; the ledger keeps its findings for good."""
MAX_INCIDENT_COUNT = 2_000
"""Of so many incidents the bundles are kept, the newest, however young the others are: at most 30 GB."""
_MANIFEST = "manifest.json"
_VERSION = 1
_TEMPORARY = ".tmp-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_TOLD_AT_MOST = 3
Rename = Callable[[Path, Path], object]


class BundleFiles:
    """Keeps bundles under a directory, which is made when the first is saved."""

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int = MAX_BUNDLE_BYTES,
        kept_for: timedelta = KEPT_FOR,
        max_incident_count: int = MAX_INCIDENT_COUNT,
        rename: Rename = os.rename,
    ) -> None:
        self._root = root.absolute()
        self._max_bytes = max_bytes
        self._kept_for = kept_for
        self._max_incident_count = max_incident_count
        self._rename = rename

    def save(
        self,
        incident: IncidentId,
        *,
        reason: str,
        at: datetime,
        documents: Mapping[str, object],
        files: Mapping[str, bytes],
        missing: Sequence[str],
    ) -> SavedBundle:
        """Keep a bundle; see `core.record`. Files that would make it too large are left out, and named as missing.

        Documents come first, then files in the order given.
        """
        kept: dict[str, bytes] = {}
        lacking = list(missing)
        with _told(f"the bundle of {incident} cannot be saved"):
            given = {_checked(name): _readable(value) for name, value in documents.items()}
            given |= {_checked(name): content for name, content in files.items()}
        for name, content in given.items():
            if sum(map(len, kept.values())) + len(content) <= self._max_bytes:
                kept[name] = content
            else:
                lacking.append(f"{name}: its {len(content):,} bytes do not fit into {self._max_bytes:,} with the rest")
        manifest = json.dumps(
            {
                "version": _VERSION,
                "incident": incident,
                "reason": reason,
                "saved_at": at.astimezone(UTC).isoformat(),
                "sha256": {name: sha256(content).hexdigest() for name, content in kept.items()},
                "missing": lacking,
            },
            indent=1,
        )
        directory = self._root / _checked(incident) / _checked(reason)
        with _told(f"the bundle of {incident} cannot be saved"):
            _write_whole(directory, {**kept, _MANIFEST: manifest.encode("ascii")}, rename=self._rename)
            os.utime(directory.parent, (at.timestamp(), at.timestamp()))  # `tidy` goes by the program's clock
        return SavedBundle(
            incident=incident,
            reason=reason,
            saved_at=at,
            place=str(directory),
            digest=Digest(sha256(manifest.encode("ascii")).hexdigest()),
            manifest=manifest,
            files=tuple(kept),
            missing=tuple(lacking),
        )

    def of(self, incident: IncidentId) -> tuple[SavedBundle, ...]:
        """Return the bundles of an incident, oldest first. A directory without a manifest is no bundle."""
        if not _NAME.fullmatch(incident):
            return ()
        with _told(f"the bundles of {incident} cannot be read"):
            found = [self._read(incident, directory) for directory in _directories(self._root / incident)]
        return tuple(sorted((each for each in found if each is not None), key=lambda each: each.saved_at))

    def tidy(self, now: datetime, *, keep: Collection[IncidentId]) -> int:
        """Delete the bundles of incidents that are too old, or too many; and what was begun a day ago and never ended.

        An incident's age is that of the bundle that was saved last. What cannot be removed hinders nothing else: it is
        told at the end, as a BundleError.
        """
        removed = 0
        problems: list[str] = []
        with _told("old bundles cannot be removed"):
            directories = _directories(self._root)
        ages: dict[Path, datetime] = {}
        for directory in directories:
            with _noted(problems):
                if directory.is_symlink():
                    raise OSError(f"{directory} is a link, which no bundle is; remove it, we follow none")
                ages[directory] = datetime.fromtimestamp(directory.stat().st_mtime, UTC)
        newest_first = sorted(ages, key=lambda directory: ages[directory], reverse=True)
        for place, directory in enumerate(newest_first):
            is_due = place >= self._max_incident_count or now - ages[directory] > self._kept_for
            with _noted(problems):
                if is_due and directory.name not in keep:
                    shutil.rmtree(directory)
                    removed += 1
                else:
                    _remove_left_behind(directory, now=now)
        if problems:
            more = len(problems) - _TOLD_AT_MOST
            said = "; ".join([*problems[:_TOLD_AT_MOST], *([f"{more} more"] if more > 0 else [])])
            raise BundleError(f"of old bundles {removed} are removed, and some cannot be: {said}")
        return removed

    def _read(self, incident: IncidentId, directory: Path) -> SavedBundle | None:
        try:
            manifest = (directory / _MANIFEST).read_text(encoding="ascii")
            said = json.loads(manifest)
            return SavedBundle(
                incident=incident,
                reason=str(said["reason"]),
                saved_at=_aware(said["saved_at"]),
                place=str(directory),
                digest=Digest(sha256(manifest.encode("ascii")).hexdigest()),
                manifest=manifest,
                files=tuple(said["sha256"]),
                missing=tuple(said["missing"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as exc:
            raise BundleError(
                f"{directory / _MANIFEST} is damaged: {exc}; what is left of the bundle lies beside it"
            ) from exc


def _aware(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"saved_at is {text!r}; expected a time with its offset from UTC")
    return found.astimezone(UTC)


def _write_whole(directory: Path, files: Mapping[str, bytes], *, rename: Rename) -> None:
    """Write a directory that takes the place of the one before; a reader finds one of them, or for an instant none.

    Where it cannot take that place, the one before is put back.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    fresh = directory.parent / f"{_TEMPORARY}{token_hex(8)}"
    fresh.mkdir()
    try:
        for name, content in files.items():
            (fresh / name).write_bytes(content)
        if directory.exists():
            old = directory.parent / f"{_TEMPORARY}{token_hex(8)}"
            rename(directory, old)
            try:
                rename(fresh, directory)
            except BaseException:
                rename(old, directory)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            rename(fresh, directory)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def _directories(root: Path) -> list[Path]:
    with suppress(FileNotFoundError):
        return [each for each in root.iterdir() if each.is_dir() and not each.name.startswith(_TEMPORARY)]
    return []


def _remove_left_behind(directory: Path, *, now: datetime) -> None:
    for each in directory.iterdir():
        is_old = now - datetime.fromtimestamp(each.stat().st_mtime, UTC) > timedelta(days=1)
        if each.name.startswith(_TEMPORARY) and is_old:
            shutil.rmtree(each, ignore_errors=True)


def _readable(value: object) -> bytes:
    """Return a value as JSON that a person reads: ASCII, so that no control character is left as such."""
    return json.dumps(json.loads(encode(value)), indent=1, ensure_ascii=True).encode("ascii")


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise BundleError(f"{name!r} is no name of a file here: expected letters, digits, dots, dashes")
    return name


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Note what the system refuses, and go on."""
    try:
        yield
    except OSError as exc:
        problems.append(str(exc))


@contextmanager
def _told(deed: str) -> Iterator[None]:
    try:
        yield
    except (OSError, LedgerError) as exc:
        raise BundleError(f"{deed}: {exc}; see to the state directory's space and rights") from exc
