"""What a person asks of Dagster's web server by a click, a form or a back-fill: none of it makes an asset act."""

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import create_execution_plan, execute_run
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.schema import create_schema

from ops_pipelines_lab.simulator.journal import EntryKind
from tests.scenarios.small_autopilot import SmallAutopilot
from tests.shell.definitions_on import definitions_on
from tests.simulator.small_cluster import TRAINING

# Dagster's web server and daemon use what it deprecates; as an error it would be tried again, and hide the refusal.
pytestmark = pytest.mark.filterwarnings("ignore")
ACTING = ["action_log", "verifications", "rollout_pass", "applied_quotas"]
LAUNCH = "mutation Launch($params: ExecutionParams!) { asked: launchRun(executionParams: $params) { __typename } }"
BACKFILL = """
mutation Fill($params: LaunchBackfillParams!) { asked: launchPartitionBackfill(backfillParams: $params) { __typename } }
"""


@pytest.fixture(scope="module")
def web_server() -> Iterator[WorkspaceProcessContext]:
    origin = LoadableTargetOrigin(executable_path=sys.executable, module_name="ops_pipelines.definitions")
    target = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(origin, location_name="ops_pipelines"))
    with dg.instance_for_test() as instance, WorkspaceProcessContext(instance, target) as context:
        yield context


def ask(web_server: WorkspaceProcessContext, mutation: str, **params: object) -> str:
    """Return the name of what the web server answers."""
    asked = create_schema().execute_async(
        mutation, context_value=web_server.create_request_context(), variable_values={"params": params}
    )
    answer = asyncio.run(asked)
    assert answer.errors is None
    return str(answer.data["asked"]["__typename"])


def selector(job: str, **more: object) -> dict[str, object]:
    return {
        "repositoryLocationName": "ops_pipelines",
        "repositoryName": "__repository__",
        "pipelineName": job,
        **more,
    }


@pytest.mark.parametrize("name", ACTING)
def test_materialise_of_what_acts_is_refused(web_server: WorkspaceProcessContext, name: str) -> None:
    click = selector("__ASSET_JOB", assetSelection=[{"path": [name]}])

    assert ask(web_server, LAUNCH, selector=click, runConfigData={}) == "InvalidSubsetError"
    assert web_server.instance.get_runs() == []


def test_back_fill_of_what_acts_fails_and_starts_no_run(web_server: WorkspaceProcessContext) -> None:
    for name in ("action_log", "verifications", "rollout_pass"):  # A whole one, as there are no partitions.
        ask(web_server, BACKFILL, assetSelection=[{"path": [name]}, {"path": ["shift_report"]}], allPartitions=True)

    for _ in range(2):  # Failing, then failed.
        list(execute_backfill_iteration(web_server, logging.getLogger(__name__)))

    assert [each.status for each in web_server.instance.get_backfills()] == [BulkActionStatus.FAILED] * 3
    assert web_server.instance.get_runs() == []


@pytest.mark.parametrize("given", [{}, {"inputs": {"decision": {"value": "{}"}}}])
def test_act_by_itself_is_refused_whatever_decision_a_form_claims(
    web_server: WorkspaceProcessContext, given: dict[str, object]
) -> None:
    alone = selector("remediate", solidSelection=["action_log"])

    assert ask(web_server, LAUNCH, selector=alone, runConfigData={"ops": {"action_log": given}}) == "InvalidSubsetError"
    assert web_server.instance.get_runs() == []


def test_step_that_acts_finds_no_decision_where_none_was_made_in_its_run(tmp_path: Path) -> None:
    autopilot = SmallAutopilot(tmp_path, TRAINING, node_count=4)
    job = InMemoryJob(definitions_on(autopilot.cluster).resolve_job_def("remediate"))

    with dg.DagsterInstance.ephemeral() as instance:
        plan = create_execution_plan(job, step_keys_to_execute=["action_log"])
        run = instance.create_run_for_job(job.get_definition(), execution_plan=plan)
        result = execute_run(job, run, instance)

    assert not result.success
    assert autopilot.received(*EntryKind) == ()
