"""By what the tests of the gate are judged: when a ratio is good, suspicious, or against a wave. Pure.

The tests themselves are `counts`' and `levels`'; what their lines mean for a wave is `judge_wave`'s.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ops_pipelines.core.release import Claims
from ops_pipelines.domain.lifecycle.gate.evidence import EventKind, LevelKind, TestLine, VerdictKind

MISS = 0.003
"""The chance that a test clears a release early that is as bad as claimed."""
LEAST_POWER = 0.85
"""At the last look a test that would have found less often what is claimed has decided nothing."""
SUSPICIOUS_AT = math.log(5)
"""A wave that need not decide waits where the evidence speaks so loudly against it: four nodes with two runs each are
as loud when steps are 5 % slower, 19 times of 20."""
AGAINST_AT = math.log(200)
"""At the last look nothing passes against which the evidence speaks louder. What passes below it is carried on: the
next wave begins with it, and little more stops that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """By what the lines of one look are judged."""

    claims: Claims
    is_deciding: bool
    """Whether everything that is claimed must have been looked for; else nothing must speak against the wave."""
    is_held: bool = True
    """Whether a suspicion holds the wave."""
    is_last_look: bool = False

    @property
    def good_at(self) -> float:
        """The ratio below which a line is good."""
        if self.is_deciding:
            return math.log(MISS)
        return SUSPICIOUS_AT if self.is_held else math.inf


NAMES: Mapping[EventKind | LevelKind, str] = {
    EventKind.NODE_FAILURE: "node failures",
    EventKind.XID: "Xids",
    EventKind.ECC: "memory errors",
    EventKind.LINK: "link errors",
    EventKind.JOB_FAILURE: "failed jobs",
    LevelKind.STEP_TIME: "step time",
    LevelKind.BANDWIDTH: "bandwidth",
}


def state_of(ratio: float, standard: Standard, *, stops_at: float) -> VerdictKind:
    """Return what a ratio says before the last look."""
    if ratio >= stops_at:
        return VerdictKind.STOP
    return VerdictKind.GOOD if ratio <= standard.good_at else VerdictKind.UNDECIDED


def evidence_said(ratio: float, standard: Standard, *, stops_at: float) -> str:
    """Return a ratio in words, and what would decide it."""
    good = "" if math.isinf(standard.good_at) else f", good at {standard.good_at:.1f}"
    return f"evidence {ratio:+.1f}, stops at {stops_at:.1f}{good}"


def nothing_known(name: str, said: str) -> TestLine:
    """Return the line of what was not looked for: never good."""
    return TestLine(name=name, state=VerdictKind.UNDECIDED, said=said, evidence_ratio=0.0)
