"""The state directory of the demo: its cluster.yaml, its policy, what restarts cost there, the files of its rollouts,
and the run that makes the report of its quarter; nothing of an earlier run.

The program is configured by files, as everywhere; that durations are short is all that is special about the demo. For
its rollouts there are two racks more, and two releases: the good one is the example of `releases/`, for the demo's rack
and with its patience; what is wrong with the bad one is nowhere in its file: that is what the rollout finds out. The
year behind the quarter is simulated (`recorded_past`); what is forecast and ordered of it is the program's.
"""

import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ops_pipelines.capacity.answers import report_in
from ops_pipelines.capacity.model import first_day_of, quarter_of
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.plan import RestartCosts
from ops_pipelines.resources.page_files import (
    BUNDLE_DIRECTORY,
    CAPACITY_DIRECTORY,
    CHARGEBACK_DIRECTORY,
    PAGE_NAME,
    REPORT_DIRECTORY,
    PlanDirectory,
)
from ops_pipelines.resources.state_files import CHECKPOINTS_FILE, COSTS_FILE, JobFactsFile
from ops_pipelines.wiring import TWIN_DIRECTORY
from ops_pipelines_lab.drills.stack import StackError, project_file

PLAN_CAPACITY = "plan_capacity"


def quarter_run(now: datetime) -> Mapping[str, str]:
    """Return the job that plans the running quarter, with its partition. The demo's days are UTC's."""
    quarter = quarter_of(now.astimezone(UTC).date())
    return {PLAN_CAPACITY: first_day_of(quarter).isoformat()}


def capacity_line(state: Path, *, now: datetime, pages_url: str) -> str:
    """Return the first sentence of the quarter's report and where all of it is; that there is none, if so.

    Raises StatementFilesError where it cannot be read.
    """
    quarter = quarter_of(now.astimezone(UTC).date())
    kept = PlanDirectory(state / CAPACITY_DIRECTORY).read(f"{quarter}.json")
    if kept is None:
        return f"capacity: no report of {quarter} was kept"
    return f"capacity: {report_in(kept).headline[0]} {pages_url}/capacity"


def capacity_commands(cluster_file: str) -> tuple[str, ...]:
    """Return how a person of the endless demo looks at the quarter."""
    return tuple(f"ops-pipelines capacity {each} --cluster {cluster_file}" for each in ("report", "plan"))


GOOD, BAD = "driver-580.126.20", "kernel-6.8.0-61"
GOOD_VERSION, BAD_VERSION = "580.126.20", "6.8.0-61-generic"
RELEASES_DIRECTORY = "releases"
MOST_OUT = 4
_LAST_RACK = '  - {name: r8, nodes: "gpu[057-064]"'
_LAST_PRICE = "    - {asset: hgx-h100,"
_SHIPPED_MODELS, _SHIPPED_CLAIM = "models: [hgx-h100]", "slowest_failure_hours: 6.0"
_SLOWEST_FAILURE_HOURS = 0.001
"""Under four seconds: what is wrong with a version of the demo shows at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRack:
    """A rack that is beside the cluster of the other parts."""

    name: str
    model: str
    leaf_switch: str
    partition: str
    first: int
    count: int

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(NodeName(f"gpu{number:03d}") for number in range(self.first, self.first + self.count))

    @property
    def line(self) -> str:
        """Return how cluster.yaml declares it."""
        hosts = f"gpu[{self.first:03d}-{self.first + self.count - 1:03d}]"
        return f'  - {{name: {self.name}, nodes: "{hosts}", leaf_switch: {self.leaf_switch}, model: {self.model}}}'


GOOD_RACK = NewRack(name="r9", model="dgx-h100", leaf_switch="leaf5", partition="eval", first=65, count=8)
BAD_RACK = NewRack(name="r10", model="hgx-h200", leaf_switch="leaf5", partition="spare", first=73, count=4)
ROLLOUT_LIMITS = f"""\
rollouts:
  max_out_count: {MOST_OUT}
  canary_counts: [1, 3]
  bounds: []  # seconds of a few nodes show no rates: it would ask before every wave
  growth_ratio: 3.0
  soak_seconds: 8
  soak_limit_seconds: 12
  job_end_limit_seconds: 60
  install_limit_seconds: 30
  verify_limit_seconds: 60
  good_read_count: 1
  good_read_every_seconds: 1
  answer_limit_seconds: 120
"""
"""Of policy.yaml: hours and days of a real rollout in seconds."""
_BAD_RELEASE = f"""\
# A kernel that nobody has seen fail yet. The wrapper is in place of a site's own: see the shipped examples.
name: {BAD}
about: Kernel {BAD_VERSION}, as it came from the mirror this morning.
models: [{BAD_RACK.model}]

changes:
  - component: kernel
    version: {BAD_VERSION}
    install: [/usr/local/sbin/install-held, linux-image, "{{version}}"]
    rollback: [/usr/local/sbin/install-held, linux-image, "{{version}}"]
    activation: reboot
    reversible: yes

claims:
  slowest_failure_hours: {_SLOWEST_FAILURE_HOURS}
"""


def with_rack_lines(shipped: str) -> str:
    """Return the shipped cluster.yaml with the new racks and their prices; raise StackError if it has no place."""
    lines = shipped.splitlines()
    at = _place_of(_LAST_RACK, lines)
    lines = [*lines[: at + 1], GOOD_RACK.line, BAD_RACK.line, *lines[at + 1 :]]
    at = _place_of(_LAST_PRICE, lines)
    prices = [lines[at].replace("hgx-h100", rack.model) for rack in (GOOD_RACK, BAD_RACK)]
    return "\n".join([*lines[: at + 1], *prices, *lines[at + 1 :], ""])


def _place_of(begin: str, lines: list[str]) -> int:
    place = next((number for number, line in enumerate(lines) if line.startswith(begin)), None)
    if place is None:
        raise StackError(f"cluster.yaml of the project has no line {begin!r} any more; correct `demo_setup`")
    return place


def write_releases(state: Path) -> None:
    """Lay both releases down beside the demo's cluster.yaml. Raise StackError outside of the project's directory."""
    folder = state / RELEASES_DIRECTORY
    folder.mkdir(exist_ok=True)
    (folder / f"{GOOD}.yaml").write_text(_good_release())
    (folder / f"{BAD}.yaml").write_text(_BAD_RELEASE)


def _good_release() -> str:
    text = project_file(f"{RELEASES_DIRECTORY}/{GOOD}.yaml").read_text()
    for shipped, here in (
        (_SHIPPED_MODELS, f"models: [{GOOD_RACK.model}]"),
        (_SHIPPED_CLAIM, f"slowest_failure_hours: {_SLOWEST_FAILURE_HOURS}"),
    ):
        if shipped not in text:
            raise StackError(f"{RELEASES_DIRECTORY}/{GOOD}.yaml has no {shipped!r} any more; correct `demo_setup`")
        text = text.replace(shipped, here)
    return text


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
"""Jobs of the simulated cluster start at once; a requeued one waits for three seconds."""
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
