"""Group `understand`: what the observations mean, and which problems they belong to."""

import dagster as dg

from ops_pipelines.assets.observe import evidence_of_run
from ops_pipelines.assets.tables import count, table
from ops_pipelines.domain.finding import REPAIRS, find
from ops_pipelines.domain.identity import Digest
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.observe import record_findings

GROUP = "understand"


@dg.asset(group_name=GROUP, code_version="1")
def health_findings(
    context: dg.AssetExecutionContext, validated_observations: str, cluster: dg.ResourceParam[Cluster]
) -> dg.Output[str]:
    """One verdict for each new observation: by which rule, from which source, and what it calls for."""
    snapshot = cluster.ledger.load_snapshot(Digest(validated_observations))
    findings = [find(each, cluster.rules.catalogue) for each in evidence_of_run(context, snapshot, cluster)]
    return dg.Output(
        validated_observations,
        metadata={
            "finding_count": count(findings),
            "repair_finding_count": count([each for each in findings if each.response in REPAIRS]),
            "findings": table(
                {
                    "at": f"{each.found_at:%H:%M:%S}",
                    "node": each.node,
                    "calls_for": each.response.name.lower(),
                    "rule": each.rule,
                    "explanation": each.explanation,
                    "source": each.source,
                }
                for each in findings
            ),
        },
    )


@dg.asset(group_name=GROUP, code_version="1")
def incidents(
    context: dg.AssetExecutionContext, health_findings: str, cluster: dg.ResourceParam[Cluster]
) -> dg.Output[str]:
    """One incident a cause, culprit apart from victims; opened, joined, merged or closed in the ledger."""
    decided_on, changed = record_findings(Digest(health_findings), cluster)
    for incident in changed:
        context.log.info("incident=%s state=%s note=%s", incident.incident, incident.state.value, incident.note)
    before = cluster.ledger.load_snapshot(decided_on).incidents
    present = {each.incident: each for each in (*before, *changed)}
    return dg.Output(
        decided_on,
        metadata={
            "changed_count": count(changed),
            "open_count": count([each for each in present.values() if each.is_open]),
            "incidents": table(
                {
                    "incident": each.incident,
                    "state": each.state.value,
                    "response": each.response.name.lower(),
                    "culprits": ", ".join(sorted(each.nodes)),
                    "victims": ", ".join(sorted(victim.job for victim in each.victims)),
                    "why": each.note,
                }
                for each in present.values()
            ),
        },
    )
