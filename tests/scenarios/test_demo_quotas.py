"""The part of the demo in which GPUs are shared out again, on the demo's files, without Dagster, on simulated time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops_pipelines.cli import app
from ops_pipelines.core.observation import JobState
from ops_pipelines.core.proposal import ProposalState
from ops_pipelines.quotas.daily_work import DailyResult, carry_out_proposal, make_proposal, prove_day
from ops_pipelines.remediate.judgement import Lease
from ops_pipelines.resources.config.cluster_file import read_cluster
from ops_pipelines.wiring import TWIN_DIRECTORY, assemble, assemble_observatory, assemble_teams_desk
from ops_pipelines_lab.drills.dagster_api import Shown
from ops_pipelines_lab.drills.demo_evidence import Evidence
from ops_pipelines_lab.drills.demo_quotas import (
    LIMITS,
    PAST,
    QUOTAS,
    after_the_fill,
    day_key,
    newest_proposal,
    quota_commands,
    with_limits,
)
from ops_pipelines_lab.drills.demo_rollout import with_racks
from ops_pipelines_lab.drills.demo_setup import QUOTA_ANSWER_FILE, write_configuration
from ops_pipelines_lab.drills.recorded_past import pretend_past
from ops_pipelines_lab.simulator.accounting import SimulatedQuotas
from ops_pipelines_lab.simulator.ground_truth import read_progress
from ops_pipelines_lab.simulator.journal import FaultKind
from ops_pipelines_lab.simulator.scenario import demo_scenario
from ops_pipelines_lab.simulator.twin import Twin
from tests.simulator.fake_clock import BEGINNING, FakeClock

PAGES_URL = "http://127.0.0.1:9750"


class QuotaDemo:
    """The whole simulated cluster after its first minutes, its simulated past, and the desk on both."""

    def __init__(self, state: Path, *, begins_after: timedelta = timedelta(0)) -> None:
        self.state = state
        self.clock = FakeClock()
        self.clock.wait(begins_after.total_seconds())
        config = read_cluster(write_configuration(state, pages_url=PAGES_URL))
        scenario = with_limits(with_racks(demo_scenario()))
        self.twin = Twin.create(state / TWIN_DIRECTORY, scenario, seed=7, clock=self.clock, past=timedelta(minutes=15))
        cluster = assemble(config, self.clock)
        observatory = assemble_observatory(config, self.clock)
        self.desk = assemble_teams_desk(config, cluster=cluster, observatory=observatory)
        self.hour_count = pretend_past(observatory.lake, now=self.clock.now(), weeks=2, plan=PAST)
        self.day = self.clock.now().date()

    def propose(self) -> DailyResult:
        """Do what the job of the morning does."""
        make_proposal(self.day, self.desk, now=self.clock.now())
        prove_day(self.day, self.desk)
        return carry_out_proposal(self.day, self.desk, lease=Lease(holder="test", given=None)).outcome

    def begin(self) -> Evidence:
        return Evidence(
            twin=self.twin,
            cluster=self.desk.cluster,
            injected=QUOTAS.inject(self.twin),
            state=self.state,
            call=self._call,
            browse=lambda _url, _form: Shown(status=0, page=""),
        )

    def limits(self) -> dict[str, int | None]:
        accounts = SimulatedQuotas(self.twin).read().accounts
        return {str(name): quota.limits.get("") for name, quota in accounts.items()}  # type: ignore[call-overload]

    def _call(self, words: Sequence[str]) -> str:
        result = CliRunner().invoke(app, list(words), obj=lambda _file: self.desk)
        if result.exit_code:
            raise RuntimeError(result.output)
        return result.output


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> QuotaDemo:
    return QuotaDemo(tmp_path_factory.mktemp("demo"))


def test_the_part_goes_from_the_proposal_to_the_old_limits(demo: QuotaDemo) -> None:
    outcome = demo.propose()
    evidence = demo.begin()
    waiting = evidence.injected.job
    assert waiting is not None

    before = QUOTAS.differences(evidence)
    QUOTAS.proceed(evidence)
    demo.clock.wait(1.0)
    between = demo.limits()
    QUOTAS.proceed(evidence)
    demo.clock.wait(5.0)

    assert outcome is DailyResult.WAITS
    assert waiting.state is JobState.PENDING
    assert "set 0 times" in before[0]
    assert (between["science"] or 0) >= 100
    assert QUOTAS.differences(evidence) == ()
    assert demo.limits() == dict(LIMITS)
    first, *changes, last = QUOTAS.tell(evidence)
    assert first.startswith("QUOTA-")
    assert any(line.startswith("science 80 -> ") for line in changes)
    assert f"job {waiting.job} (24 GPUs of science) started" in last
    assert next(each for each in read_progress(demo.twin) if each.job == waiting.job).state is JobState.RUNNING


def test_what_the_program_refuses_is_told_as_the_difference(tmp_path: Path) -> None:
    demo = QuotaDemo(tmp_path)
    demo.propose()
    evidence = demo.begin()
    nodes = [f"gpu{number:03d}" for number in range(1, 49)]
    demo.twin.inject(FaultKind.NETWORK_PARTITION, *nodes, seconds=60.0)
    demo.clock.wait(10.0)

    QUOTAS.proceed(evidence)

    assert (tmp_path / QUOTA_ANSWER_FILE).exists()
    assert "the last answer" in QUOTAS.differences(evidence)[0]
    assert demo.limits() == dict(LIMITS)


def test_the_part_is_not_at_its_end_without_a_proposal(tmp_path: Path) -> None:
    demo = QuotaDemo(tmp_path)
    evidence = demo.begin()

    QUOTAS.proceed(evidence)

    assert newest_proposal(evidence) is None
    assert QUOTAS.differences(evidence) == ("no proposal is kept",)
    assert QUOTAS.tell(evidence) == ()


@pytest.mark.parametrize("hours", [8, 20, 24 * 2 + 3, 24 * 4 + 12])
def test_the_proposal_lets_the_job_start_at_any_hour_of_any_day(tmp_path: Path, hours: int) -> None:
    demo = QuotaDemo(tmp_path, begins_after=timedelta(hours=hours, minutes=7))

    made = make_proposal(demo.day, demo.desk, now=demo.clock.now())

    assert made.contradictions == ()
    assert made.record is not None
    assert made.record.state is ProposalState.PROPOSED
    after = {str(line.team): line.after for line in made.proposed.proposal.lines}
    assert after["science"] >= 80 + 24
    assert 112 <= after["product"] < LIMITS["product"]
    # What runs there now, and has to start again after a fault, still fits.
    assert after["research"] >= 264
    assert after["platform"] >= 80


def test_every_hour_of_the_past_is_written_once(demo: QuotaDemo) -> None:
    assert demo.hour_count == 14 * 24
    assert pretend_past(demo.desk.lake, now=BEGINNING, weeks=2, plan=PAST) == 0


def test_only_the_limits_are_new_in_the_scenario() -> None:
    plain = demo_scenario()

    limited = with_limits(plain)

    assert {each.account: each.gpu_count for each in limited.limits} == LIMITS
    assert replace(limited, limits=()) == plain


def test_jobs_of_the_morning_look_at_the_running_day_month_and_week() -> None:
    sunday = BEGINNING.replace(year=2026, month=11, day=1, hour=0, minute=5)

    partitions = after_the_fill(sunday)

    assert partitions == {
        "sum_demand": "2026-10-31",
        "report_placement": "2026-11-01",
        "charge_teams": "2026-11",
        "advise_teams": "2026-10-26",
    }
    assert day_key(sunday) == str(date(2026, 11, 1))


def test_commands_are_told_with_the_demos_own_cluster_file() -> None:
    diff, apply, undo = quota_commands(".demo/cluster.yaml")

    assert diff == "ops-pipelines quota diff --cluster .demo/cluster.yaml"
    assert apply.startswith("ops-pipelines quota apply PROPOSAL")
    assert undo.startswith("ops-pipelines quota undo PROPOSAL")
