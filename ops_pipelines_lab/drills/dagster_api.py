"""What a person's browser asks, on loopback: of the Dagster web server, what clicks in its UI ask (start a back-fill,
stop schedules, see how runs end); of our own pages, an address opened or a form sent. Renders nothing.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

_LIMIT_SECONDS = 60.0
"""# Assumption: the weekly review, the slowest page, is made within it on two loaded cores."""
_NO_ANSWER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What came back."""

    status: int
    """Of HTTP; 0 if nothing answered, and then `page` says why."""
    page: str

    @property
    def is_ok(self) -> bool:
        return self.status == 200


def open_page(url: str, *, form: dict[str, str] | None = None) -> Shown:
    """Return what is at the address; with a form, what is answered to it. Raises ValueError off the loopback."""
    if urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        raise ValueError(f"{url} is not on this machine; the drills ask nobody else")
    data = None if form is None else urlencode(form).encode()
    try:
        with urllib.request.urlopen(url, data=data, timeout=_LIMIT_SECONDS) as answer:  # noqa: S310 - loopback, see above
            return Shown(status=answer.status, page=answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return Shown(status=refusal.code, page=refusal.read().decode("utf-8", "replace"))
    except (urllib.error.URLError, TimeoutError, ConnectionError) as problem:
        return Shown(status=_NO_ANSWER, page=str(problem))


_BACKFILL = """
mutation Backfill($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
    ... on PartitionSetNotFoundError { message }
    ... on UnauthorizedError { message }
  }
}
"""
_RUNS = """
query Runs($filter: RunsFilter!) {
  runsOrError(filter: $filter, limit: 100) {
    __typename
    ... on Runs { results { runId status assetSelection { path } } }
    ... on PythonError { message }
  }
}
"""
_LAUNCH = """
mutation Launch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
_RUN = """
query Run($run: ID!) {
  runOrError(runId: $run) {
    __typename
    ... on Run { status }
  }
}
"""
_CHECKS = """
query Checks($key: AssetKeyInput!) {
  assetNodeOrError(assetKey: $key) {
    ... on AssetNode {
      assetChecksOrError {
        ... on AssetChecks { checks { name executionForLatestMaterialization { status } } }
      }
    }
  }
}
"""
_TICKING = """
query Ticking($repository: RepositorySelector!) {
  schedulesOrError(repositorySelector: $repository) { ... on Schedules { results { name scheduleState { id } } } }
  sensorsOrError(repositorySelector: $repository) { ... on Sensors { results { name sensorState { id } } } }
}
"""
_STOP = """
mutation Stop($id: String!) {
  stopped: %s(id: $id) {
    __typename
    ... on PythonError { message }
    ... on UnauthorizedError { message }
  }
}
"""
_LOCATION = "ops_pipelines"
_REPOSITORY = {"repositoryLocationName": _LOCATION, "repositoryName": "__repository__"}
ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})


class DagsterApiError(RuntimeError):
    """The web server did not do what was asked. The message says what it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of one run."""

    run_id: str
    status: str


class DagsterApi:
    """One web server."""

    def __init__(self, url: str, *, token: str) -> None:
        self._url, self._token = f"{url}/graphql", token

    def launch_backfill(self, *, assets: Sequence[str], partitions: Sequence[str]) -> str:
        """Start what the UI's `Materialize` starts for these assets and partitions; return the back-fill's id."""
        params = {
            "assetSelection": [{"path": [asset]} for asset in assets],
            "partitionNames": list(partitions),
            "fromFailure": False,
        }
        answer = self._ask(_BACKFILL, {"params": params})["launchPartitionBackfill"]
        if answer["__typename"] != "LaunchBackfillSuccess":
            raise DagsterApiError(f"the back-fill was not started: {answer}")
        return str(answer["backfillId"])

    def launch_job(self, job: str, *, partition: str | None = None) -> str:
        """Start a job that needs nothing but a partition, if it has some; return the id of its run."""
        selector = {**_REPOSITORY, "pipelineName": job}
        tags = [] if partition is None else [{"key": "dagster/partition", "value": partition}]
        params = {"selector": selector, "runConfigData": {}, "executionMetadata": {"tags": tags}}
        answer = self._ask(_LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise DagsterApiError(f"{job} was not started: {answer}")
        return str(answer["run"]["runId"])

    def run_status(self, run: str) -> str:
        """Return the state of a run, as Dagster calls it."""
        return str(self._ask(_RUN, {"run": run})["runOrError"].get("status", "NOT_FOUND"))

    def runs_of(self, backfill: str) -> tuple[RunState, ...]:
        """Return the runs that a back-fill has started so far."""
        tag = {"key": "dagster/backfill", "value": backfill}
        answer = self._ask(_RUNS, {"filter": {"tags": [tag]}})["runsOrError"]
        if answer["__typename"] != "Runs":
            raise DagsterApiError(f"the runs were not listed: {answer}")
        return tuple(RunState(run_id=run["runId"], status=run["status"]) for run in answer["results"])

    def check_states(self, asset: str) -> Mapping[str, str | None]:
        """Return each check of an asset with the state of its latest execution; None if it was not executed."""
        answer = self._ask(_CHECKS, {"key": {"path": [asset]}})["assetNodeOrError"]
        found: dict[str, str | None] = {}
        for check in answer.get("assetChecksOrError", {}).get("checks", ()):
            latest = check["executionForLatestMaterialization"]
            found[check["name"]] = None if latest is None else latest["status"]
        return found

    def stop_automation(self) -> None:
        """Stop every schedule and sensor: from now on only what somebody starts runs."""
        found = self._ask(_TICKING, {"repository": _REPOSITORY})
        for each in found["schedulesOrError"]["results"]:
            self._stop("stopRunningSchedule", each["scheduleState"]["id"], "ScheduleStateResult", each["name"])
        for each in found["sensorsOrError"]["results"]:
            self._stop("stopSensor", each["sensorState"]["id"], "StopSensorMutationResult", each["name"])

    def _stop(self, mutation: str, state: str, expected: str, name: str) -> None:
        try:
            answer = self._ask(_STOP % mutation, {"id": state})["stopped"]
        except DagsterApiError:
            # A daemon that has just started writes the same line in the same moment, and Dagster takes it once only.
            answer = self._ask(_STOP % mutation, {"id": state})["stopped"]
        if answer["__typename"] != expected:
            raise DagsterApiError(f"{name} was not stopped: {answer}")

    def _ask(self, query: str, variables: Mapping[str, object]) -> dict[str, dict]:  # type: ignore[type-arg] # JSON
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(  # noqa: S310 - our own loopback URL
            self._url,
            data=body,
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own loopback URL
                told = json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as problem:
            raise DagsterApiError(f"{self._url} did not answer: {problem}") from problem
        if told.get("errors"):
            raise DagsterApiError(f"{self._url} refused: {str(told['errors'])[:500]}")
        found: dict[str, dict] = told["data"]  # type: ignore[type-arg] # JSON
        return found
