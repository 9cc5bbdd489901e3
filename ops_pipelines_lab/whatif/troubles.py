"""One fault that is somewhere in the job, and what happens when: the values of a simulated run."""

import math
from dataclasses import dataclass
from enum import Enum

from ops_pipelines.core.identity import IncidentId, NodeName
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines_lab.whatif.measured import Sign, Verdict
from ops_pipelines_lab.whatif.trace import Strike


class Event(Enum):
    """What happens at a time of day, whether the job works or not."""

    EVIDENCE = "evidence"
    """What a fault shows reaches the decision."""
    LOOK = "look"
    """An incident that waits is looked at again."""
    YES = "yes"
    """A person has approved a plan."""
    HOLD = "hold"
    """A plan is about to interrupt the job."""
    LAUNCH = "launch"
    """The job's own launcher puts it back into the queue, or leaves it to people."""
    PASSED = "passed"
    """A fault that does not come again is forgotten."""
    NOTICED = "noticed"
    """Somebody has seen for himself that the job is slow or computes garbage."""
    PERSON = "person"
    """Whoever was called has looked."""
    REPAIRED = "repaired"


@dataclass(slots=True, kw_only=True, eq=False)
class Trouble:
    """One fault, from its first strike until it is out of the job."""

    strike: Strike
    node: NodeName | None
    """None of a program's own: no node is at fault."""
    fault_class: str
    """As the diagnosis was measured on; `nothing` where it shows nothing."""
    verdict: Verdict
    """What the diagnosis makes of it: drawn once, for what it misses today it misses again tomorrow."""
    is_wide: bool = False
    """Whether it reaches beyond the standby nodes."""
    failure_count: int = 1
    until_next: float = math.inf
    """Working time of the job until it strikes again."""
    is_person_called: bool = False
    is_over: bool = False

    @property
    def recurs(self) -> bool:
        """Whether it troubles the job again, or goes on to, unless it is taken out."""
        return self.strike.persists or self.strike.kind.silent is not None

    @property
    def is_of_switch(self) -> bool:
        return self.fault_class == "leaf_switch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something that happens at a time of day."""

    at: float
    event: Event
    trouble: Trouble | None = None
    signs: tuple[Sign, ...] = ()
    plan: IncidentPlan | None = None
    incident: IncidentId | None = None
    stop: int = 0
    """Of a launch: the stop of the job that it follows."""
    nodes: tuple[NodeName, ...] = ()
    """Of evidence: where it is seen; of a repair: what comes back."""
