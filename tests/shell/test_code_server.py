"""The code server whose runs are forked: what is imported for them is there. That it serves is tested with its unit."""

import importlib.util

import pytest

from ops_pipelines.code_server import IMPORTED


@pytest.mark.parametrize("module", IMPORTED)
def test_what_is_imported_for_runs_exists(module: str) -> None:
    """The fork server passes over what it cannot import; each run would then import all of it anew, unnoticed."""
    assert importlib.util.find_spec(module) is not None
