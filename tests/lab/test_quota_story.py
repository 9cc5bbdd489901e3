"""The lab's act of quotas: what its contracts and its past lead to, on the twin, and the order that is held up."""

import subprocess
from pathlib import Path

import pytest
import yaml

from ops_pipelines.core.proposal import ProposalState, TeamName
from ops_pipelines.core.scheduler import QuotaChange
from ops_pipelines.quotas.apply import preview
from ops_pipelines.quotas.daily_work import make_proposal
from ops_pipelines.resources.config.teams_file import read_teams
from ops_pipelines_lab.drills.daemon_processes import wait_until
from ops_pipelines_lab.drills.lab_configuration import (
    CAP,
    GUARANTEE,
    PLATFORM,
    PRODUCT,
    TEAMS,
    old_limits,
    pretend_labs_past,
)
from ops_pipelines_lab.drills.lab_drill import choose_acts
from ops_pipelines_lab.drills.lab_quotas import sacctmgr_program
from ops_pipelines_lab.drills.lab_stage import DrillError
from tests.flow.quota_mornings import LIMITS, TODAY, Past, QuotaStage
from tests.flow.quota_mornings import TEAMS as EARLIER_TEAMS


@pytest.mark.parametrize("node_count", [16, 32])
def test_the_labs_past_raises_who_is_owed_and_lowers_who_agreed_to_a_cap(tmp_path: Path, node_count: int) -> None:
    file = tmp_path / "teams.yaml"
    file.write_text(yaml.safe_dump(TEAMS))
    stage = QuotaStage(
        tmp_path,
        past=Past(days=0),
        agreed=read_teams(file),
        node_count=node_count,
        accounts=(*EARLIER_TEAMS, PLATFORM),
    )
    stage.port.apply(
        [
            QuotaChange(account=TeamName(team), before=LIMITS.get(TeamName(team)), after=limit)
            for team, limit in old_limits(node_count * 8).items()
        ]
    )
    pretend_labs_past(stage.observatory.lake, now=stage.now)

    made = make_proposal(TODAY, stage.desk, now=stage.now)

    after = {line.team: line.after for line in made.proposed.proposal.lines}
    assert made.contradictions == ()
    assert made.record is not None
    assert made.record.state is ProposalState.PROPOSED
    assert after[PLATFORM] == CAP
    assert after[PRODUCT] >= GUARANTEE
    found = preview(made.record.name, stage.desk)
    assert found.hindrances == ()
    assert len(found.changes) >= 2
    assert len({change.after for change in found.changes}) >= 2, "one command would be too few to stop half-way"


def test_the_second_order_waits_until_the_drill_lets_it_go(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    real = tmp_path / "real"
    real.write_text(f'#!/bin/sh\necho "$@" >> {sent}\n')
    shim = tmp_path / "sacctmgr"
    shim.write_text(sacctmgr_program(str(real), tmp_path))
    for program in (real, shim):
        program.chmod(0o755)
    subprocess.run([shim, "-nP", "show", "associations"], check=True)
    subprocess.run([shim, "-i", "modify", "account", "one"], check=True)
    subprocess.run([shim, "-nP", "show", "associations"], check=True)
    assert not (tmp_path / "reached").exists()

    with subprocess.Popen([shim, "-i", "modify", "account", "two"]) as second:
        wait_until("the second order", (tmp_path / "reached").exists, timeout_seconds=30.0)
        assert "two" not in sent.read_text()
        (tmp_path / "gone").touch()

    assert second.returncode == 0
    assert sent.read_text().splitlines()[-1] == "-i modify account two"


def test_an_unknown_act_is_told_of_the_ones_played_apart() -> None:
    with pytest.raises(DrillError, match="there is no act quota; expected some of quotas, rollout"):
        choose_acts((), ["quota"], left_out=())
