"""What holds for every test: the order of the files; no instance, signal or umask that one test leaves for the next.

The order shows where several workers take whole files in it (`--dist=loadfile --no-loadscope-reorder`): a file that
waits for minutes must not be the last one started. Fixtures stand in the files that use them, not here.
"""

import os
import signal
import sys
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

# A busy machine draws slowly: no test is about how long that takes. The same commit draws the same examples and gets
# the same verdict; who looks for what nobody has drawn yet runs `pytest --hypothesis-profile=explore`.
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same examples", settings.get_profile("explore"), derandomize=True)
settings.load_profile("same examples")

_UMASK = 0o022


def pytest_configure(config: pytest.Config) -> None:
    """Let what commands note for their user end with the tests: the next ones would find it; hear SIGINT.

    In the background of a script it is ignored, Dagster then ignores SIGTERM too, and every child of a test inherits
    that: it would be waited for in vain, and killed half a minute later.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    notes = TemporaryDirectory(prefix="ops-pipelines-tests-")
    os.environ["XDG_STATE_HOME"] = notes.name
    config.add_cleanup(notes.cleanup)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the files with tests marked `live` to the front, and leave each of the two parts in its order."""
    waiting = {item.path for item in items if item.get_closest_marker("live") is not None}
    items.sort(key=lambda item: item.path not in waiting)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Before anything is set up, as after each test: fixtures of a module open and close instances of their own."""
    _forget_instance()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    _forget_instance()
    # Commands that keep a cluster's state set a private one, for their process; here that is the tests'.
    os.umask(_UMASK)


def _forget_instance() -> None:
    """Forget the instance that a test opened and closed.

    An instance that is entered twice (a context built inside `with instance`) leaves its state storage behind in a
    context variable; the next Definitions of this process then ask an instance that is gone, and fail.
    """
    if (kept := sys.modules.get("dagster._core.storage.defs_state.base")) is not None:
        kept._current_storage.set(None)
