"""Files of policy comparisons: the proposed policy that is read, and the newest page, which `serve` shows."""

from pathlib import Path

from ops_pipelines.core.identity import Topology
from ops_pipelines.core.policy import Policy, PolicyError
from ops_pipelines.resources.config.policy_file import read_policy
from ops_pipelines.resources.whole_file import put_whole

PAGE_NAME = "policy_comparison.html"


class ComparisonPages:
    """The newest page of one cluster's state directory; it appears whole or not at all."""

    def __init__(self, state_directory: Path) -> None:
        self._page = state_directory / PAGE_NAME

    def keep(self, html: str) -> str:
        """Put a page in place of the one before, and return where it is. Raises OSError."""
        self._page.parent.mkdir(parents=True, exist_ok=True)
        put_whole(self._page, html)
        return str(self._page)

    def newest(self) -> str | None:
        """Return the newest page, None if none was written yet. Raises OSError."""
        try:
            return self._page.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None


def read_proposed_policy(name: str, *, beside: Path, topology: Topology) -> Policy:
    """Return the policy of the file `name` in the directory of the present policy.

    Whoever may launch a job names it: no other directory is read. Raises PolicyError, also for a policy that would be
    refused in production.
    """
    directory = beside.parent.resolve()
    path = (directory / name).resolve()
    if path.parent != directory or path.suffix not in (".yaml", ".yml"):
        raise PolicyError(
            f"{name!r} is not the name of a policy beside {beside.name}; expected a .yaml file of that directory, "
            "without a path"
        )
    return read_policy(path, topology=topology)
