"""What the drills ask of Dagster's web server, where the daemon writes in the same moment."""

from collections.abc import Mapping

import pytest

from ops_pipelines_lab.drills.dagster_api import DagsterApi, DagsterApiError


class BusyApi(DagsterApi):
    """A web server that refuses so many changes before it takes one."""

    def __init__(self, refusals: int) -> None:
        super().__init__("http://127.0.0.1:1", token="of the test")
        self._refusals = refusals
        self.stopped: list[object] = []

    def _ask(self, query: str, variables: Mapping[str, object]) -> dict[str, dict]:  # type: ignore[type-arg] # JSON
        if "mutation" not in query:
            schedule = {"name": "hourly", "scheduleState": {"id": "of the schedule"}}
            return {"schedulesOrError": {"results": [schedule]}, "sensorsOrError": {"results": []}}
        if self._refusals > 0:
            self._refusals -= 1
            raise DagsterApiError("HTTP Error 500")
        self.stopped.append(variables["id"])
        return {"stopped": {"__typename": "ScheduleStateResult"}}


@pytest.mark.parametrize("refusals", [0, 1])
def test_schedule_is_stopped_though_the_daemon_notes_it_in_the_same_moment(refusals: int) -> None:
    api = BusyApi(refusals)

    api.stop_automation()

    assert api.stopped == ["of the schedule"]


def test_web_server_that_goes_on_refusing_is_told() -> None:
    with pytest.raises(DagsterApiError):
        BusyApi(2).stop_automation()
