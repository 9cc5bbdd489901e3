"""A real Slurm for tests marked `live`: where it comes from, and when its absence is a failure.

`start_cluster` skips where Slurm is not installed, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says that it must be there.
OPS_PIPELINES_SLURM=/opt/slurm-25.11 takes another Slurm than Debian's, daemons and clients alike.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster, SlurmClusterError, find_missing_packages, search_path
from ops_pipelines_lab.drills.slurm_cluster_files import SlurmClusterSettings
from ops_pipelines_lab.drills.stack import free_ports

_SLURMD_TIMEOUT_SECONDS = 6
"""Less than the drills' own 10: every test of a silent node waits for it, and slurmd answers within milliseconds."""


@contextmanager
def start_cluster(
    *, node_count: int, on_reboot: tuple[str, ...] = (), is_guarded: bool = False
) -> Iterator[SlurmCluster]:
    """Start a cluster in a directory of its own and delete it afterwards.

    Without the start guard, unless asked for: what Slurm does by itself is what most tests are about.
    Not below pytest's tmp_path: Unix sockets may not be named longer than 107 bytes.
    """
    prefix = Path(os.environ["OPS_PIPELINES_SLURM"]) if "OPS_PIPELINES_SLURM" in os.environ else None
    if prefix is not None and not os.environ["PATH"].startswith(f"{prefix}/"):
        os.environ["PATH"] = f"{search_path(prefix)}:{os.environ['PATH']}"  # Our clients look there.
    missing = find_missing_packages(prefix)
    if missing and os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") != "1":
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))
    settings = SlurmClusterSettings(
        directory=directory,
        node_count=node_count,
        first_port=free_ports(102 + 2 * node_count),
        slurmd_timeout_seconds=_SLURMD_TIMEOUT_SECONDS,
        on_reboot=on_reboot,
        is_guarded=is_guarded,
        prefix=prefix,
    )
    cluster = SlurmCluster(settings)
    try:
        cluster.start()
        yield cluster
    except SlurmClusterError as exc:
        pytest.fail(str(exc))
    finally:
        cluster.stop()
        shutil.rmtree(directory)
