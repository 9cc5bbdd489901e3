"""The order of the tests: files that wait for real servers first, so that they wait beside those that compute.

It tells where several workers take whole files in this order (`--dist=loadfile --no-loadscope-reorder`): a file that
waits for minutes must not be the last one begun. Fixtures stand in the files that use them, not here.
"""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the files with tests marked `live` to the front, and leave each of the two parts in its order."""
    waiting = {item.path for item in items if item.get_closest_marker("live") is not None}
    items.sort(key=lambda item: item.path not in waiting)
