"""What the failure of a node is known by, and how a person reads that: words without what differs from node to node.

That several nodes failed alike is how the gate tells a bad release from bad nodes (`gate.counts`).
"""

import re

from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.rollout import NodeStage

_LONGEST_SIGNATURE = 120
_VARIES = re.compile(
    r"(?:[0-9a-f]{4,8}:)?\b[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b"  # a PCI address; its letters differ, too
    r"|gpu-[0-9a-f]{8}(?:-[0-9a-f]{4,12})*|0x[0-9a-f]+|[0-9a-f]{8,}|(?<!_r)\d+"  # not the level of a test, as `_r1`
)
_SPACE = re.compile(r"\s+")
_LEFT_OUT = re.compile(r"#(?:[#.,:/_+~-]*#)*")
_STAGES = frozenset(stage.value for stage in NodeStage)


def signature_of(stage: NodeStage, said: str, *, node: NodeName) -> str:
    """Return what a failure is known by: its words without what differs from node to node."""
    plain = _VARIES.sub("#", said.lower().replace(node.lower(), "node"))
    return f"{stage.value}: {_SPACE.sub(' ', plain).strip()}"[:_LONGEST_SIGNATURE]


def words_of(signature: str) -> str:
    """Return a signature as a person reads it: `while verifying: driver runs ..., not ...`.

    What was left out has no digits to show: versions of several nodes may differ, each node's own reason has them.
    """
    plain = _LEFT_OUT.sub("...", signature)
    stage, _, said = plain.partition(": ")
    return f"while {stage}: {said}" if stage in _STAGES and said else plain
