"""Facts about jobs: which attempt one is on, and whether it may still write."""

from datetime import datetime

import pytest

from ops_pipelines.core.observation import HAS_PROCESSES, MAY_HAVE_PROCESSES, JobState, has_moved_on
from tests.domain.builders import after, ago, attempt, held_job, job


def test_an_attempt_is_the_job_and_its_start() -> None:
    assert job("42").attempt == attempt("42")


def test_a_job_that_never_ran_has_no_attempt() -> None:
    assert held_job("42").attempt is None


@pytest.mark.parametrize(
    ("started_at", "has_moved"),
    [
        pytest.param(ago(3601), False, id="just before"),
        pytest.param(ago(3600), False, id="the same attempt"),
        pytest.param(ago(3599), True, id="just after"),
        pytest.param(None, False, id="no start known"),
    ],
)
def test_a_job_has_moved_on_only_to_a_later_attempt(started_at: datetime | None, has_moved: bool) -> None:
    assert has_moved_on(job("42", started_at=started_at), attempt("42")) is has_moved


def test_a_pending_job_has_not_moved_on_whatever_start_is_foreseen_for_it() -> None:
    assert not has_moved_on(held_job("42", started_at=after(600)), attempt("42"))


@pytest.mark.parametrize("state", list(JobState))
def test_an_unknown_state_may_hide_processes(state: JobState) -> None:
    assert (state in MAY_HAVE_PROCESSES) is (state in HAS_PROCESSES or state is JobState.UNKNOWN)
