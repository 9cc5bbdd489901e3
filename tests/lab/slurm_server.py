"""A real Slurm for tests marked `live`: where it comes from, and when its absence is a failure.

`start_cluster` skips where Slurm is not installed, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says that it must be there.
"""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ops_pipelines.drills.slurm_cluster import SlurmCluster, SlurmClusterError, find_missing_packages
from ops_pipelines.drills.slurm_cluster_files import SlurmClusterSettings


@contextmanager
def start_cluster(*, node_count: int) -> Iterator[SlurmCluster]:
    """Start a cluster in a directory of its own and delete it afterwards.

    Not below pytest's tmp_path: Unix sockets may not be named longer than 107 bytes.
    """
    missing = find_missing_packages()
    if missing and os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") != "1":
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    directory = Path(tempfile.mkdtemp(prefix="slurm-"))
    settings = SlurmClusterSettings(
        directory=directory, node_count=node_count, first_port=find_free_ports(102 + node_count)
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


def find_free_ports(count: int) -> int:
    """Return the first of `count` loopback ports that nobody listens on now."""
    for first in range(17000, 30000, count):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    pytest.fail(f"no {count} free ports in a row between 17000 and 30000")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
