"""What is reported quotas: one question a day for the on-call, one line for each team whose quota changed."""

from pathlib import Path

import pytest

from ops_pipelines.core.policy import Policy
from ops_pipelines.people.compose import tell_of_quotas
from ops_pipelines.quotas.daily_work import carry_out_proposal, make_proposal
from ops_pipelines.remediate.judgement import Lease
from tests.flow.quota_mornings import BY_ITSELF, ON_YES, TODAY, QuotaStage
from tests.scenarios.small_autopilot import POLICY


@pytest.mark.parametrize(
    ("policy", "audiences"),
    [(ON_YES, ["on_call"]), (BY_ITSELF, ["team", "team", "team"]), (POLICY, ["team", "team", "team"])],
    ids=["waits for an approval", "applied", "the mode is its consent"],
)
def test_each_is_told_once_what_is_theirs(tmp_path: Path, policy: Policy, audiences: list[str]) -> None:
    stage = QuotaStage(tmp_path, policy=policy)
    make_proposal(TODAY, stage.desk, now=stage.now)
    carry_out_proposal(TODAY, stage.desk, lease=Lease(holder="test", given=None))

    told = [tell_of_quotas(stage.desk.cluster) for _ in range(2)]

    outbox = stage.desk.cluster.outbox
    assert outbox is not None
    notes = [each.note for each in outbox.recent_notes(limit=9)]
    assert told == [len(audiences), 0]
    assert [each.audience.value for each in notes] == audiences
    assert all("quota" in each.title for each in notes)
