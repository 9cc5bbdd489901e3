"""`notifier` in cluster.yaml: how quiet the autopilot is, and the faults that are reported with their remedy."""

from dataclasses import replace
from datetime import UTC, time, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.notes import TellRules
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.resources.config.yaml_file import ConfigError

CLUSTER = """
name: test
state_directory: state
policy: policy.yaml
gpus_per_node: 8
racks: [{name: r1, nodes: "gpu[001-004]"}]
scheduler: {kind: simulator}
telemetry: {kind: simulator}
logs: {kind: simulator}
fleet: {kind: simulator}
notifier: {kind: file%s}
"""


def rules(directory: Path, said: str = "") -> TellRules:
    path = directory / "cluster.yaml"
    path.write_text(CLUSTER % said)
    return read_cluster(path).notifier.tell_rules


def test_defaults_are_those_of_the_rules(tmp_path: Path) -> None:
    assert replace(rules(tmp_path), zone=UTC) == TellRules()


def test_every_key_reaches_the_rules(tmp_path: Path) -> None:
    said = (
        ", group_seconds: 5, burst_count: 2, refill_minutes: 1.5, quiet_hours: 23:30-06:15, digest_at: '08:05', "
        "timezone: Europe/Berlin, give_up_hours: 2, kept_days: 7"
    )

    read = rules(tmp_path, said)

    assert (read.group_window, read.burst_count, read.refill) == (timedelta(seconds=5), 2, timedelta(seconds=90))
    assert (read.quiet_from, read.quiet_until, read.digest_at) == (time(23, 30), time(6, 15), time(8, 5))
    assert (str(read.zone), read.give_up_after, read.kept_for) == (
        "Europe/Berlin",
        timedelta(hours=2),
        timedelta(days=7),
    )


def test_no_night_is_said_as_none(tmp_path: Path) -> None:
    assert rules(tmp_path, ", quiet_hours: none").quiet_from is None


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (", quiet_hours: '24:00-07:00'", "notifier.quiet_hours"),
        (", quiet_hours: 22-7", "notifier.quiet_hours"),
        (", digest_at: noon", "notifier.digest_at"),
        (", timezone: Mars/Base", r"notifier.timezone: found 'Mars/Base'; expected a zone of the IANA list"),
        (", burst_count: 0", "notifier.burst_count"),
        (", group_seconds: -1", "notifier.group_seconds"),
        (", urls_file: a", "unknown key"),
    ],
)
def test_fault_is_told_with_its_key(tmp_path: Path, said: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        rules(tmp_path, said)
