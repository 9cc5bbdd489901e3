"""Files of the demo that its rollouts need: two racks more in cluster.yaml, and two releases that lie ready for them.

The good one is the example of `releases/`, for the demo's rack and with its patience. What is wrong with the bad one
stands nowhere in its file: that is what the rollout finds out.
"""

from dataclasses import dataclass
from pathlib import Path

from ops_pipelines.core.identity import NodeName
from ops_pipelines_lab.drills.stack import StackError, project_file

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
    """A rack that stands beside the cluster of the other parts."""

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
# A kernel that nobody has seen fail yet. The wrapper stands for a site's own: see the shipped examples.
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
        raise StackError(f"cluster.yaml of the project has no line {begin!r} any more; mend `demo_releases`")
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
            raise StackError(f"{RELEASES_DIRECTORY}/{GOOD}.yaml has no {shipped!r} any more; mend `demo_releases`")
        text = text.replace(shipped, here)
    return text
