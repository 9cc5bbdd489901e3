"""How long a node is foreseen to be out for a release: from how long such visits took here, else from assumptions."""

from collections.abc import Sequence
from datetime import timedelta
from statistics import median

from ops_pipelines.domain.lifecycle.planner import VisitTimes
from ops_pipelines.domain.lifecycle.release import Activation, Release, activation_of
from ops_pipelines.domain.policy import RolloutLimits

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


def visit_times(release: Release, *, limits: RolloutLimits, measured: Sequence[timedelta]) -> VisitTimes:
    """Return how long nodes will be out. `measured`: visits of this release so far, from installation to return."""
    assumed = _GATE + sum(
        (
            _INSTALL + _RESTART[activation_of(step)] + limits.good_read_count * limits.good_read_every
            for step in release.steps
        ),
        timedelta(0),
    )
    known = timedelta(seconds=median(each.total_seconds() for each in measured)) if len(measured) >= _FEW else assumed
    return VisitTimes(visit=known, canary_extra=_CANARY_GATE, deciding_soak=limits.soak_limit)
