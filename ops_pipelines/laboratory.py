"""How the product reaches the laboratory: by name and when asked, for it is a distribution of its own.

A real cluster needs nothing of it. A simulated cluster and `simulate` do, and say so where it is missing.
"""

from importlib import import_module
from types import ModuleType

from ops_pipelines.core.policy import PolicyError

LABORATORY = "ops_pipelines_lab"


def laboratory(module: str) -> ModuleType:
    """Return a module of the laboratory. Raises PolicyError where it is not installed."""
    try:
        return import_module(f"{LABORATORY}.{module}")
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.partition(".")[0] != LABORATORY:
            raise
        raise PolicyError(
            "a simulated cluster and simulations need the laboratory, which is not installed here: "
            "pip install 'ops-pipelines[lab]'"
        ) from problem
