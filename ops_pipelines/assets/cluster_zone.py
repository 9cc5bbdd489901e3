"""What schedules must know of teams: the zone in which days begin, and whether anybody named teams.

Schedules are made before anything is opened. Reads two lines of YAML and nothing else. A file that is wrong or missing
is no fault here: who opens the cluster says what is wrong with it, and until then schedules go by UTC.
"""

import os
from pathlib import Path
from zoneinfo import ZoneInfo

CLUSTER_VARIABLE = "OPS_PIPELINES_CLUSTER"


def zone_of_days() -> str:
    """Return the zone that the file of teams names, of the cluster that the environment or the directory names."""
    return zone_in(cluster_file())


def names_no_teams() -> bool:
    """Return whether that cluster names no file of teams; one that cannot be read is for its run to tell."""
    import yaml

    try:
        cluster = yaml.safe_load(cluster_file().read_text(encoding="utf-8"))
        return isinstance(cluster, dict) and cluster.get("teams") is None
    except (OSError, ValueError, yaml.YAMLError):
        return False


def cluster_file() -> Path:
    """Return the cluster file that the environment names, else cluster.yaml in the working directory."""
    return Path(os.environ.get(CLUSTER_VARIABLE, "cluster.yaml"))


def zone_in(named: Path) -> str:
    """Return the zone that teams.yaml of a cluster names; `UTC` where none is, or where it cannot be read."""
    import yaml

    try:
        cluster = yaml.safe_load(named.read_text(encoding="utf-8"))
        teams = yaml.safe_load((named.parent / str(cluster["teams"])).read_text(encoding="utf-8"))
        return str(ZoneInfo(str(teams["timezone"])))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        return "UTC"
