"""Group `understand`: what the observations mean, and which problems they belong to."""

import dagster as dg

from ops_pipelines.assets.incident_pages import count_by_rule, describe_incidents
from ops_pipelines.assets.observe import evidence_of_run
from ops_pipelines.assets.tables import count, table
from ops_pipelines.domain.identity import Digest
from ops_pipelines.domain.meaning.finding import REPAIRS
from ops_pipelines.domain.meaning.observation_rules import find
from ops_pipelines.flow.cluster import Cluster
from ops_pipelines.flow.evidence.bundle import save_as_it_is, tidy
from ops_pipelines.flow.evidence.observe import record_findings

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
            "findings_by_rule": table(count_by_rule(findings)),
            # Most runs bring nothing new: then this says what the page of incidents rests on.
            "open_incidents_rest_on": table(
                count_by_rule(finding for each in snapshot.incidents if each.is_open for finding in each.findings)
            ),
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
    snapshot = cluster.ledger.load_snapshot(decided_on)
    present = tuple({each.incident: each for each in (*snapshot.incidents, *changed)}.values())
    kept = save_as_it_is(present, cluster, nodes=snapshot.nodes, jobs=snapshot.jobs)
    for name, problem in kept.problems.items():
        context.log.warning("the evidence of %s was not kept: %s", name, problem)
    left_behind = tidy(cluster)
    if left_behind is not None:
        context.log.warning("old evidence was not removed: %s", left_behind)
    return dg.Output(
        decided_on,
        metadata={
            "changed_count": count(changed),
            "open_count": count([each for each in present if each.is_open]),
            "kept_bundle_count": count(kept.saved),
            **describe_incidents(present, bundles=kept.newest, now=cluster.clock.now()),
        },
    )
