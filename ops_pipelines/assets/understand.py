"""Group `understand`: what the observations mean, and which problems they belong to."""

from collections.abc import Sequence
from datetime import datetime

import dagster as dg

from ops_pipelines.assets.incident_pages import count_by_rule, describe_incidents
from ops_pipelines.assets.observe import Seen, validated_observations
from ops_pipelines.core.finding import REPAIRS, Catalogue, Finding
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.plan import Snapshot
from ops_pipelines.observe.rules import find
from ops_pipelines.remediate.bundle import BundleReport
from ops_pipelines.remediate.snapshot import Found
from ops_pipelines.report.metadata import count, table

GROUP = "understand"

health_findings = dg.AssetSpec(
    "health_findings",
    group_name=GROUP,
    deps=[validated_observations],
    code_version="2",
    description="One verdict for each new observation: by which rule, from which source, and what it calls for.",
)
incidents = dg.AssetSpec(
    "incidents",
    group_name=GROUP,
    deps=[health_findings],
    code_version="2",
    description="One incident a cause, culprit apart from victims; opened, joined, merged or closed in the ledger.",
)


def findings_told(seen: Seen, found: Found, catalogue: Catalogue) -> list[Finding]:
    """Return what the evidence that a run tells of means: as found now, and anew where it was decided on before."""
    known = dict(zip(seen.kept.snapshot.observations, found.findings, strict=True))
    return [known[each] if each in known else find(each, catalogue) for each in seen.told]


def shown_of_findings(findings: Sequence[Finding], snapshot: Snapshot) -> dict[str, dg.MetadataValue]:
    """Return what the page of `health_findings` shows of what was found."""
    return {
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
    }


def shown_of_incidents(
    present: Sequence[Incident], changed: Sequence[Incident], saved: BundleReport, *, now: datetime
) -> dict[str, dg.MetadataValue]:
    """Return what the page of `incidents` shows of those present, and of what this pass changed."""
    return {
        "changed_count": count(changed),
        "open_count": count([each for each in present if each.is_open]),
        "kept_bundle_count": count(saved.saved),
        **describe_incidents(present, bundles=saved.newest, now=now),
    }
