"""The throw-away Slurm as a command: `python -m ops_pipelines_lab.drills.slurm_cluster_program start DIRECTORY`.

Called by people, by the cluster's own RebootProgram, and as the power switch of a drill. Decides nothing.
"""

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from ops_pipelines.core.identity import NodeName, parse_node_name
from ops_pipelines_lab.drills.slurm_cluster import SlurmCluster, SlurmClusterError, open_cluster
from ops_pipelines_lab.drills.slurm_cluster_files import SlurmClusterSettings

_OF_CLUSTER: Mapping[str, Callable[[SlurmCluster], None]] = {
    "stop": SlurmCluster.stop,
    "delete": SlurmCluster.delete,
    "clear": SlurmCluster.clear,
}
_OF_NODE: Mapping[str, Callable[[SlurmCluster, NodeName], None]] = {
    "kill-node": SlurmCluster.kill_node,
    "stop-node": SlurmCluster.stop_node,
    "start-node": SlurmCluster.start_node,
    "power-off-node": SlurmCluster.power_off_node,
    "power-on-node": SlurmCluster.power_on_node,
    "reboot-node": SlurmCluster.reboot_node,
}


def main(argv: list[str] | None = None) -> int:
    """Run one command on one cluster; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        _run(options)
    except SlurmClusterError as exc:
        print(f"slurm_cluster: {exc}", file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.verb == "start":
        settings = SlurmClusterSettings(
            directory=options.directory,
            node_count=options.nodes,
            first_port=options.first_port,
            on_reboot=tuple(shlex.split(options.on_reboot)),
        )
        SlurmCluster(settings).start()
        return
    cluster = open_cluster(options.directory)
    if options.verb in _OF_CLUSTER:
        _OF_CLUSTER[options.verb](cluster)
    elif options.verb in _OF_NODE:
        _OF_NODE[options.verb](cluster, options.node)
    elif options.verb == "power-state":
        print("on" if cluster.is_powered(options.node) else "off")
    else:
        print(f"export SLURM_CONF={shlex.quote(str(cluster.settings.slurm_conf))}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="slurm_cluster", description="A throw-away Slurm in one directory.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    start = verbs.add_parser("start", help="start what does not run; wait until the nodes are there")
    start.add_argument("directory", type=Path)
    start.add_argument("--nodes", type=int, default=16)
    start.add_argument("--first-port", type=int, default=16800)
    start.add_argument("--on-reboot", default="", help="command called at each reboot; the node's name is appended")
    for verb in (*_OF_CLUSTER, "environment"):
        verbs.add_parser(verb).add_argument("directory", type=Path)
    for verb in (*_OF_NODE, "power-state"):
        of_node = verbs.add_parser(verb)
        of_node.add_argument("directory", type=Path)
        of_node.add_argument("node", type=parse_node_name)
    return parser


if __name__ == "__main__":
    sys.exit(main())
