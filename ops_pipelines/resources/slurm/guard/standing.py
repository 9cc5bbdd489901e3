"""Whether slurmctld's start guard works, asked from where the autopilot runs. Installs nothing, holds nothing."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ops_pipelines.core.sources import SourceError
from ops_pipelines.resources.command_line import RunCommand

_LIMIT_SECONDS = 4.0
"""Below the limit of one method of the scheduler: the guard asks slurmctld, munge and its disk."""
_ENDS_WITH = (0, 3)
"""What `status` ends with: all is well, or not."""


class GuardStatus:
    """Asks the guard that slurmctld names."""

    def __init__(self, command: Sequence[str], *, run: RunCommand) -> None:
        """`command` prints its status; empty: the guard lies on this host, and says so itself."""
        self._command, self._run = tuple(command), run

    def problem_of(self, prolog: str) -> str:
        """Return why the guard at `prolog` cannot be relied on; empty if it can."""
        if not self._command and not Path(prolog).is_file():
            return (
                f"{prolog} is not on this host; name in cluster.yaml, as scheduler.guard_status, a command that prints "
                f"`{prolog} status` of the host of slurmctld"
            )
        argv = self._command or (prolog, "status")
        try:
            answer = self._run(argv, environment=dict(os.environ), timeout_seconds=_LIMIT_SECONDS)
            if answer.returncode not in _ENDS_WITH:
                said = " / ".join((answer.stderr + answer.stdout).split("\n"))[:200]
                return f"{' '.join(argv)} ended with {answer.returncode}: {said}"
            told = json.loads(answer.stdout)
            if told["is_well"] is True:
                return ""
            return "; ".join(str(each) for each in told["problems"])[:500] or "the guard says that it is not well"
        except SourceError as problem:
            return f"the guard does not answer: {problem}"
        except (ValueError, KeyError, TypeError):
            return f"{' '.join(argv)} printed no status; run it by hand"
