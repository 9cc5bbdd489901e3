"""The desk of teams for the web process: opened once, beside the cluster that is served; and what its pages share."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.policy import PolicyError
from ops_pipelines.teams.desk import TeamsDesk

if TYPE_CHECKING:
    from ops_pipelines.resources.config.cluster_config import ClusterConfig
    from ops_pipelines.resources.config.kept_files import Stamp


class NotThere(LookupError):
    """What was asked for is not there. The message says what is; it is shown, escaped."""


class TeamsAtHand:
    """Returns the desk of one cluster. cluster.yaml is read once, as by every process; what it names on change."""

    def __init__(self, open_cluster: Callable[[], Cluster], cluster_file: Path | None) -> None:
        """`cluster_file` None: only the ledger is served."""
        self._open_cluster = open_cluster
        self._cluster_file = cluster_file
        self._lock = Lock()
        self._desk: TeamsDesk | None = None
        self._config: ClusterConfig | None = None
        self._stamps: tuple[Stamp, ...] = ()

    def desk(self) -> TeamsDesk | None:
        """Return the desk; None where only the ledger is served. Raises LedgerError; PolicyError on a wrong file."""
        from ops_pipelines.resources.config.in_force import stated_stamps
        from ops_pipelines.wiring import assemble_observatory, assemble_teams_desk, config_in_force

        if self._cluster_file is None:
            return None
        cluster = self._open_cluster()
        with self._lock:
            stamps = () if self._config is None else stated_stamps(self._config)
            if self._desk is None or self._desk.cluster is not cluster or stamps != self._stamps:
                try:
                    config = config_in_force(self._cluster_file)
                    self._config, self._stamps = config, stated_stamps(config)
                    observatory = assemble_observatory(config, cluster.clock)
                    self._desk = assemble_teams_desk(config, cluster=cluster, observatory=observatory)
                except PolicyError as problem:  # Its words hold paths of ours.
                    raise PolicyError(
                        "what cluster.yaml and teams.yaml say of teams cannot be read; `ops-pipelines check-config` "
                        "says why"
                    ) from problem
            return self._desk

    def whole_desk(self) -> TeamsDesk:
        """Return the desk; raise NotThere where only the ledger is served."""
        desk = self.desk()
        if desk is None:
            raise NotThere("the lake is not at hand here, and this page reads it")
        return desk
