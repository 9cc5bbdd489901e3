"""Group `verify`: repaired nodes prove themselves before they are returned."""

from collections.abc import Sequence

import dagster as dg

from ops_pipelines.assets.act import action_log
from ops_pipelines.remediate.nodes.verify import VerificationReport
from ops_pipelines.remediate.verification import Recovery
from ops_pipelines.report.metadata import count, table

GROUP = "verify"

verifications = dg.AssetSpec(
    "verifications",
    group_name=GROUP,
    deps=[action_log],
    code_version="2",
    description="The verdict on each repaired node, every fact it rests on, and whether the node was returned. Done by "
    "the jobs `remediate` and `verify_nodes` alone.",
)
"""What was done. It returns nodes, so that nobody can materialise it: the jobs report it."""


def shown_of_verdicts(reports: Sequence[VerificationReport]) -> dict[str, dg.MetadataValue]:
    """Return what the page of `verifications` shows of one pass."""
    return {
        "verified_node_count": count(reports),
        "returned_node_count": count([report for report in reports if report.verdict.recovery is Recovery.RECOVERED]),
        "verdicts": table(
            {
                "incident": report.incident.incident,
                "node": report.node,
                "verdict": report.verdict.recovery.value,
                "facts": "; ".join(report.verdict.facts),
                "returned": report.returned.reason if report.returned is not None else "",
            }
            for report in reports
        ),
    }
