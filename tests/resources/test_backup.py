"""Backups and their rollback: what is in one, what is refused, what is lost and reported, and a kill at each step."""

import json
import os
import resource
import shutil
import signal
import stat
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from ops_pipelines.core.action import OutcomeKind
from ops_pipelines.core.entries import EntryKind, LedgerDamaged, LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NodeState, NodeStatus
from ops_pipelines.resources import files as whole_file
from ops_pipelines.resources.backup import BackupError, PutBack, put_where_missing, verify_backup
from ops_pipelines.resources.config.cluster_config import LedgerConfig
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.ledger import copying
from ops_pipelines.resources.ledger.database import migrate
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from tests.forked import CONTEXT
from tests.ports.ledger_samples import (
    NO_LIMIT,
    NOW,
    SECOND,
    allow,
    begin,
    decide,
    drain,
    fill,
    incident,
    observation,
    outcome,
    record,
    take_in,
)
from tests.resources.ledger_audit_contract import change
from tests.resources.restore_processes import LATER, Site, restore_and_die
from tests.shell.desk import CLUSTER_YAML, POLICY_YAML

SECRET = "a secret that nobody copies"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    cluster_file = tmp_path / "cluster.yaml"
    cluster_file.write_text(f"{CLUSTER_YAML}\nserve: {{base_url: 'http://ops.example', link_key_file: link.key}}\n")
    (tmp_path / "policy.yaml").write_text(POLICY_YAML)
    (tmp_path / "link.key").write_text(SECRET)
    config = read_cluster(cluster_file)
    config.state_directory.mkdir()
    site = Site(directory=tmp_path, cluster_file=cluster_file, config=config)
    site.use(1, 2)
    return site


def kinds(ledger: SqlLedger, *, after: int) -> list[EntryKind]:
    return [each.kind for each in ledger.entries(after=after, limit=NO_LIMIT)]


def lose(site: Site) -> None:
    for file in site.config.state_directory.glob("ledger.sqlite*"):
        file.unlink()


# -- backing up --


def test_backup_holds_ledger_and_configuration_for_its_user_alone_and_no_secret(site: Site) -> None:
    old_umask = os.umask(0)
    try:
        backup = site.back_up()
    finally:
        os.umask(old_umask)

    manifest = verify_backup(backup)
    assert {each.path for each in manifest.files} == {
        "ledger.sqlite", "configuration/cluster.yaml", "configuration/policy.yaml"
    }  # fmt: skip
    assert any("link.key" in each for each in manifest.left_out)
    found = [backup, *backup.rglob("*")]
    assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_dir()} == {0o700}
    assert {stat.S_IMODE(each.stat().st_mode) for each in found if each.is_file()} == {0o600}
    assert not any(SECRET.encode() in each.read_bytes() for each in found if each.is_file())


@pytest.mark.parametrize(
    "url",
    [
        pytest.param("'postgresql+psycopg2://ops:hunter2@db.example/ops'", id="cut out"),
        pytest.param(r'"postgresql+psycopg2://ops:hunter2\u0040@db.example/ops"', id="escaped"),
        pytest.param("postgresql://ops@db.example/ops?password=hunter2", id="in the query"),
        pytest.param("postgresql://ops:hunter2@db.example:five/ops", id="no URL"),
        pytest.param("'postgresql://ops:hunter2@db.example/ops", id="no YAML"),
    ],
)
def test_password_of_the_ledger_is_left_out_and_said(site: Site, url: str) -> None:
    """What is in force came from before: the file has changed since."""
    site.cluster_file.write_text(f"{site.cluster_file.read_text()}\nledger: {{url: {url}}}\n")

    backup = site.back_up()

    assert not any(b"hunter2" in each.read_bytes() for each in backup.rglob("*") if each.is_file())
    assert any("ledger.url" in each for each in verify_backup(backup).left_out)
    assert (backup / "configuration/cluster.yaml").exists() == url.endswith("ops'")


def test_lake_is_copied_by_choice_and_put_back_where_it_is_missing(site: Site) -> None:
    lake = Path(site.config.lake.url)
    (lake / "gpu/2026").mkdir(parents=True)
    (lake / "gpu/2026/hour.parquet").write_bytes(b"rows")
    (lake / "gpu/2026/.half.draft").write_bytes(b"ro")
    without = verify_backup(site.back_up("without"))
    backup = site.back_up(with_lake=True)
    (lake / "gpu/2026/hour.parquet").unlink()

    done = put_where_missing(backup, verify_backup(backup), "lake", into=lake)

    assert not any(each.path.startswith("lake") for each in without.files)
    assert done == PutBack(put=(lake / "gpu/2026/hour.parquet",))
    assert (lake / "gpu/2026/hour.parquet").read_bytes() == b"rows"


def test_backup_that_failed_leaves_nothing_behind(site: Site) -> None:
    lose(site)

    with pytest.raises(BackupError, match="no ledger yet"):
        site.back_up()

    assert [each.name for each in site.directory.iterdir() if "backup" in each.name] == []


def test_directory_that_is_there_is_never_written_into(site: Site) -> None:
    site.back_up()

    with pytest.raises(BackupError, match="is there already"):
        site.back_up()


def test_files_of_one_name_in_two_places_outside_are_both_kept(site: Site, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    for place, text in (("releases/a", "one"), ("releases/b", "two"), ("", "three")):
        (elsewhere / place).mkdir(parents=True, exist_ok=True)
        (elsewhere / place / "driver.yaml").write_text(text)
    here = tmp_path / "here"
    here.mkdir()
    (here / "policy.yaml").write_text(POLICY_YAML)
    site.cluster_file.rename(here / "cluster.yaml")
    config = replace(
        site.config,
        releases_directory=elsewhere / "releases",
        teams_path=here / "../elsewhere/driver.yaml",
        policy_path=here / "policy.yaml",
        projects_path=here / "../here/policy.yaml",
    )

    backup = replace(site, config=config, cluster_file=here / "cluster.yaml").back_up()

    kept = {each.was_at: backup / each.path for each in verify_backup(backup).files}
    assert {was_at: file.read_text() for was_at, file in kept.items() if "elsewhere" in was_at} == {
        f"{elsewhere}/releases/a/driver.yaml": "one",
        f"{elsewhere}/releases/b/driver.yaml": "two",
        f"{elsewhere}/driver.yaml": "three",
    }
    assert all(each.resolve().is_relative_to(backup) for each in kept.values())
    assert kept[f"{here}/policy.yaml"] == backup / "configuration/policy.yaml"
    assert len([each for each in (backup / "configuration").rglob("*") if each.is_file()]) == 5


def test_backup_that_could_not_be_put_back_is_not_made(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def put_on_a_bad_disk(file: Path, content: bytes, *, mode: int) -> None:
        whole_file.put_whole_bytes(file, content, mode=mode)
        if file.name == "manifest.json":
            (file.parent / "configuration/policy.yaml").write_bytes(b"")

    monkeypatch.setattr("ops_pipelines.resources.backup.put_whole_bytes", put_on_a_bad_disk)

    with pytest.raises(BackupError, match="no backup was made"):
        site.back_up()

    assert [each.name for each in site.directory.iterdir() if "backup" in each.name] == []


# -- refused --


@pytest.mark.parametrize("spoil", ["byte", "missing", "manifest", "outside", "head", "chain"])
def test_spoiled_backup_is_refused_before_anything_is_touched(site: Site, spoil: str) -> None:
    backup = site.back_up()
    spoil_backup(backup, spoil)
    lose(site)
    before = sorted(each.name for each in site.config.state_directory.iterdir())

    with pytest.raises((BackupError, LedgerError)):
        site.restore(backup)

    assert sorted(each.name for each in site.config.state_directory.iterdir()) == before


def spoil_backup(backup: Path, spoil: str) -> None:
    ledger, manifest = backup / "ledger.sqlite", backup / "manifest.json"
    said = json.loads(manifest.read_text())
    if spoil == "byte":
        content = bytearray(ledger.read_bytes())
        content[len(content) // 2] ^= 1
        ledger.write_bytes(content)
    elif spoil == "missing":
        (backup / "configuration/policy.yaml").unlink()
    elif spoil == "manifest":
        manifest.write_text(manifest.read_text()[:-5])
    elif spoil == "outside":
        said["files"][0]["path"] = "../cluster.yaml"
        manifest.write_text(json.dumps(said))
    elif spoil == "head":
        said["head_seq"] += 1
        manifest.write_text(json.dumps(said))
    else:
        change(f"sqlite:///{ledger}", "UPDATE entries SET actor = 'mallory' WHERE seq = 2")
        from ops_pipelines.resources.backup import _sha256

        said["files"][0]["sha256"] = _sha256(ledger)
        manifest.write_text(json.dumps(said))


@pytest.mark.parametrize("path", ["configuration/../cron.d/x", "/etc/cron.d/x", "configuration/.."])
def test_path_that_leads_out_is_refused(site: Site, path: str) -> None:
    backup = site.back_up()
    manifest = backup / "manifest.json"
    said = json.loads(manifest.read_text())
    (backup / "cron.d").mkdir()
    shutil.copyfile(backup / "configuration/policy.yaml", backup / "cron.d/x")
    (policy,) = (each for each in said["files"] if each["path"].endswith("policy.yaml"))
    policy["path"] = path
    manifest.write_text(json.dumps(said))

    with pytest.raises(BackupError, match="is below it, without"):
        verify_backup(backup)


def test_living_ledger_is_overwritten_only_when_told_and_kept_aside(site: Site) -> None:
    backup = site.back_up()
    site.use(3)

    with pytest.raises(BackupError, match="--overwrite"):
        site.restore(backup)
    done = site.restore(backup, overwrite=True)

    (aside,) = done.kept_aside
    assert copying.read_copy(Path(aside)).found.head_seq == 6
    assert (done.lost_count, done.is_paused) == (2, True)


def test_nothing_is_restored_under_an_autopilot_that_runs(site: Site) -> None:
    backup = site.back_up()
    ledger = site.open()
    ledger.take_lease(holder="host:1", ttl=15 * SECOND, now=LATER - 14 * SECOND)

    with pytest.raises(BackupError, match="the autopilot runs: host:1"):
        site.restore(backup, overwrite=True)
    ledger.close()

    assert site.restore(backup, overwrite=True, now=LATER + SECOND).head_seq > 0


# -- restored --


def test_restored_ledger_is_accepted_says_what_is_lost_and_does_nothing_twice(site: Site) -> None:
    ledger = site.open()
    take_in(ledger, observation("read before"), cursor="100")
    begin(ledger, drain(1))
    ledger.finish(drain(1).key, outcome(OutcomeKind.DONE), actor="autopilot")
    ledger.close()
    backup = site.back_up()
    site.use(3, 4, until=timedelta(minutes=5))
    lose(site)
    assert site.open().why_refused() is not None

    done = site.restore(
        backup,
        nodes=(
            drained("gpu003", "ops_pipelines INC-0001: Xid 79"),
            drained("gpu004", "ops_pipelines INC-0003: Xid 79"),
            drained("gpu005", "somebody's own"),
        ),
    )

    ledger = site.open()
    assert (done.lost_count, done.lost_from, done.is_paused) == (4, NOW, True)
    assert done.unknown_drains == ("gpu004: ops_pipelines INC-0003: Xid 79",)
    assert [each.partition(" ")[0] for each in done.open_incidents] == ["INC-0001", "INC-0002"]
    assert kinds(ledger, after=done.head_seq - 2) == [EntryKind.LEDGER, EntryKind.PAUSE]
    assert "INC-0003" in ledger.entries(after=done.head_seq - 2, limit=1)[0].body
    assert (ledger.why_refused(), ledger.verify_chain().problem) == (None, "")
    assert ledger.cursor("loki") == "100"
    assert take_in(ledger, observation("handled since", at=LATER - SECOND)) == 0
    assert ledger.take_lease(holder="host:2", ttl=SECOND, now=LATER) is not None
    state = ledger.read_state(LATER)
    assert state.pause is not None
    (news,) = ledger.untold_news()
    assert not news.is_refusal
    ledger.mark_told(news)
    assert site.open().untold_news() == ()


def drained(node: str, reason: str) -> NodeStatus:
    return NodeStatus(
        node=NodeName(node), state=NodeState.IDLE, is_drained=True, is_responding=True, reason=reason,
        reason_set_at=NOW, booted_at=NOW, gpu_count=8, gpu_in_use_count=0,
    )  # fmt: skip


def test_nothing_is_paused_or_history_where_nothing_was_lost(site: Site) -> None:
    backup = site.back_up()

    done = site.restore(backup, overwrite=True)

    ledger = site.open()
    assert (done.lost_count, done.is_paused, ledger.history_until()) == (0, False, NOW)
    assert ledger.read_state(LATER).pause is None
    assert kinds(ledger, after=4) == [EntryKind.LEDGER]


def test_restored_elsewhere_nobody_knows_what_was_lost(site: Site, tmp_path: Path) -> None:
    backup = site.back_up()
    shutil.rmtree(site.config.state_directory)

    done = site.restore(backup)

    assert (done.lost_count, done.is_paused) == (None, True)
    assert site.open().why_refused() is None


@pytest.mark.parametrize("damage", ["rubbish", "leases", "alembic_version", "entries"])
def test_damaged_ledger_is_moved_aside_with_all_its_files_when_told(site: Site, damage: str) -> None:
    backup = site.back_up()
    file = copying.sqlite_file(site.url)
    assert file is not None
    if damage == "rubbish":
        file.write_bytes(b"rubbish " * 1000)
    else:
        change(site.url, f"DROP TABLE {damage}")
    before = file.read_bytes()

    with pytest.raises(BackupError, match=r"damaged .*--overwrite"):
        site.restore(backup)
    untouched = file.read_bytes()
    done = site.restore(backup, overwrite=True)

    assert (untouched, Path(done.kept_aside[-1]).read_bytes()) == (before, before)
    assert site.open().verify_chain().problem == ""


def test_ledger_that_cannot_be_copied_for_lack_of_room_is_not_given_up(site: Site) -> None:
    backup = site.back_up()
    ledger = site.open()
    ledger.take_lease(holder="host:1", ttl=15 * SECOND, now=LATER)
    change(site.url, "CREATE TABLE filler AS SELECT zeroblob(9000000) AS room")
    before = sorted(each.name for each in site.config.state_directory.iterdir())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000_000, limits[1]))
    try:
        with pytest.raises(LedgerError, match="cannot be copied") as caught:
            site.restore(backup, overwrite=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, heard)

    assert not isinstance(caught.value, LedgerDamaged)
    assert sorted(each.name for each in site.config.state_directory.iterdir()) == before
    assert ledger.why_refused() is None
    ledger.close()


# -- whose --


def owner_and_mode(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_what_root_puts_back_belongs_to_whom_its_place_belongs(site: Site) -> None:
    lake = Path(site.config.lake.url)
    (lake / "gpu/2026").mkdir(parents=True)
    (lake / "gpu/2026/hour.parquet").write_bytes(b"rows")
    backup = site.back_up(with_lake=True)
    fresh = site.directory / "fresh"
    fresh.mkdir()
    os.chown(fresh, 4711, 4712)
    state = fresh / "lib/state"
    config = replace(site.config, state_directory=state, ledger=LedgerConfig(url=f"sqlite:///{state}/ledger.sqlite"))
    old_umask = os.umask(0o077)
    try:
        restore = replace(site, config=config).restore
        restore(backup)
        aside = restore(backup, overwrite=True).kept_aside
        manifest = verify_backup(backup)
        put_where_missing(backup, manifest, "configuration", into=fresh / "etc")
        put_where_missing(backup, manifest, "lake", into=state / "lake")
    finally:
        os.umask(old_umask)

    made = [fresh / "lib", *fresh.rglob("lib/state/**/*"), state, *map(Path, aside)]
    assert {owner_and_mode(each) for each in made if each.is_dir()} == {(4711, 4712, 0o700)}
    assert {owner_and_mode(each) for each in made if each.is_file()} == {(4711, 4712, 0o600)}
    assert owner_and_mode(fresh / "etc") == (4711, 4712, 0o755)
    assert owner_and_mode(fresh / "etc/policy.yaml") == (4711, 4712, 0o644)


def test_file_that_cannot_be_put_back_is_told_and_the_others_are_put(site: Site) -> None:
    backup = site.back_up()
    into = site.directory / "fresh"
    (into / "cluster.yaml").mkdir(parents=True)

    done = put_where_missing(backup, verify_backup(backup), "configuration", into=into)

    assert done.put == (into / "policy.yaml",)
    assert done.problems == (f"not put back: {into / 'cluster.yaml'} (Is a directory)",)


def test_state_directory_that_cannot_be_made_is_refused(site: Site) -> None:
    config = replace(site.config, state_directory=site.cluster_file / "state")

    with pytest.raises(BackupError, match=r"cannot be put back: .*File exists"):
        replace(site, config=config).restore(site.back_up())


# -- killed --


def test_restore_killed_at_any_step_leaves_one_of_the_two_whole_and_can_be_done_again(site: Site) -> None:
    backup = site.back_up()
    site.use(3, until=timedelta(minutes=5))
    lose(site)  # In its place an empty one is made by anyone who looks.
    site.open().close()
    step, ended, was_there = 1, -signal.SIGKILL, set()
    while ended == -signal.SIGKILL:
        victim = CONTEXT.Process(target=restore_and_die, args=(site, backup, step))
        victim.start()
        victim.join()
        ended = victim.exitcode
        ledger = site.open()
        is_restored = ledger.found().head_seq > 0
        assert ledger.verify_chain().problem == ""
        assert is_restored or ledger.why_refused() is not None
        assert ledger.found().head_seq in (0, 6)
        was_there.add(is_restored)
        ledger.close()
        step += 37

    done = site.restore(backup, overwrite=True)

    left = [each.name for each in site.config.state_directory.iterdir() if each.name.startswith(".restoring")]
    assert (ended, was_there, left) == (0, {False, True}, [])
    assert site.open().why_refused() is None
    assert (done.head_seq, site.open().verify_chain().problem) == (6, "")


# -- versions --


def as_before_the_upgrade(site: Site) -> None:
    """Put a ledger there as the version before had it: made by its migrations, with incidents open and an act
    started."""
    lose(site)
    (site.config.state_directory / "ledger_seen.json").unlink()
    engine = create_engine(site.url)
    with engine.begin() as connection:
        migrate(connection, "0008")
    engine.dispose()
    made = SqlLedger("sqlite://")
    fill(made)
    made.begin(record(drain(2, node="gpu009")), guard=allow, lease_token=None, actor="autopilot", now=NOW)
    with made._database.read() as source:
        copy_rows(source, site.url)
    made.close()


def copy_rows(source: Any, url: str) -> None:
    from sqlalchemy import insert, inspect, select

    from ops_pipelines.resources.ledger.tables import metadata

    engine = create_engine(url)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            if inspect(connection).has_table(table.name):
                rows = [dict(row._mapping) for row in source.execute(select(table))]
                if rows:
                    connection.execute(insert(table), rows)
    engine.dispose()


def schema_of(url: str) -> str:
    engine = create_engine(url)
    with engine.connect() as connection:
        version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    engine.dispose()
    return str(version)


def test_upgrade_with_open_incidents_and_the_way_back_to_the_program_before(site: Site) -> None:
    as_before_the_upgrade(site)
    backup = site.back_up()
    before = verify_backup(backup)
    upgraded = site.open()
    state = upgraded.read_state(NOW)
    upgraded.take_lease(holder="host:1", ttl=SECOND, now=NOW)
    decide(upgraded, incident(7), through=state.decided_through)
    upgraded.close()
    after = schema_of(site.url)

    done = site.restore(backup, overwrite=True, as_it_was=True)

    assert (before.schema_version, after, schema_of(site.url)) == ("0008", "0010", "0008")
    assert state.incidents
    assert any(record.outcome is None for record in state.records)
    assert (done.head_seq, done.is_as_it_was, done.lost_count) == (before.head_seq, True, 2)
    again = site.open()  # Forward once more: whatever the older program wrote meanwhile is accepted.
    assert again.read_state(NOW).incidents == state.incidents
    assert (again.why_refused(), again.take_lease(holder="host:2", ttl=SECOND, now=LATER) is not None) == (None, True)


def test_backup_of_an_older_version_is_upgraded_on_its_way_back(site: Site) -> None:
    as_before_the_upgrade(site)
    backup = site.back_up()
    lose(site)

    done = site.restore(backup)

    assert (schema_of(site.url), done.open_incidents != ()) == ("0010", True)
    assert site.open().verify_chain().problem == ""
