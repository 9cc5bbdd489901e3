"""What people read, as files beside the state, written beside and renamed: pages of incidents and others, statements
and capacity plans, the newest comparison of policies with the proposed policy that it read, and bundles of evidence.

Implements the shelves of `core.record`. The time that a page shows is the time of its file, so that a shelf needs no
list that could disagree with it. Old pages are deleted. Statements and plans never are: a site keeps its bills as long
as its law says, and a forecast is judged by what was kept of it.

Implements `Bundles` as directories, `<root>/<incident>/<reason>/`. A bundle is not flushed to the disk: it must not
delay the act that it precedes. One that a power cut spoiled is found by its manifest, which holds the sha256 of every
file; of what was saved before an act, the ledger's chain holds the sha256 of the manifest.
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
from typing import ClassVar

from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import Digest, IncidentId, Topology
from ops_pipelines.core.policy import Policy, PolicyError
from ops_pipelines.core.record import BundleError, SavedBundle, ShelfError, StatementFilesError
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.documents import encode
from ops_pipelines.resources.files import delete_drafts, put_whole, put_whole_bytes

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
        """Delete the bundles of incidents that are too old, or too many; and what was started a day ago and never
        ended.

        An incident's age is that of the bundle that was saved last. What cannot be removed hinders nothing else: it is
        reported at the end, as a BundleError.
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
    """Note what the system refuses, and continue."""
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


@contextmanager
def _raising(error: type[ShelfError] | type[StatementFilesError], what: str) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise error(f"{what}: {problem.strerror or problem}. Check its owner, mode and free space.") from problem


# -- pages --


REPORT_DIRECTORY = "reports"

"""Assumption: who reviews an incident does so within a quarter; the ledger writes the page again at any time."""
MAX_PAGE_COUNT = 500
"""At 100 kB a page, 50 MB."""

_SUFFIX = ".html"
_DRAFT_LIFE = timedelta(hours=1)
"""A page is written within seconds: an older draft is of a process that was killed."""


class PageFiles:
    """Keeps pages under a directory, which is made when the first is kept."""

    def __init__(self, root: Path, *, kept_for: timedelta = KEPT_FOR, max_page_count: int = MAX_PAGE_COUNT) -> None:
        self._root = root.absolute()
        self._kept_for = kept_for
        self._max_page_count = max_page_count

    def keep(self, name: str, html: str, *, shows: datetime) -> str:
        """Keep a page; see `core.record`. Readable for its owner alone: it names users and their jobs."""
        target = self._file(name)
        with _raising(ShelfError, f"the page {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            put_whole(target, html, written_at=shows)
        return str(target)

    def shows(self, name: str) -> datetime | None:
        with _raising(ShelfError, f"the page {name} cannot be read in {self._root}"):
            try:
                return datetime.fromtimestamp(self._file(name).stat().st_mtime, UTC)
            except FileNotFoundError:
                return None

    def read(self, name: str) -> str | None:
        with _raising(ShelfError, f"the page {name} cannot be read in {self._root}"):
            try:
                return self._file(name).read_text(encoding="utf-8", errors="replace")
            except FileNotFoundError:
                return None

    def place(self, name: str) -> str:
        return str(self._file(name))

    def tidy(self, now: datetime) -> int:
        with _raising(ShelfError, f"old pages cannot be deleted in {self._root}"):
            if not self._root.is_dir():
                return 0
            delete_drafts(self._root, before=now - _DRAFT_LIFE)
            pages = sorted(self._written())
            oldest = (now - self._kept_for).timestamp()
            surplus = len(pages) - self._max_page_count
            gone = [file for place, (at, file) in enumerate(pages) if at < oldest or place < surplus]
            for file in gone:
                file.unlink(missing_ok=True)
            return len(gone)

    def _written(self) -> Iterator[tuple[float, Path]]:
        """Yield each page with its time; another process may tidy at the same time."""
        for file in self._root.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):
                if not file.is_symlink():
                    yield file.stat().st_mtime, file

    def _file(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ShelfError(
                f"{name[:80]!r} names no page; expected 1 to 100 of letters, digits, '.', '_' and '-', the first a "
                "letter or digit"
            )
        return self._root / f"{name}{_SUFFIX}"


# -- statements and capacity plans --


CHARGEBACK_DIRECTORY = "chargeback"
CAPACITY_DIRECTORY = "capacity"


class _NamedFiles:
    """Keeps files of one kind under a directory, which is made when the first is kept."""

    _WORD: ClassVar[str]
    """What a file is called in messages."""
    _NAMES: ClassVar[re.Pattern[str]]
    _EXPECTED: ClassVar[str]

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def keep(self, name: str, content: bytes) -> str:
        """Keep a file; see `core.record`. For the owner alone: it says what things cost."""
        target = self._file(name)
        with _raising(StatementFilesError, f"the {self._WORD} {name} cannot be kept in {self._root}"):
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            put_whole_bytes(target, content)
        return str(target)

    def read(self, name: str) -> bytes | None:
        with _raising(StatementFilesError, f"the {self._WORD} {name} cannot be read in {self._root}"):
            try:
                return self._file(name).read_bytes()
            except FileNotFoundError:
                return None

    def _file(self, name: str) -> Path:
        if not self._NAMES.fullmatch(name):
            raise StatementFilesError(f"{name[:80]!r} names no {self._WORD}; expected {self._EXPECTED}")
        return self._root / name


class StatementDirectory(_NamedFiles):
    """Keeps statements of months."""

    _WORD = "statement"
    _NAMES = re.compile(r"[0-9]{4}-[0-9]{2}\.(csv|parquet)", re.ASCII)
    _EXPECTED = "a month and a kind, as 2026-11.csv or 2026-11.parquet"


class PlanDirectory(_NamedFiles):
    """Keeps reports of quarters, and the checks that are made of them by month."""

    _WORD = "capacity report"
    _NAMES = re.compile(r"[0-9]{4}Q[1-4](-check-[0-9]{4}-[0-9]{2})?\.(json|html)", re.ASCII)
    _EXPECTED = "a quarter and a kind, as 2026Q4.json or 2026Q4-check-2026-11.html"


# -- comparisons of policies --


PAGE_NAME = "policy_comparison.html"


class ComparisonPages:
    """The newest page of one cluster's state directory; it appears whole or not at all."""

    def __init__(self, state_directory: Path) -> None:
        self._page = state_directory / PAGE_NAME

    def keep(self, html: str) -> str:
        """Put a page in place of the one before, and return where it is. Raises OSError."""
        self._page.parent.mkdir(parents=True, exist_ok=True)
        put_whole(self._page, html)
        return str(self._page)

    def newest(self) -> str | None:
        """Return the newest page, None if none was written yet. Raises OSError."""
        try:
            return self._page.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def read_proposed_policy(name: str, *, beside: Path, topology: Topology) -> Policy:
    """Return the policy of the file `name` in the directory of the present policy.

    Who may launch a job names it: no other directory is read. Raises PolicyError, also for a policy that would be
    refused in production.
    """
    directory = beside.parent.resolve()
    path = (directory / name).resolve()
    if path.parent != directory or path.suffix not in (".yaml", ".yml"):
        raise PolicyError(
            f"{name!r} is not the name of a policy beside {beside.name}; expected a .yaml file of that directory, "
            "without a path"
        )
    return read_policy(path, topology=topology)
