"""What is believed to have broken: one statement with its culprits, its confidence, and what speaks for and against.

Values. Making one out of findings is `diagnosis`; showing it is the shell's business.
"""

from dataclasses import dataclass

from ops_pipelines.domain.fault import AtFault, Component, Family, FirstAction
from ops_pipelines.domain.identity import NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another explanation of the same evidence."""

    statement: str
    confidence: float
    why_less_likely: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """The root cause of one incident, as far as the evidence goes."""

    statement: str
    """One sentence: what broke."""
    culprits: tuple[Component, ...]
    """The parts at fault, the likeliest first; a job where only a program is, empty where nobody knows."""
    at_fault: AtFault
    family: Family
    first_action: FirstAction
    confidence: float
    """How sure we are, 0..1; what the replay measures it against stands in docs/DIAGNOSIS.md."""
    affected_nodes: frozenset[NodeName]
    """Victims: nodes that suffer from it and have no fault of their own."""
    evidence_for: tuple[str, ...]
    evidence_against: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    settled_by: str
    """What would show whether it is so."""
