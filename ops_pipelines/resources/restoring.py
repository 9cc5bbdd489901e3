"""Puts a backup back: verified before anything is touched, made ready beside, put in place in one step, verified again.

What is in place before is kept aside. What the ledger had beyond the backup is lost to it, and reported: then the
autopilot is paused, and what happened until now is history, so that nothing is done twice on what it cannot know.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from ops_pipelines.core.action import DRAIN_MARK, Verb
from ops_pipelines.core.entries import LedgerDamaged, LedgerError, Pause
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.observation import NodeStatus
from ops_pipelines.resources.backup import LEDGER, BackupError, Manifest, verify_backup
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.files import hand_over, make_directories
from ops_pipelines.resources.ledger.chain import LedgerOrder, Restoration
from ops_pipelines.resources.ledger.copying import Copied, copy_out, put_in, read_copy, set_aside
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines.resources.ledger.watch import Mark, SeenError, SeenFile, judge_found, next_generation

_OUR_DRAIN = re.compile(rf"{DRAIN_MARK} (?P<cause>\S+?):")
_DRAINS = frozenset({Verb.DRAIN, Verb.DECLARE_DOWN, Verb.REBOOT})
_STAGING = ".restoring-"
_DIRECTORY_MODE = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was put back, and what is known to be lost."""

    backed_up_at: datetime
    ledger: str | None
    head_seq: int
    """Of the ledger as it is now, with the line about its return."""
    is_as_it_was: bool
    """No line was written: it is for an older program."""
    lost_count: int | None
    lost_from: datetime | None
    lost_until: str
    unknown_drains: tuple[str, ...]
    open_incidents: tuple[str, ...]
    is_paused: bool
    kept_aside: tuple[str, ...]
    put_back: tuple[str, ...] = ()
    """Files of the configuration and the lake."""
    differing: tuple[str, ...] = ()
    """Such files that were not put back, because others are there."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """What is in place before."""

    copied: Copied | None
    """None: nothing that can be read."""
    aside: tuple[Path, ...] = ()
    damage: str = ""
    """Why not, where something is there."""
    mark: Mark | None = None
    is_refused: bool = field(default=False)

    @property
    def is_living(self) -> bool:
        return self.copied is not None and self.copied.found.head_seq > 0 and not self.is_refused


def restore_ledger(
    backup: Path,
    config: ClusterConfig,
    *,
    actor: str,
    nodes: Sequence[NodeStatus] | None,
    overwrite: bool,
    as_it_was: bool,
    now: datetime,
) -> Restored:
    """Put the ledger of a verified backup in place of the one that is there.

    `nodes`: what the scheduler shows now; None: it was not asked, or did not answer. `overwrite`: also a ledger that
    lives, or is damaged. `as_it_was`: without upgrade and without a line, for an older program. Raises BackupError,
    LedgerError; then what was there is there still, whole.
    """
    manifest = verify_backup(backup)
    seen = SeenFile(config.state_directory)
    with _staging_in(config.state_directory) as staging:
        staged = staging / LEDGER
        shutil.copyfile(backup / LEDGER, staged)
        before = read_copy(staged)
        _compare(before, manifest)
        checked = staged
        if as_it_was:
            checked = staging / "checked.sqlite"
            shutil.copyfile(staged, checked)
        ledger = SqlLedger(f"sqlite:///{checked}")
        try:
            _verify(ledger, manifest.head_hash, of="the backup")
            present = _look_at(config, seen, staging=staging, now=now)
            if present.damage and not overwrite:
                raise BackupError(
                    f"a ledger is there, and it is damaged ({present.damage}): nobody can tell whether an autopilot "
                    "works on it. Stop it (`systemctl stop ops-pipelines.target`), then say --overwrite; "
                    "SQLite's files are kept aside; of PostgreSQL's tables nothing is kept, use `pg_dump` before"
                )
            if present.is_living and not overwrite:
                raise BackupError(
                    "a ledger is there and lives: it is the one that was seen last. To put the backup in its place say "
                    "--overwrite; it is kept aside"
                )
            known = _what_was_lost(before, present, manifest)
            drains = _unknown_drains(nodes, ledger)
            restoration = Restoration(
                backed_up_at=datetime.fromisoformat(manifest.made_at),
                head_seq=before.found.head_seq,
                head_hash=before.found.head_hash,
                lost_count=known.count,
                lost_from=known.since,
                lost_until=known.until,
                unknown_drains=drains,
            )
            is_paused = not as_it_was and known.count != 0
            if not as_it_was:
                words = _words(restoration)
                order = LedgerOrder(
                    actor=actor,
                    at=now,
                    reason=words,
                    in_place_of="" if present.mark is None else present.mark.as_text(),
                    restored=restoration,
                )
                pause = Pause(actor=actor, since=now, reason=words) if is_paused else None
                ledger.record_restoration(order, pause=pause)
            state = ledger.read_state(now)
        finally:
            ledger.close()
        aside = _keep_aside(present, config, now=now)
        put_in(staged, config.ledger.url)
        if as_it_was:
            _put_mark(seen, next_generation(None, present.mark, news="", now=now))
            head_seq = before.found.head_seq
        else:
            head_seq = _accept(config, seen, present.mark, words=_words(restoration), now=now)
    return Restored(
        backed_up_at=restoration.backed_up_at,
        ledger=before.found.ledger,
        head_seq=head_seq,
        is_as_it_was=as_it_was,
        lost_count=known.count,
        lost_from=known.since,
        lost_until=known.until,
        unknown_drains=drains,
        open_incidents=tuple(f"{each.incident} ({each.state.value}): {each.cause}" for each in state.incidents),
        is_paused=is_paused,
        kept_aside=tuple(str(each) for each in aside),
    )


@contextmanager
def _staging_in(state: Path) -> Iterator[Path]:
    """Enter a directory that is gone afterwards. Raises BackupError where the disk, or whose it is, forbids a step."""
    try:
        make_directories(state, mode=_DIRECTORY_MODE)
        for left in state.glob(f"{_STAGING}*"):
            shutil.rmtree(left, ignore_errors=True)  # By one that was killed.
        with TemporaryDirectory(dir=state, prefix=_STAGING) as staging:
            yield Path(staging)
    except OSError as problem:
        raise BackupError(f"the ledger cannot be put back: {problem}; do it again when that is repaired") from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    count: int | None
    since: datetime | None
    until: str


def _compare(found: Copied, manifest: Manifest) -> None:
    same = (found.found.head_seq, found.found.head_hash) == (manifest.head_seq, manifest.head_hash)
    if not same or found.schema_version != manifest.schema_version:
        raise BackupError("the ledger of the backup is not the one that its manifest describes; use another backup")


def _verify(ledger: SqlLedger, head_hash: str | None, *, of: str) -> None:
    verdict = ledger.verify_chain()
    if verdict.problem or (head_hash is not None and verdict.head_hash != head_hash):
        raise BackupError(f"the ledger of {of} is not whole: {verdict.problem or 'its head is another'}")


def _look_at(config: ClusterConfig, seen: SeenFile, *, staging: Path, now: datetime) -> _Present:
    """Return what is in place; refuse while somebody holds the right to act on it."""
    try:
        mark = seen.read()
    except SeenError:
        mark = None
    try:
        copied = copy_out(config.ledger.url, staging / "present.sqlite")
        lease = None if copied is None else copied.lease()
    except LedgerDamaged as problem:
        return _Present(copied=None, damage=str(problem), mark=mark)
    if copied is None:
        return _Present(copied=None, mark=mark)
    if lease is not None and lease[0] and datetime.fromisoformat(lease[1]) > now:
        raise BackupError(
            f"the autopilot runs: {lease[0]} holds the right to act until {lease[1]}. Stop it "
            "(`systemctl stop ops-pipelines.target`), wait for that time, and do it again"
        )
    refused = judge_found(copied.found, mark, hash_at=copied.hash_at) is not None
    return _Present(copied=copied, mark=mark, is_refused=refused)


def _what_was_lost(backed: Copied, present: _Present, manifest: Manifest) -> _Lost:
    """Return what the ledger had beyond the backup: exactly where it is still there, else as far as it was seen."""
    since = backed.head_at
    there = present.copied
    if (
        there is not None
        and there.hash_at(backed.found.head_seq) == backed.found.head_hash
        and (there.found.ledger == backed.found.ledger)
    ):
        until = "" if there.head_at is None else f"{there.head_at:%Y-%m-%d %H:%M:%S} UTC"
        count = there.found.head_seq - backed.found.head_seq
        if present.mark is None or present.mark.seq <= there.found.head_seq:
            return _Lost(count=count, since=since if count else None, until=until if count else "")
    mark = present.mark
    if mark is not None and mark.ledger == backed.found.ledger and mark.seq > backed.found.head_seq:
        return _Lost(count=mark.seq - backed.found.head_seq, since=since, until=mark.seen_at)
    return _Lost(count=None, since=since, until="")


def _unknown_drains(nodes: Sequence[NodeStatus] | None, ledger: Ledger) -> tuple[str, ...]:
    """Return the nodes that carry our drain, and for a cause of which this ledger drained no such node."""
    found = []
    for node in nodes or ():
        said = _OUR_DRAIN.match(node.reason or "")
        if not node.is_drained or said is None:
            continue
        records = ledger.records_on(IncidentId(said["cause"]), node.node)
        if not any(record.action.verb in _DRAINS for record in records):
            found.append(f"{node.node}: {node.reason}")
    return tuple(found)


def _words(restoration: Restoration) -> str:
    said = f"The ledger was restored from the backup of {restoration.backed_up_at:%Y-%m-%d %H:%M:%S} UTC, which ends "
    said += f"with entry {restoration.head_seq}."
    if restoration.lost_count == 0:
        return f"{said} Nothing that it had is lost."
    many = "an unknown number of" if restoration.lost_count is None else f"{restoration.lost_count}"
    since = (
        "" if restoration.lost_from is None else f" after {restoration.lost_from.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    )
    until = f", seen until {restoration.lost_until}" if restoration.lost_until else ""
    said += f" Lost: {many} entries{since}{until}. What was done then it does not know, and what happened until now is "
    said += "history to it."
    if restoration.unknown_drains:
        said += f" {len(restoration.unknown_drains)} node(s) carry a drain of ours that it does not know: "
        said += f"{'; '.join(restoration.unknown_drains)}."
    return f"{said} Look at the nodes and at the open incidents, then `ops-pipelines resume-autopilot`."


def _keep_aside(present: _Present, config: ClusterConfig, *, now: datetime) -> tuple[Path, ...]:
    stamp = f"{now:%Y%m%dT%H%M%S}"
    if present.damage:
        return set_aside(config.ledger.url, f".damaged-{stamp}")
    if present.copied is None or present.copied.found.head_seq == 0:
        return ()
    aside = present.copied.file.rename(config.state_directory / f"ledger_before_restore_{stamp}.sqlite")
    hand_over(aside)
    return (aside,)


def _accept(config: ClusterConfig, seen: SeenFile, before: Mark | None, *, words: str, now: datetime) -> int:
    ledger = SqlLedger(config.ledger.url)
    try:
        _verify(ledger, None, of="the place where it was put")
        found = ledger.found()
        _put_mark(seen, next_generation(found, before, news=words, now=now))
    finally:
        ledger.close()
    return found.head_seq


def _put_mark(seen: SeenFile, mark: Mark) -> None:
    try:
        seen.put(mark)
    except OSError as problem:
        raise LedgerError(f"{seen.path} cannot be written ({problem.strerror}); do it again") from problem
