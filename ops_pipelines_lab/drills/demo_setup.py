"""The state directory of the demo: its cluster.yaml, its policy, what restarts cost there; nothing of an earlier run.

The program is configured by files, as everywhere; that durations are short is all that is special about the demo.
"""

import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.resources.page_files import (
    BUNDLE_DIRECTORY,
    CAPACITY_DIRECTORY,
    CHARGEBACK_DIRECTORY,
    PAGE_NAME,
    REPORT_DIRECTORY,
)
from ops_pipelines.resources.state_files import CHECKPOINTS_FILE, COSTS_FILE, JobFactsFile
from ops_pipelines.wiring import TWIN_DIRECTORY
from ops_pipelines_lab.drills.demo_releases import ROLLOUT_LIMITS, with_rack_lines, write_releases
from ops_pipelines_lab.drills.stack import project_file

_POLICY = """\
# The demo's own policy: acts by itself, on durations a hundred times shorter than real ones.
mode: auto
# Before a reboot a person is asked, and before limits of teams are set: docs/APPROVALS.md, docs/QUOTAS.md.
consents: {reboot: approve, quotas: approve}
drain_budget: {max_out_count: 14, max_out_per_rack_count: 6, max_new_per_hour_count: 500, min_in_service_ratio: 0.8}
# Seven nodes are repaired side by side here; the switch that goes down has 16.
mass_event: {min_node_count: 12, window_seconds: 60, brake_window_seconds: 60}
durations:
  confirm_unreachable_after_seconds: 5
  confirm_gpu_missing_after_seconds: 5
  telemetry_stale_after_seconds: 12
  look_every_seconds: 1
  retry_after_seconds: 3
  run_patience_seconds: 12
  soak_seconds: 5
  fence_limit_seconds: 30
  reset_limit_seconds: 8
  reboot_limit_seconds: 60
  check_limit_seconds: 60
  probation_seconds: 12
ladder: {max_gpu_resets_count: 10, max_reboots_count: 10, max_power_cycles_count: 10, cool_down_seconds: 3}
recovery: {max_requeues_count: 24, interactive_notice_seconds: 9}
"""
POLICY = _POLICY + ROLLOUT_LIMITS
LINK_KEY_FILE = "link.key"
ANSWERS_FILE = "answers.jsonl"
"""What the person who is asked did with each link."""
QUOTA_ANSWER_FILE = "quota-answer.txt"
"""What the program last refused to do with a proposal of quotas."""
PAGES_DIRECTORY = "pages"
PROPOSED_FILE = "policy.stricter.yaml"
_KEY_BYTES = 48
_COSTS = RestartCosts(restart_seconds=5.0, queue_seconds=4.0, no_room_queue_seconds=60.0)
"""Jobs of the pretended cluster start at once; a requeued one waits for three seconds."""
_LEFTOVERS = (
    *("ledger.sqlite*", "ledger_seen.*", "messages.jsonl*", ANSWERS_FILE, "repair-*.md", CHECKPOINTS_FILE, COSTS_FILE),
    *(LINK_KEY_FILE, PROPOSED_FILE, PAGE_NAME, QUOTA_ANSWER_FILE),
)


def clear(state: Path) -> None:
    """Remove what an earlier demo left; what anybody else put there stays."""
    beside = (BUNDLE_DIRECTORY, REPORT_DIRECTORY, PAGES_DIRECTORY, CHARGEBACK_DIRECTORY, CAPACITY_DIRECTORY)
    for leftover in ("dagster", TWIN_DIRECTORY, "lake", *beside):
        shutil.rmtree(state / leftover, ignore_errors=True)
    for pattern in _LEFTOVERS:
        for path in state.glob(pattern):
            path.unlink()


def write_configuration(state: Path, *, pages_url: str) -> Path:
    """Write what the program reads; return its cluster.yaml. Raise StackError outside of the project's directory.

    Messages and approval links name `pages_url`, where `ops-pipelines serve` is.
    """
    cluster_file = state / "cluster.yaml"
    shipped = with_rack_lines(project_file("cluster.yaml").read_text())
    text = shipped.replace("name: simulated", "name: demo", 1).replace(
        "state_directory: .ops_pipelines", "state_directory: .", 1
    )
    cluster_file.write_text(f"{text}\nserve: {{base_url: '{pages_url}', link_key_file: {LINK_KEY_FILE}}}\n")
    key = state / LINK_KEY_FILE
    key.touch(mode=0o600)
    key.write_text(secrets.token_urlsafe(_KEY_BYTES))
    (state / "policy.yaml").write_text(POLICY)
    for name in ("teams.yaml", "capacity.yaml", "projects.yaml"):
        (state / name).write_text(project_file(name).read_text())
    write_releases(state)
    JobFactsFile(state).keep_costs(_COSTS)
    return cluster_file


def call_program(words: Sequence[str], *, cluster_file: Path) -> str:
    """Return what `ops-pipelines` prints, as for a person; raise RuntimeError with its complaint if it refuses."""
    program = Path(sys.executable).with_name("ops-pipelines")
    argv = [str(program), *words, "--cluster", str(cluster_file)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"ops-pipelines {' '.join(words)}: exit code {done.returncode}: {said}")
    return done.stdout
