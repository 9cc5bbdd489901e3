"""The emulated BMC of OpenStack's sushy-tools, as a process of its own on the loopback.

Its fake machines keep no firmware version; the configuration, which is Python, teaches them to. It knows one task,
which is always complete, and no inventory: the BIOS version is in the system.

Skips where sushy-tools is not installed, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says it must be there.
"""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SYSTEM = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
OLD, NEW = "1.0.0", "1.1.0"
"""Whatever image it is given, it counts the second number up."""
_CONFIGURATION = f"""
from sushy_tools.emulator.resources.systems import fakedriver

SUSHY_EMULATOR_LISTEN_IP = "127.0.0.1"
SUSHY_EMULATOR_LISTEN_PORT = 0
SUSHY_EMULATOR_FAKE_DRIVER = True
SUSHY_EMULATOR_STATE_DIR = @DIRECTORY@
SUSHY_EMULATOR_FAKE_SYSTEMS = [
    {{"uuid": "{SYSTEM}", "name": "gpu003", "power_state": "On", "external_notifier": False, "nics": []}}
]
VERSIONS = {{}}
fakedriver.FakeDriver.get_versions = lambda self, identity: VERSIONS.get(identity, {{"BiosVersion": "{OLD}"}})
fakedriver.FakeDriver.set_versions = lambda self, identity, versions: VERSIONS.update({{identity: versions}})
"""


@contextmanager
def run_emulator(directory: Path) -> Iterator[str]:
    """Run it until the block ends; return its address."""
    if importlib.util.find_spec("sushy_tools") is None:
        missing = pytest.fail if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1" else pytest.skip
        missing("sushy-tools is not installed; it emulates the BMC")
    configuration = directory / "emulator.conf"
    configuration.write_text(_CONFIGURATION.replace("@DIRECTORY@", repr(str(directory))), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "sushy_tools.emulator.main", "--config", str(configuration), "--fake"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as lines:
        # What it says of each request must not fill the pipe.
        reader = threading.Thread(target=lambda: [None for _ in lines])
        try:
            address = _address_in(lines)
            reader.start()
            yield address
        finally:
            # Killed, not asked: anyone who started these tests with SIGTERM ignored would wait for it for ever.
            process.kill()
            process.wait()
            if reader.ident is not None:
                reader.join()


def _address_in(lines: Iterable[str]) -> str:
    told = []
    for line in lines:
        told.append(line)
        if found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", line):
            return found[1]
    raise AssertionError(f"the emulator did not start: {''.join(told)[-500:]}")
