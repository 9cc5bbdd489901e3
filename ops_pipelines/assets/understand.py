"""Group `understand`: what the observations mean, and which problems they belong to."""

import dagster as dg

from ops_pipelines.assets.tables import count, table
from ops_pipelines.domain.decision import correlate_all, find_all
from ops_pipelines.domain.finding import REPAIRS
from ops_pipelines.domain.identity import Digest
from ops_pipelines.flow.cluster import Cluster

GROUP = "understand"


@dg.asset(group_name=GROUP, code_version="1")
def health_findings(validated_observations: str, cluster: dg.ResourceParam[Cluster]) -> dg.Output[str]:
    """One verdict for each new observation: by which rule, from which source, and what it calls for."""
    findings = find_all(cluster.ledger.load_snapshot(Digest(validated_observations)), cluster.rules)
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
    snapshot = cluster.ledger.load_snapshot(Digest(health_findings))
    changed = correlate_all(find_all(snapshot, cluster.rules), snapshot, cluster.rules)
    cluster.ledger.record_decision(
        inputs=Digest(health_findings),
        decided_through=snapshot.evidence_through,
        expected_head=snapshot.ledger_head,
        incidents=changed,
        plans=(),
        now=snapshot.taken_at,
    )
    for incident in changed:
        context.log.info("incident=%s state=%s note=%s", incident.incident, incident.state.value, incident.note)
    present = {each.incident: each for each in (*snapshot.incidents, *changed)}
    return dg.Output(
        health_findings,
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
