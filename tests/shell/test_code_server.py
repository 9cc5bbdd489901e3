"""The code server whose runs are forked: what is imported for them is there. That it serves is tested with its unit."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ops_pipelines.code_server import IMPORTED
from ops_pipelines_lab.drills.daemon_processes import wait_until


@pytest.mark.parametrize("module", IMPORTED)
def test_what_is_imported_for_runs_exists(module: str) -> None:
    """The fork server passes over what it cannot import; each run would then import all of it again, unnoticed."""
    assert importlib.util.find_spec(module) is not None


SERVES = """
import json, multiprocessing, os, sys
import decimal
from ops_pipelines.code_server import fork_server_with

def child(pipe):
    import decimal
    pipe.send((os.getppid(), getattr(decimal, "WRITTEN_BEFORE", False), "colorsys" in sys.modules))

if __name__ == "__main__":
    decimal.WRITTEN_BEFORE = True
    fork_server_with(["colorsys"])
    context = multiprocessing.get_context("forkserver")
    found = []
    for _ in range(2):
        ours, theirs = context.Pipe()
        process = context.Process(target=child, args=(theirs,))
        process.start()
        theirs.close()
        found.append(ours.recv())
        process.join()
        if len(found) == 1 and sys.argv[1] == "kill":
            os.kill(found[0][0], 9)
            os.waitid(os.P_PID, found[0][0], os.WEXITED | os.WNOWAIT)
    print(json.dumps([os.getpid(), found]))
"""


def serve_forks(directory: Path, *, then: str) -> tuple[int, list[tuple[int, bool, bool]]]:
    """Return the server's process id, and of two children: their parent, what they have of its memory and imports."""
    script = directory / "serves.py"
    script.write_text(SERVES)
    done = subprocess.run([sys.executable, script, then], stdout=subprocess.PIPE, text=True, check=True, timeout=120)
    server, found = json.loads(done.stdout)
    return server, [tuple(each) for each in found]


def test_runs_are_forked_from_a_fork_of_the_code_server(tmp_path: Path) -> None:
    server, ((first, *inherited), second) = serve_forks(tmp_path, then="continue")

    assert inherited == [True, True]  # What was in memory when it was forked.
    assert second == (first, True, True)
    assert first != server


def test_a_fork_server_that_was_killed_is_replaced_by_one_that_imports_for_itself(tmp_path: Path) -> None:
    _, ((first, *_), second) = serve_forks(tmp_path, then="kill")

    assert second[0] != first
    assert second[1:] == (False, True)


def test_nothing_is_left_when_the_code_server_has_ended(tmp_path: Path) -> None:
    _, ((first, *_), _) = serve_forks(tmp_path, then="continue")

    wait_until("the end of the fork server", lambda: not Path(f"/proc/{first}").exists(), timeout_seconds=60)
