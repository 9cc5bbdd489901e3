"""Settings as Slurm 22.05 was seen to print them, and what becomes of answers that cannot be believed."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ops_pipelines.core.sources import SourceNonsense, SourceUnavailable
from ops_pipelines.efficiency.placement.rows import read_scheduler_policy
from ops_pipelines.efficiency.placement.scheduler_policy import ClusterFacts, find_policy_faults
from ops_pipelines.resources.commands import CommandAnswer
from ops_pipelines.resources.slurm.quota_limits import read_partitions
from ops_pipelines.resources.slurm.quotas import SlurmSettings, read_qos
from tests.simulator.fake_clock import FakeClock

RECORDED = Path(__file__).parents[1] / "data" / "slurm"
CONFIG = (RECORDED / "scontrol-config-22.05-fair-share-and-preemption.txt").read_text()
PARTITIONS = (RECORDED / "scontrol-partitions-22.05-gpus-billed-and-free.txt").read_text()
QOS = (RECORDED / "sacctmgr-qos-22.05-one-preempts-the-others.txt").read_text()


class Printed:
    """Fits RunCommand: prints what was recorded."""

    def __init__(self, **changes: CommandAnswer) -> None:
        self._answers = {
            "config": CommandAnswer(returncode=0, stdout=CONFIG, stderr=""),
            "partition": CommandAnswer(returncode=0, stdout=PARTITIONS, stderr=""),
            "qos": CommandAnswer(returncode=0, stdout=QOS, stderr=""),
            **changes,
        }

    def __call__(self, argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
        return next(answer for word, answer in self._answers.items() if word in argv)


def settings(**changes: CommandAnswer) -> SlurmSettings:
    return SlurmSettings(clock=FakeClock(), run=Printed(**changes))


FAILED = CommandAnswer(returncode=1, stdout="", stderr="Connection refused")


def test_what_slurm_prints_is_read_as_it_is() -> None:
    read = settings().read()

    assert read.cluster["PriorityWeightFairShare"] == "100000"
    assert read.partitions["billed"]["TRESBillingWeights"] == "CPU=0.5,Mem=0.25G,GRES/gpu=2.0"
    assert sorted(read.qos) == ["high", "normal", "preemptible"]
    assert read.qos["high"]["Preempt"] == "normal,preemptible"
    assert read.unread == ()


def test_what_is_wrong_with_a_recorded_cluster_is_found() -> None:
    found = find_policy_faults(read_scheduler_policy(), settings().read(), facts=ClusterFacts(queue_length=501))

    assert [(each.rule, each.where, each.found) for each in found.findings] == [
        ("gpus_bill_nothing", "partition batch", "(nothing)"),
        ("no_exempt_time", "", "00:00:00"),
        ("window_too_short", "", "1440, below 10080 minutes"),
        ("looks_at_too_few", "", "500, below 501"),
        ("no_default_time", "partition billed", "NONE"),
        ("no_default_time", "partition empty", "NONE"),
        ("no_default_time", "partition typed", "NONE"),
        ("no_longest_time", "partition empty", "UNLIMITED"),
        ("unrunnable_wait", "", "NO"),
    ]
    assert found.unknown == ()


def test_without_slurmdbd_the_rest_is_read_and_what_is_missing_is_said() -> None:
    read = settings(qos=FAILED).read()

    assert read.partitions
    assert read.qos == {}
    assert "Connection refused" in read.unread[0]


def test_without_slurmctld_nothing_is_read() -> None:
    with pytest.raises(SourceUnavailable, match="scontrol show config ended with 1: Connection refused"):
        settings(config=FAILED).read()


@pytest.mark.parametrize("text", ["", "Priority|Flags\n1|\n", "Name|Flags\nnormal|a|b\n"])
def test_a_table_of_qos_that_cannot_be_believed_is_refused(text: str) -> None:
    with pytest.raises(SourceNonsense, match=r"header|fields"):
        read_qos(text, source="sacctmgr")


def test_a_line_that_names_no_partition_is_refused() -> None:
    with pytest.raises(SourceNonsense, match="expected PartitionName"):
        read_partitions("slurm_load_partitions error\n", source="scontrol")
    assert read_partitions("No partitions in the system\n\n", source="scontrol") == {}
