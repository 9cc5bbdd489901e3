"""The runs that the demo launches by itself: each once, proofs looked at, those of a morning one after the other."""

from collections.abc import Mapping

from ops_pipelines_lab.drills.dagster_api import DagsterApi, DagsterApiError, RunState
from ops_pipelines_lab.drills.demo_pages import LOOK_AT_VERSIONS, REBALANCE, SET_QUOTAS, InTurn, UiRuns


class FakeApi(DagsterApi):
    """Runs that end when a test says so."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", token="drill")
        self.launched: list[tuple[str, str | None]] = []
        self.states: dict[str, str] = {}
        self.backfill: tuple[RunState, ...] = ()
        self.checks: dict[str, str | None] = {}
        self.is_silent = False

    def launch_job(self, job: str, *, partition: str | None = None) -> str:
        if self.is_silent:
            raise DagsterApiError("no answer")
        self.launched.append((job, partition))
        return job

    def run_status(self, run: str) -> str:
        return self.states.get(run, "STARTED")

    def runs_of(self, backfill: str) -> tuple[RunState, ...]:
        return self.backfill

    def check_states(self, asset: str) -> Mapping[str, str | None]:
        return self.checks


def nothing(_seconds: float) -> None:
    """Let no time pass."""


def test_a_run_that_failed_is_a_difference_and_one_that_went_well_is_none() -> None:
    api = FakeApi()
    runs = UiRuns(api)
    runs.launch(LOOK_AT_VERSIONS)
    runs.launch_all({"charge_teams": "2026-11"})
    api.states = {LOOK_AT_VERSIONS: "SUCCESS", "charge_teams": "FAILURE"}

    differences = runs.differences(nothing)

    assert differences == ("charge_teams is FAILURE",)
    assert api.launched == [(LOOK_AT_VERSIONS, None), ("charge_teams", "2026-11")]


def test_a_proof_of_quotas_that_did_not_pass_or_did_not_run_is_a_difference() -> None:
    api = FakeApi()
    runs = UiRuns(api)
    runs.launch(REBALANCE, partition="2026-11-22")
    api.states = {REBALANCE: "SUCCESS"}
    api.checks = {"caps_kept": "SUCCEEDED", "floors_kept": "FAILED", "inputs_fresh": None}

    differences = runs.differences(nothing)

    assert differences == (
        "proof floors_kept of gpu_quotas: FAILED",
        "proof inputs_fresh of gpu_quotas: not executed",
    )


def test_quotas_without_any_proof_are_a_difference() -> None:
    api = FakeApi()
    runs = UiRuns(api)
    runs.launch(REBALANCE, partition="2026-11-22")
    api.states = {REBALANCE: "SUCCESS"}

    assert runs.differences(nothing) == ("gpu_quotas has no proofs",)


def test_quotas_are_carried_out_once_as_soon_as_they_are_proposed() -> None:
    api = FakeApi()
    runs = UiRuns(api)
    runs.launch(REBALANCE, partition="2026-11-22")

    before = runs.is_over_after(SET_QUOTAS, first=REBALANCE)
    api.states = {REBALANCE: "SUCCESS"}
    between = [runs.is_over_after(SET_QUOTAS, first=REBALANCE) for _ in range(2)]
    api.states[SET_QUOTAS] = "SUCCESS"
    after = runs.is_over_after(SET_QUOTAS, first=REBALANCE)

    assert (before, between, after) == (False, [False, False], True)
    assert api.launched == [(REBALANCE, "2026-11-22"), (SET_QUOTAS, None)]


def test_jobs_of_the_morning_wait_for_the_back_fill_and_for_each_other() -> None:
    api = FakeApi()
    morning = InTurn(api, backfill="abc")
    asked = {"report_placement": "2026-11-22", "charge_teams": "2026-11"}

    morning.go_on(lambda: asked)
    api.backfill = (
        RunState(run_id="1", status="SUCCESS"),
        RunState(run_id="2", status="STARTED"),
    )
    morning.go_on(lambda: asked)
    before = list(api.launched)
    api.backfill = tuple(RunState(run_id=each.run_id, status="SUCCESS") for each in api.backfill)
    morning.go_on(lambda: asked)
    morning.go_on(lambda: asked)
    first = list(api.launched)
    api.states = {"report_placement": "FAILURE"}
    morning.go_on(lambda: asked)
    api.states["charge_teams"] = "SUCCESS"
    morning.go_on(lambda: asked)

    assert before == []
    assert first == [("report_placement", "2026-11-22")]
    assert api.launched == [("report_placement", "2026-11-22"), ("charge_teams", "2026-11")]


def test_a_job_that_the_web_server_did_not_take_is_launched_at_the_next_call() -> None:
    api = FakeApi()
    api.backfill = (RunState(run_id="1", status="SUCCESS"),)
    morning = InTurn(api, backfill="abc")

    api.is_silent = True
    morning.go_on(lambda: {"charge_teams": "2026-11"})
    api.is_silent = False
    morning.go_on(lambda: {"charge_teams": "2026-11"})
    morning.go_on(lambda: {"charge_teams": "2026-11"})

    assert api.launched == [("charge_teams", "2026-11")]
