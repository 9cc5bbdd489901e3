"""What preemption would give a team back now: idle GPUs first, borrowers after, organisations and broken nodes seen."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest

from ops_pipelines.core.observation import Checkpointing, Workload
from ops_pipelines.core.proposal import TeamName, Terms
from ops_pipelines.core.scheduler import SettingsRead, Values
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.quotas.reclaim import Preemption, Reclaim, preemption_of, reclaims_of
from ops_pipelines.teams.contracts import Agreements, Contract
from ops_pipelines_lab.simulator.scenario import JobSpec
from tests.flow.quota_mornings import PRODUCT, RESEARCH, SCIENCE, QuotaStage, agreements

HOUR = timedelta(hours=1)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QOS_WITH_OWN = {"high": {"PreemptMode": "cluster", "PreemptExemptTime": ""}, "low": {"PreemptMode": "cancel"}}


def job(team: TeamName, *, nodes: int = 1, checkpointing: Checkpointing = Checkpointing.YES) -> JobSpec:
    return JobSpec(
        name="train",
        user="u",
        account=team,
        workload=Workload.TRAINING,
        node_count=nodes,
        checkpoint_interval_seconds=600.0 if checkpointing is Checkpointing.YES else None,
        checkpointing=checkpointing,
    )


class FixedSettings:
    """Settings as a test wants them; None: nobody answers."""

    def __init__(self, read: SettingsRead | None) -> None:
        self._read = read

    def read(self) -> SettingsRead:
        if self._read is None:
            raise SourceUnavailable("scontrol did not answer within 30 s; check slurmctld")
        return self._read


def settings(qos: Mapping[str, Values] | None = None, **cluster: str) -> SettingsRead:
    return SettingsRead(cluster=cluster, qos=qos or {}, read_at=NOW)


REQUEUES = settings(PreemptType="preempt/qos", PreemptMode="REQUEUE", PreemptExemptTime="00:30:00")


def for_team(stage: QuotaStage, team: TeamName, *, after: timedelta = 3 * HOUR) -> Reclaim:
    stage.clock.wait(after.total_seconds())
    (found,) = reclaims_of(team, stage.desk, now=stage.now).by_type
    return found


def accounts_of(found: Reclaim) -> list[str]:
    return [each.team for each in found.report.jobs]


def test_borrowers_give_back_what_neither_runs_nor_stands_free(tmp_path: Path) -> None:
    # 48 GPUs: science borrows 32 beyond its 8, product runs its 8; nothing is free for the 16 of research.
    stage = QuotaStage(tmp_path, *(job(SCIENCE) for _ in range(5)), job(PRODUCT))
    stage.change(settings=FixedSettings(REQUEUES))

    found = for_team(stage, RESEARCH)

    assert (found.guarantee, found.runs, found.free, found.report.wanted_gpus) == (16.0, 0, 0, 16.0)
    assert accounts_of(found) == [SCIENCE, SCIENCE]
    assert found.report.missing_gpus == 0
    assert "REQUEUE" in found.report.scheduler


@pytest.mark.parametrize(("borrowed", "taken"), [(4, 0), (5, 1), (6, 2)])
def test_what_stands_free_is_not_asked_of_borrowers(tmp_path: Path, borrowed: int, taken: int) -> None:
    stage = QuotaStage(tmp_path, *(job(SCIENCE) for _ in range(borrowed)))

    found = for_team(stage, RESEARCH)

    assert (found.free, len(found.report.jobs)) == (48 - 8 * borrowed, taken)


def test_a_job_without_checkpoints_is_waited_for(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, *(job(SCIENCE, checkpointing=Checkpointing.NO) for _ in range(6)))

    found = for_team(stage, RESEARCH)

    assert (accounts_of(found), found.report.missing_gpus) == ([], 16.0)
    assert "checkpoints" in found.report.rule


@pytest.mark.parametrize(("minutes", "taken"), [(115, 0), (121, 2)])
def test_the_least_run_time_is_a_rule_that_is_told(tmp_path: Path, minutes: int, taken: int) -> None:
    stage = QuotaStage(tmp_path, *(job(SCIENCE) for _ in range(6)))

    found = for_team(stage, RESEARCH, after=timedelta(minutes=minutes))

    assert len(found.report.jobs) == taken
    assert "less than 2:00:00" in found.report.rule


def test_teams_within_what_their_organisation_is_owed_give_nothing(tmp_path: Path) -> None:
    group = TeamName("group")
    terms = (
        Terms(team=RESEARCH, guarantee=16),
        Terms(team=group, guarantee=40),
        Terms(team=SCIENCE, guarantee=8),
        Terms(team=PRODUCT, guarantee=8),
    )
    agreed = Agreements(
        parents={RESEARCH: None, group: None, SCIENCE: group, PRODUCT: group},
        contracts=tuple(Contract(terms=each, valid_from=date(2025, 1, 1)) for each in terms),
    )
    stage = QuotaStage(tmp_path, *(job(SCIENCE) for _ in range(6)), agreed=agreed)

    # Science runs 48, 40 beyond its own; the group runs 48, 8 beyond what it is owed.
    found = for_team(stage, RESEARCH)
    sibling = for_team(stage, PRODUCT, after=timedelta(0))

    assert (accounts_of(found), found.report.missing_gpus) == ([SCIENCE], 8.0)
    assert accounts_of(sibling) == [SCIENCE]
    assert reclaims_of(group, stage.desk, now=stage.now).by_type == ()


def test_settings_that_cannot_be_read_are_a_note_and_no_guess(tmp_path: Path) -> None:
    stage = QuotaStage(tmp_path, job(SCIENCE), agreed=agreements())
    stage.change(settings=FixedSettings(None))

    found = reclaims_of(RESEARCH, stage.desk, now=stage.now)

    assert "scontrol did not answer" in found.notes[0]
    assert "is not known" in found.by_type[0].report.scheduler


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (settings(), None),
        (settings(PreemptType="preempt/qos"), None),
        (
            settings(PreemptType="preempt/none", PreemptMode="REQUEUE"),
            Preemption(mode="OFF", exempt=timedelta(), kind="preempt/none"),
        ),
        (REQUEUES, Preemption(mode="REQUEUE", exempt=HOUR / 2, kind="preempt/qos")),
        (
            settings(PreemptType="preempt/qos", PreemptMode="REQUEUE", PreemptExemptTime="-1"),
            Preemption(mode="REQUEUE", exempt=timedelta(), kind="preempt/qos"),
        ),
        (settings(PreemptType="preempt/qos", PreemptMode="REQUEUE", PreemptExemptTime="soon"), None),
        (
            settings(QOS_WITH_OWN, PreemptType="preempt/qos", PreemptMode="REQUEUE", PreemptExemptTime="00:30:00"),
            Preemption(mode="REQUEUE", exempt=HOUR / 2, kind="preempt/qos", apart=("QOS low: cancel",)),
        ),
        (
            settings(
                {"slow": {"PreemptExemptTime": "02:00:00"}}, PreemptType="preempt/qos", PreemptMode="GANG,REQUEUE"
            ),
            Preemption(mode="GANG,REQUEUE", exempt=2 * HOUR, kind="preempt/qos"),
        ),
    ],
)
def test_preemption_is_read_from_the_schedulers_own_settings(read: SettingsRead, found: Preemption | None) -> None:
    assert preemption_of(read) == found
