"""What the program's files take on this machine's disks, by part: for `status`. Opens no file but the ledger's own.

What lies elsewhere (PostgreSQL, an object store, the journal) is not counted: its part is missing.
"""

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.resources.config.cluster_config import ClusterConfig
from ops_pipelines.resources.config.in_force import read_cluster_in_force

_PART_OF: Mapping[str, str] = {
    "lake": "lake",
    "evidence": "evidence",
    "reports": "pages",
    "chargeback": "pages",
    "capacity": "pages",
    "log": "logs",
}
"""By the first name below the state directory or Dagster's home."""
_BLOCK_BYTES = 512
_PATIENCE_SECONDS = 1.0


def disk_use_of(cluster_file: Path, *, state: Path | None) -> Mapping[str, int]:
    """Return what each part takes; nothing where no configuration says where it lies."""
    try:
        config = read_cluster_in_force(cluster_file, now=SystemClock().now(), named=state).content
    except PolicyError:
        return {}
    return read_disk_use(config, dagster_home=os.environ.get("DAGSTER_HOME"))


def read_disk_use(config: ClusterConfig, *, dagster_home: str | None) -> Mapping[str, int]:
    """Return the bytes of blocks that each part takes. `snapshots` are within `ledger`, and counted in both."""
    state = config.state_directory
    homes = [Path(dagster_home)] if dagster_home else []
    found = Counter[str]()
    for name, size in _sizes(state, without=homes):
        found["ledger" if name.startswith("ledger.sqlite") else _PART_OF.get(name, "other")] += size
    lake = Path(config.lake.url)
    if "://" not in config.lake.url and not lake.is_relative_to(state):
        found["lake"] += sum(size for _, size in _sizes(lake, without=[]))
    for home in homes:
        for name, size in _sizes(home, without=[]):
            found["logs" if _PART_OF.get(name) == "logs" else "dagster"] += size
    if "ledger" in found:
        found["snapshots"] = _snapshots(state / "ledger.sqlite")
    return dict(sorted(found.items()))


def _sizes(root: Path, *, without: list[Path]) -> Iterator[tuple[str, int]]:
    """Yield of each file the first name below `root`, and what it takes. What goes away meanwhile is passed over."""
    left_out = {str(path.resolve()) for path in without}
    waiting = [(str(root.resolve()), "")]
    while waiting:
        directory, top = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    name = top or entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path in left_out:
                            continue
                        waiting.append((entry.path, name))
                    yield name, entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
        except OSError:
            continue


def _snapshots(ledger: Path) -> int:
    """Return what decisions were made from, and the rules of then: compressed, each once."""
    try:
        with closing(sqlite3.connect(f"{ledger.as_uri()}?mode=ro", uri=True, timeout=_PATIENCE_SECONDS)) as connection:
            (size,) = connection.execute("SELECT coalesce(sum(length(compressed)), 0) FROM documents").fetchone()
            return int(size)
    except sqlite3.Error:
        return 0
