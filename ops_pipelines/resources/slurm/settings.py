"""The port `SchedulerSettings` over scontrol and sacctmgr. Changes nothing; what values mean is not decided here."""

import os
from collections.abc import Mapping
from pathlib import Path

from ops_pipelines.clock import Clock
from ops_pipelines.core.scheduler import SettingsRead
from ops_pipelines.core.sources import SourceError, SourceNonsense, SourceUnavailable
from ops_pipelines.resources.command_line import RunCommand, run_scheduler_command
from ops_pipelines.resources.slurm.accounting import accounting_environment
from ops_pipelines.resources.slurm.quota_answers import read_settings

COMMAND_LIMIT_SECONDS = 30.0
_CONFIG = ("scontrol", "show", "config")
_PARTITIONS = ("scontrol", "show", "partition", "-o")
_QOS = ("sacctmgr", "-P", "show", "qos")


class SlurmSettings:
    """The port `SchedulerSettings` on a Slurm; QOS need slurmdbd, the rest does not."""

    def __init__(
        self, *, clock: Clock, slurm_conf: Path | None = None, run: RunCommand = run_scheduler_command
    ) -> None:
        self._clock = clock
        self._environment = accounting_environment(os.environ, slurm_conf=slurm_conf)
        self._run = run

    def read(self) -> SettingsRead:
        """Return what scontrol and sacctmgr show."""
        cluster = read_settings(self._ask(*_CONFIG), source=" ".join(_CONFIG))
        partitions = read_partitions(self._ask(*_PARTITIONS), source=" ".join(_PARTITIONS))
        unread: tuple[str, ...] = ()
        qos: Mapping[str, Mapping[str, str]] = {}
        try:
            qos = read_qos(self._ask(*_QOS), source=" ".join(_QOS))
        except SourceError as exc:
            unread = (f"QOS: {exc}",)
        return SettingsRead(cluster=cluster, partitions=partitions, qos=qos, read_at=self._clock.now(), unread=unread)

    def _ask(self, *argv: str) -> str:
        answer = self._run(argv, environment=self._environment, timeout_seconds=COMMAND_LIMIT_SECONDS)
        if answer.returncode == 0:
            return answer.stdout
        said = " / ".join((answer.stderr + answer.stdout).strip().splitlines())[:300]
        raise SourceUnavailable(
            f"{' '.join(argv)} ended with {answer.returncode}: {said}. Check slurmctld, slurmdbd and munge"
        )


def read_partitions(text: str, *, source: str) -> Mapping[str, Mapping[str, str]]:
    """Return partition -> its settings, from `scontrol show partition -o`. Raises SourceNonsense without a name."""
    found: dict[str, Mapping[str, str]] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("No partitions"):
            continue
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if "PartitionName" not in words:
            raise SourceNonsense(f"{source} printed {line[:120]!r}; expected PartitionName=... Run it by hand")
        found[words.pop("PartitionName")] = words
    return found


def read_qos(text: str, *, source: str) -> Mapping[str, Mapping[str, str]]:
    """Return QOS -> its settings, from a table with a header. Raises SourceNonsense for a row that does not fit it."""
    lines = text.splitlines()
    header = lines[0].split("|") if lines else []
    if "Name" not in header:
        shown = lines[0][:120] if lines else "nothing"
        raise SourceNonsense(f"{source} printed {shown!r}; expected a header with Name. Run it by hand")
    found: dict[str, Mapping[str, str]] = {}
    for line in lines[1:]:
        cells = line.split("|")
        if len(cells) != len(header):
            raise SourceNonsense(f"{source}: {line[:120]!r} has {len(cells)} fields; expected {len(header)}")
        row = dict(zip(header, cells, strict=True))
        found[row.pop("Name")] = row
    return found
