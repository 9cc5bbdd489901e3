"""What every reader of a scheduler's settings must do: on the simulator, on recorded answers, and on a real Slurm.

A subclass provides the fixture `world`.
"""

from datetime import datetime
from typing import Protocol

import pytest

from ops_pipelines.core.scheduler import SchedulerSettings, Values
from ops_pipelines.efficiency.placement.rows import read_scheduler_policy
from ops_pipelines.efficiency.placement.scheduler_policy import ClusterFacts, Scope, find_policy_faults

LEAST = ("ClusterName", "SchedulerType", "PriorityType", "PreemptType", "PreemptMode")
"""Settings of the cluster without which hardly a row of the catalogue can be judged."""
LEAST_OF_PARTITIONS = ("DefaultTime", "MaxTime", "OverSubscribe", "PreemptMode", "TRES")


class SettingsWorld(Protocol):
    """A cluster with at least one partition."""

    @property
    def settings(self) -> SchedulerSettings: ...

    @property
    def partitions(self) -> frozenset[str]:
        """All that there are."""
        ...

    def now(self) -> datetime:
        """Return the time by the clock that readings are dated by."""
        ...


class SchedulerSettingsContract:
    @pytest.fixture
    def world(self) -> SettingsWorld:
        raise NotImplementedError("a subclass of SchedulerSettingsContract provides the fixture `world`")

    def test_the_cluster_says_how_it_schedules(self, world: SettingsWorld) -> None:
        cluster = world.settings.read().cluster

        assert [name for name in LEAST if not cluster.get(name)] == []

    def test_every_partition_is_read_by_its_name(self, world: SettingsWorld) -> None:
        partitions = world.settings.read().partitions

        assert partitions.keys() == world.partitions
        assert {name for values in partitions.values() for name in LEAST_OF_PARTITIONS if name not in values} == set()

    def test_a_reading_is_dated_between_its_question_and_its_answer(self, world: SettingsWorld) -> None:
        asked_at = world.now()

        read_at = world.settings.read().read_at

        assert asked_at <= read_at <= world.now()
        assert read_at.utcoffset() is not None

    def test_reading_changes_nothing(self, world: SettingsWorld) -> None:
        first, second = world.settings.read(), world.settings.read()

        assert (first.cluster.keys(), first.partitions, first.qos) == (
            second.cluster.keys(),
            second.partitions,
            second.qos,
        )

    def test_names_are_trimmed_and_no_value_spans_lines(self, world: SettingsWorld) -> None:
        read = world.settings.read()
        listed: list[Values] = [read.cluster, *read.partitions.values(), *read.qos.values()]

        for values in listed:
            assert all(name == name.strip() != "" for name in values)
            assert not any("\n" in value for value in values.values())

    def test_the_catalogue_can_be_judged_by_what_is_read(self, world: SettingsWorld) -> None:
        read = world.settings.read()

        found = find_policy_faults(read_scheduler_policy(), read, facts=ClusterFacts(queue_length=0, leaf_count=2))

        known = {"", *(f"partition {name}" for name in read.partitions), *(f"qos {name}" for name in read.qos)}
        assert {each.where for each in found.findings} <= known
        of_partitions = {row.setting for row in read_scheduler_policy() if row.scope is Scope.PARTITION}
        assert not [each for each in found.unknown if each.split(":")[0] in of_partitions]
