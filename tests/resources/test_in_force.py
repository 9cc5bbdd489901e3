"""What holds while policy.yaml or cluster.yaml changes, breaks or goes: the last good one for an hour, then observe."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.core.notes import Audience, Message
from ops_pipelines.core.policy import Mode
from ops_pipelines.resources.config.in_force import (
    GRACE,
    LAST_GOOD_CLUSTER_FILE,
    LAST_GOOD_POLICY_FILE,
    SETTLES,
    read_cluster_in_force,
)
from ops_pipelines.resources.config.yaml_file import ConfigError
from ops_pipelines.wiring import OpenedSite
from tests.shell.desk import CLUSTER_YAML
from tests.simulator.fake_clock import FakeClock

AUTO = 'mode: auto\ndrain_budget: {min_in_service_ratio: 0.5}\nuntouchable_nodes: ["gpu003"]\n'
PAGE = Message(audience=Audience.ON_CALL, recipient="operator on call", thread="INC-0001", title="look", body="here")
SLIP = "mode: auto\ndrain_bugdet: {}\n"


class Site:
    """A directory with the two files, and processes that open them."""

    def __init__(self, directory: Path, *, policy: str = AUTO) -> None:
        self.clock = FakeClock()
        self.state = directory / "state"
        self.cluster_file = directory / "cluster.yaml"
        self.policy_file = directory / "policy.yaml"
        self.cluster_file.write_text(CLUSTER_YAML, encoding="utf-8")
        self.write(policy)
        self.process = self.begin()

    def write(self, policy: str | bytes) -> None:
        self.policy_file.write_bytes(policy.encode() if isinstance(policy, str) else policy)

    def begin(self) -> OpenedSite:
        """Return a new process."""
        return OpenedSite(self.cluster_file, self.clock)

    def mode(self) -> Mode:
        return self.process.cluster().rules.policy.mode


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_process_that_runs_works_by_the_file_as_it_is_now_and_stores_the_rules(site: Site) -> None:
    before = site.process.cluster()
    site.write("mode: approve\n")

    after = site.process.cluster()

    assert (before.rules.policy.mode, after.rules.policy.mode) == (Mode.AUTO, Mode.APPROVE)
    assert after.rules_digest != before.rules_digest
    assert after.ledger.load(after.rules_digest)
    assert after.ledger is before.ledger
    assert site.process.cluster() is after


def test_pass_that_has_begun_keeps_its_rules(site: Site) -> None:
    in_hand = site.process.cluster()

    site.write("mode: observe\n")
    site.process.cluster()

    assert in_hand.rules.policy.mode is Mode.AUTO


@pytest.mark.parametrize("slip", [SLIP, "mode: [", "", b"\xff", None])
def test_file_that_cannot_be_used_leaves_what_it_said_before_and_is_named(site: Site, slip: str | bytes | None) -> None:
    site.process.cluster()
    if slip is None:
        site.policy_file.unlink()
    else:
        site.write(slip)

    cluster = site.process.cluster()

    if slip == "":  # An empty file is a right one: everything at its default.
        assert (cluster.rules.policy.mode, cluster.troubles) == (Mode.OBSERVE, ())
        return
    (trouble,) = cluster.troubles
    assert cluster.rules.policy.mode is Mode.AUTO
    assert cluster.rules.policy.untouchable_nodes == {"gpu003"}
    assert (trouble.file, trouble.since, trouble.until) == ("policy.yaml", site.clock.now(), site.clock.now() + GRACE)
    assert "correct the file" in trouble.fault


def test_fault_is_told_with_its_line_and_its_remedy(site: Site) -> None:
    site.process.cluster()
    site.write(SLIP)

    (trouble,) = site.process.cluster().troubles

    assert "line 2: drain_bugdet: unknown key; did you mean drain_budget?" in str(trouble)


@pytest.mark.parametrize(
    ("after", "mode"),
    [
        (GRACE - timedelta(seconds=1), Mode.AUTO),
        (GRACE, Mode.OBSERVE),
        (GRACE + timedelta(seconds=1), Mode.OBSERVE),
    ],
)
def test_last_good_one_holds_for_an_hour_and_then_nothing_is_begun(site: Site, after: timedelta, mode: Mode) -> None:
    site.process.cluster()
    site.write(SLIP)
    site.process.cluster()

    site.clock.wait(after.total_seconds())

    assert site.mode() is mode
    assert bool(site.process.cluster().fallbacks) is (mode is Mode.OBSERVE)


def test_restart_does_not_begin_another_hour(site: Site) -> None:
    site.process.cluster()
    site.write(SLIP)
    site.process.cluster()
    site.clock.wait(GRACE.total_seconds() - 1)

    site.process = site.begin()
    just_before = site.mode()
    site.clock.wait(1)

    assert (just_before, site.mode()) == (Mode.AUTO, Mode.OBSERVE)


def test_another_slip_does_not_begin_another_hour_and_a_right_file_ends_the_trouble(site: Site) -> None:
    site.process.cluster()
    site.write(SLIP)
    site.process.cluster()
    site.clock.wait(GRACE.total_seconds())
    site.write("mode: full\n")
    still = site.mode()

    site.write(AUTO)

    assert (still, site.mode(), site.process.cluster().troubles) == (Mode.OBSERVE, Mode.AUTO, ())


def test_cluster_file_that_was_mended_has_a_whole_hour_when_it_breaks_again(site: Site) -> None:
    site.process.cluster()
    for _ in range(2):
        site.cluster_file.write_text("name: [\n", encoding="utf-8")
        (trouble,) = site.process.cluster().troubles
        assert trouble.since == site.clock.now()
        site.cluster_file.write_text(CLUSTER_YAML, encoding="utf-8")
        assert site.process.cluster().troubles == ()
        site.clock.wait(GRACE.total_seconds())


def test_trouble_ends_by_itself_when_a_file_that_was_missing_is_there_again(site: Site) -> None:
    named = site.cluster_file.with_name("ledger.url")
    site.process.cluster()
    site.cluster_file.write_text(f"{CLUSTER_YAML}\nledger: {{url_file: ledger.url}}\n", encoding="utf-8")
    assert [each.file for each in site.process.cluster().troubles] == ["cluster.yaml"]
    named.write_text("sqlite:///ledger.sqlite\n", encoding="utf-8")
    named.chmod(0o600)

    site.clock.wait(30)

    assert site.process.cluster().troubles == ()


@pytest.mark.parametrize("slip", ["mode: auto\nracks: [\n", "mode: auto\nx: }{\n", "mode: auto\n\tx: 1\n"])
def test_what_is_no_yaml_is_told_in_one_sentence_with_its_line(site: Site, slip: str) -> None:
    site.process.cluster()
    site.write(slip)

    (trouble,) = site.process.cluster().troubles

    assert "is not YAML: line " in trouble.fault
    assert "more;" not in trouble.fault
    assert "unicode string" not in trouble.fault


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_what_is_written_beside_the_ledger_is_ours_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        site = Site(tmp_path)
        cluster = site.process.cluster()
        cluster.ledger.read_state(site.clock.now())
        cluster.notifier.send(PAGE)
    finally:
        os.umask(before)

    written = [site.state, *site.state.rglob("*")]
    assert {"ledger.sqlite", "messages.jsonl", LAST_GOOD_POLICY_FILE} <= {path.name for path in written}
    assert {oct(path.stat().st_mode & 0o077) for path in written} == {oct(0)}


def test_time_that_cannot_be_written_down_leaves_no_hour(site: Site) -> None:
    site.process.cluster()
    (site.state / f"{LAST_GOOD_POLICY_FILE}.trouble").mkdir()
    site.write(SLIP)

    assert site.mode() is Mode.OBSERVE


def test_policy_that_was_never_right_allows_nothing_and_stops_no_process(tmp_path: Path) -> None:
    site = Site(tmp_path, policy=SLIP)

    (trouble,) = site.process.cluster().troubles

    assert site.mode() is Mode.OBSERVE
    assert "nothing is started" in str(trouble)


def test_another_try_at_a_broken_file_begins_no_moment_of_acting(site: Site) -> None:
    """The hour of the last good one is over; while the new try settles, nobody knows yet what it says."""
    site.write(SLIP)
    assert site.mode() is Mode.AUTO
    site.clock.wait(GRACE.total_seconds() + 1)
    assert site.mode() is Mode.OBSERVE

    site.write(SLIP + "# another try\n")
    os.utime(site.policy_file, (site.clock.now().timestamp(),) * 2)

    assert site.mode() is Mode.OBSERVE
    assert site.begin().cluster().rules.policy.mode is Mode.OBSERVE
    site.write("mode: auto\n")
    site.clock.wait(SETTLES.total_seconds())
    assert site.mode() is Mode.AUTO


def test_half_written_file_is_not_believed_before_it_has_settled(site: Site) -> None:
    site.process.cluster()
    site.write("mode: auto\n")  # Half of it: the node that must not be touched is not written yet.
    now = site.clock.now().timestamp()
    os.utime(site.policy_file, (now, now))

    at_once = site.process.cluster()
    site.clock.wait(SETTLES.total_seconds())
    settled = site.process.cluster()

    assert at_once.rules.policy.untouchable_nodes == {"gpu003"}
    assert at_once.troubles == ()
    assert settled.rules.policy.untouchable_nodes == frozenset()


def test_cluster_file_that_broke_leaves_what_a_process_has_read_and_a_new_process_reads_the_last_good_one(
    site: Site,
) -> None:
    site.process.cluster()
    site.cluster_file.write_text(CLUSTER_YAML + "rakcs: []\n", encoding="utf-8")

    running, begun = site.process.cluster(), site.begin().cluster()

    for cluster in (running, begun):
        assert [each.file for each in cluster.troubles] == ["cluster.yaml"]
        assert cluster.rules.policy.mode is Mode.AUTO
        assert len(cluster.rules.topology.places) == 4
    site.clock.wait(GRACE.total_seconds())
    assert site.mode() is Mode.OBSERVE


def test_cluster_file_that_changed_needs_a_restart_and_says_so(site: Site) -> None:
    site.process.cluster()
    site.cluster_file.write_text(CLUSTER_YAML.replace("name: test", "name: other"), encoding="utf-8")

    running, begun = site.process.cluster(), site.begin().cluster()

    assert (running.name, running.restart_for) == ("test", "cluster.yaml")
    assert (begun.name, begun.restart_for) == ("other", "")


def test_cluster_file_without_a_last_good_one_is_refused_with_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("name: x\n", encoding="utf-8")

    with pytest.raises(ConfigError, match="state_directory: this key is missing"):
        read_cluster_in_force(file, now=FakeClock().now())


def test_copy_of_another_cluster_is_not_taken(site: Site, tmp_path: Path) -> None:
    site.process.cluster()
    other = tmp_path / "other"
    other.mkdir()
    (other / LAST_GOOD_CLUSTER_FILE).write_bytes((site.state / LAST_GOOD_CLUSTER_FILE).read_bytes())
    lost = tmp_path / "elsewhere" / "cluster.yaml"

    with pytest.raises(ConfigError):
        read_cluster_in_force(lost, now=site.clock.now(), named=other)


@pytest.fixture(scope="module")
def kept_site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """One for many attempts: each opening of a new ledger takes its time."""
    return Site(tmp_path_factory.mktemp("site"), policy="mode: observe\n")


@settings(max_examples=60)
@given(content=st.binary(max_size=80) | st.text(alphabet="mode: auto\n[]{}'\"#-&*!|>%@`x", max_size=60).map(str.encode))
def test_no_bytes_in_policy_yaml_stop_a_process_or_allow_more_than_the_last_good_one(
    kept_site: Site, content: bytes
) -> None:
    kept_site.write("mode: observe\n")
    kept_site.process.cluster()
    kept_site.write(content)

    assert kept_site.mode() is Mode.OBSERVE or b"mode" in content


@settings(max_examples=40)
@given(content=st.binary(max_size=80))
def test_no_bytes_in_cluster_yaml_stop_a_process_that_begins(kept_site: Site, content: bytes) -> None:
    kept_site.cluster_file.write_bytes(content)

    assert "cluster.yaml" in [each.file for each in kept_site.begin().cluster().troubles]
