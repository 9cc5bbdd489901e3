"""How long a node is foreseen to be out for a release: from how long such visits took here, else from assumptions."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median

from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Activation, Release, activation_of
from ops_pipelines.domain.lifecycle.planning.planner import VisitTimes

_INSTALL = timedelta(minutes=5)
"""# Assumption: of one step; firmware takes longer, and is measured after the first node."""
_RESTART = {
    Activation.LIVE: timedelta(0),
    Activation.DRIVER_RELOAD: timedelta(minutes=1),
    Activation.REBOOT: timedelta(minutes=5),
    Activation.POWER_CYCLE: timedelta(minutes=10),
    Activation.AC_CYCLE: timedelta(minutes=20),
}
"""# Assumption: as of nodes of this class; measured after the first one."""
_GATE = timedelta(minutes=4)
"""# Assumption: DCGM level 1 and a minute of NCCL, with their start and end."""
_CANARY_GATE = timedelta(minutes=70)
"""# Assumption: DCGM level 3 and pairwise tests on eight GPUs."""
_FEW = 3
"""So many visits of its own say more than the assumptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVisits:
    """How long nodes of one release were out so far, from the first installation to the return."""

    canaries: Sequence[timedelta] = ()
    """With the longer tests."""
    others: Sequence[timedelta] = ()


def visit_times(release: Release, *, limits: RolloutLimits, measured: MeasuredVisits = MeasuredVisits()) -> VisitTimes:
    """Return how long nodes will be out: as measured where a few were, else as assumed."""
    assumed = _GATE + sum(
        (
            _INSTALL + _RESTART[activation_of(step)] + limits.good_read_count * limits.good_read_every
            for step in release.steps
        ),
        timedelta(0),
    )
    visit = _median(measured.others) or assumed
    canary = _median(measured.canaries) or visit + _CANARY_GATE
    return VisitTimes(visit=visit, canary_extra=max(canary - visit, timedelta(0)), deciding_soak=limits.soak_limit)


def _median(times: Sequence[timedelta]) -> timedelta | None:
    return timedelta(seconds=median(each.total_seconds() for each in times)) if len(times) >= _FEW else None
