"""The laboratory is a distribution of its own: what needs it says so where it is missing, and nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest

from ops_pipelines.core.policy import PolicyError
from ops_pipelines.laboratory import laboratory

WITHOUT = "import sys; sys.modules['ops_pipelines_lab'] = None; sys.argv[0] = 'ops-pipelines'\n"
MAIN = f"{WITHOUT}from ops_pipelines.cli import main; main()"
ROOT = Path(__file__).parents[2]


def run_without(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT, check=False)


@pytest.mark.parametrize("words", [("simulate", "--policy", "policy.yaml"), ("rollout", "simulate", "good")])
def test_simulations_say_what_they_need(words: tuple[str, ...]) -> None:
    done = run_without(MAIN, *words)

    assert done.returncode == 2
    assert "pip install 'ops-pipelines[lab]'" in done.stderr


def test_a_simulated_cluster_says_what_it_needs() -> None:
    done = run_without(MAIN, "status", "--cluster", str(ROOT / "cluster.yaml"))

    assert done.returncode == 3, "`status` shows what can be read of a broken configuration"
    assert "pip install 'ops-pipelines[lab]'" in done.stderr


def test_what_needs_no_cluster_works_without() -> None:
    assert run_without(MAIN, "--help").returncode == 0
    assert run_without(f"{WITHOUT}import ops_pipelines.definitions").returncode == 0


def test_a_fault_within_the_laboratory_is_no_missing_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ops_pipelines_lab.simulated", None)
    with pytest.raises(PolicyError, match="not installed"):
        laboratory("simulated")

    monkeypatch.delitem(sys.modules, "ops_pipelines_lab.simulated")
    monkeypatch.delitem(sys.modules, "ops_pipelines_lab.simulator.scenario", raising=False)
    monkeypatch.setitem(sys.modules, "ops_pipelines.core.cluster", None)
    with pytest.raises(ModuleNotFoundError, match="cluster"):
        laboratory("simulated")
