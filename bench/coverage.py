"""What `ops-pipelines ingest` makes of every public file: records read, accepted, rejected by reason, ignored.

Prints the coverage table of docs/FORMATS.md in Markdown. Run it with `python -m bench.coverage`.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ops_pipelines.lake.quantities import Parsed, WrongKind
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.imports import FileKind, ingest
from ops_pipelines.resources.files import read_document

if TYPE_CHECKING:
    import pyarrow as pa

PUBLIC = Path(__file__).parent.parent.parent / "shared" / "data"
_AT = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS: Sequence[tuple[str, FileKind]] = (
    ("dcgm_scrapes/*.prom", FileKind.METRICS),
    ("node_exporter/*", FileKind.NODE_EXPORTER),
    ("nvidia_smi/telegraf/*.xml", FileKind.NVIDIA_SMI),
    ("nvidia_smi/netdata/*.xml", FileKind.NVIDIA_SMI),
    ("nvidia_smi/nvidia_gpu_exporter/*.txt.gz", FileKind.NVIDIA_SMI),
    ("nvidia_smi/nvidia_gpu_exporter/*.metrics.gz", FileKind.METRICS),
    ("nvidia_smi/nvidia_gpu_exporter/*.md", FileKind.NVIDIA_SMI),
    ("amd_rocm_smi/*.json", FileKind.NVIDIA_SMI),
    ("slurm_outputs/facebookresearch__gcm/sample-sacct-*", FileKind.SACCT),
    ("slurm_outputs/SckyzO__slurm_exporter/sacct_*", FileKind.SACCT),
    ("slurm_outputs/facebookresearch__gcm/*", FileKind.SLURM),
    ("slurm_outputs/OSC__ood_core/*", FileKind.SLURM),
    ("slurm_outputs/SckyzO__slurm_exporter/**/*", FileKind.SLURM),
    ("slurm_outputs/lcrownover__prometheus-slurm-exporter/*", FileKind.SLURM),
    ("slurm_outputs/rivosinc__prometheus-slurm-exporter/*", FileKind.SLURM),
    ("slurm_outputs/vpenso__prometheus-slurm-exporter/*", FileKind.SLURM),
    ("ub_sacct_xdmod/*", FileKind.SACCT),
    ("mit_supercloud/*", FileKind.SACCT),
    ("kernel_logs/gpud/*", FileKind.LOG),
    ("kernel_logs/*.jsonl", FileKind.LOG),
    ("loghub/*.log", FileKind.LOG),
    ("infiniband/gpud/**/sys-class-infiniband-*", FileKind.INFINIBAND),
    ("infiniband/treydock/ibnetdiscover/*", FileKind.INFINIBAND),
    ("infiniband/treydock/ibswinfo/*", FileKind.INFINIBAND),
    ("infiniband/treydock/perfquery*/*", FileKind.INFINIBAND),
    ("smartctl/*.json", FileKind.SMARTCTL),
    ("redfish/libredfish_model/*", FileKind.REDFISH),
    ("redfish/telegraf_dell/*", FileKind.REDFISH),
    ("redfish/dell_poweredge_r750.tar.gz", FileKind.REDFISH),
    ("redfish/nvidia_dpu.tar.gz", FileKind.REDFISH),
)
"""Files below the public data, and what they are ingested as. A file counts in the first group that it fits."""


class Nowhere:
    """A lake that keeps nothing, but takes only rows that a lake can take."""

    def add(self, table: str, rows: "pa.Table") -> None:
        if not rows.schema.equals(TABLES[table].arrow()):
            raise TypeError(f"rows of {table} do not have its columns")


@dataclass(slots=True, kw_only=True)
class Coverage:
    """What became of the files of one group."""

    files: str
    kind: FileKind
    file_count: int = 0
    wrong_kind: dict[str, str] = field(default_factory=dict)
    """File -> why it was refused as a whole."""
    read: int = 0
    accepted: int = 0
    ignored: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    """Table -> rows."""

    def line(self) -> str:
        """Return the group as a row of the Markdown table."""
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(self.rejected.items()))
        rejected = f"{self.rejected.total()} ({reasons})" if reasons else "0"
        cells = (f"`{self.files}`", self.kind.value, self.file_count, len(self.wrong_kind), self.read, self.accepted)
        return f"| {' | '.join(str(cell) for cell in (*cells, rejected, self.ignored))} |"


HEADING = (
    "| files | kind | files | of another kind | read | accepted | rejected | ignored |",
    "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: |",
)


def take_in(path: Path, kind: FileKind) -> Parsed:
    """Return what one file says. Raises WrongKind."""
    document = read_document(str(path), at=_AT, now=_AT)
    return ingest(document, kind=kind, lake=Nowhere(), known_nodes=None, node=None)  # type: ignore[arg-type]  # only `add`


def public_files(root: Path = PUBLIC) -> Iterator[tuple[Path, str, FileKind]]:
    """Yield every file, or directory that is taken as one, with its group and kind."""
    seen: set[Path] = set()
    for files, kind in GROUPS:
        for path in sorted(root.glob(files)):
            is_one = path.is_dir() == ("sys-class" in files)
            if is_one and path not in seen:
                seen.add(path)
                yield path, files, kind


def cover(files: Iterable[tuple[Path, str, FileKind]]) -> Mapping[str, Coverage]:
    """Return what became of each group of files."""
    found: dict[str, Coverage] = {}
    for path, group, kind in files:
        coverage = found.setdefault(group, Coverage(files=group, kind=kind))
        coverage.file_count += 1
        try:
            parsed = take_in(path, kind)
        except WrongKind as why:
            coverage.wrong_kind[path.name] = str(why)
            continue
        coverage.read += parsed.read
        coverage.accepted += parsed.accepted
        coverage.ignored += parsed.ignored
        coverage.rejected.update(parsed.reasons)
        coverage.rows.update({name: rows.num_rows for name, rows in parsed.tables.items()})
    return found


def table_lines(coverages: Iterable[Coverage]) -> list[str]:
    """Return the Markdown table."""
    return [*HEADING, *(each.line() for each in coverages)]


def main() -> int:
    """Print the table; return 1 if the public data is not here, else 0."""
    if not PUBLIC.is_dir():
        sys.stderr.write(f"{PUBLIC} is not here\n")
        return 1
    sys.stdout.write("\n".join([*table_lines(cover(public_files()).values()), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
