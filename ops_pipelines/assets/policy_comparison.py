"""Group `policy`: a proposed policy laid beside the present one over recorded history, launched by hand."""

from datetime import timedelta

import dagster as dg
from pydantic import Field

from ops_pipelines.report.metadata import table
from ops_pipelines.review.replay import PolicyDesk, differing, proof_sentence, replay, sentences_of
from ops_pipelines.review.replay_result import Difference

GROUP = "policy"


class ComparisonConfig(dg.Config):
    """What is compared with what."""

    proposed: str = Field(
        default="policy.proposed.yaml",
        min_length=1,
        max_length=200,
        description="The proposed policy: a .yaml file in the directory of the present policy.yaml.",
    )
    back_hours: int = Field(default=24, ge=1, le=24 * 14, description="How many hours up to now are replayed.")


@dg.asset(group_name=GROUP, code_version="1")
def policy_comparison(
    config: ComparisonConfig, policy_desk: dg.ResourceParam[PolicyDesk]
) -> dg.MaterializeResult[None]:
    """What a proposed policy would have done with recorded history, beside what was done; kept as a page, too.

    Decisions come from the ledger, hours without any from the lake. Reads only; the page is at /policy-comparison.
    """
    from ops_pipelines.pages.policy_comparison import write_policy_comparison

    proposed = policy_desk.read_proposed(config.proposed)
    now = policy_desk.clock.now()
    found = replay(
        policy_desk.history,
        proposed,
        proposed=config.proposed,
        since=now - timedelta(hours=config.back_hours),
        until=now,
    )
    place = policy_desk.keep_page(write_policy_comparison(found, now=now))
    return dg.MaterializeResult(
        metadata={
            **{f"{each.value}_count": found.count(each) for each in Difference},
            "what_changes": table({"what_changes": each} for each in (*sentences_of(found), proof_sentence(found))),
            "keys": table({"key": each.key, "then": each.then, "new": each.new} for each in found.policy_differences),
            "acts_that_differ": table(
                {
                    "at": f"{act.at:%m-%d %H:%M:%S}",
                    "difference": act.difference.value.replace("_", " "),
                    "incident": act.incident,
                    "act": f"{act.verb.value} {act.target}",
                    "why": act.why,
                    "counterfactual": "yes" if act.is_counterfactual else "",
                }
                for act in differing(found)
            ),
            "rests_on": table(
                {"source": each.source.value, "decisions": each.decision_count, "not_known": "; ".join(each.unknown)}
                for each in found.stretches
            ),
            "page": place,
        }
    )
