"""Group `verify`: repaired nodes prove themselves before they are returned."""

from datetime import timedelta

import dagster as dg

from ops_pipelines.assets.run_lease import lease_of_run
from ops_pipelines.assets.tables import count, table
from ops_pipelines.domain.returning.verification import Recovery
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.nodes.verify import verify_repaired
from ops_pipelines.flow.plans.carry_out import carry_out, plans_to_carry_out

GROUP = "verify"
_WAIT_FOR_SOAK = timedelta(seconds=5)
"""A soak that ends within this is waited for; a longer one is left to the sensor, which starts the next run."""


@dg.asset(group_name=GROUP, deps=["action_log"], code_version="1")
def verifications(context: dg.AssetExecutionContext, cluster: dg.ResourceParam[Cluster]) -> dg.Output[None]:
    """The verdict on each repaired node, every fact it rests on, and whether the node was returned."""
    lease = lease_of_run(context, cluster)
    # A node that is back from its reboot is still being acted on: its plan takes note of that first, without waiting.
    present = cluster.ledger.read_state(cluster.clock.now()).incidents
    carry_out(plans_to_carry_out((), present, cluster), cluster, lease=lease, patience=timedelta(0))
    reports = verify_repaired(
        cluster,
        lease=lease,
        patience=min(_WAIT_FOR_SOAK, cluster.rules.policy.durations.run_patience),
    )
    for report in reports:
        context.log.info("node=%s verdict=%s", report.node, report.verdict.recovery.value)
    return dg.Output(
        None,
        metadata={
            "verified_node_count": count(reports),
            "returned_node_count": count(
                [report for report in reports if report.verdict.recovery is Recovery.RECOVERED]
            ),
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
        },
    )
