"""A run as the web gateway's login launches it."""

from pathlib import Path

import dagster as dg
from dagster._core.utils import make_new_run_id

from ops_pipelines.clock import SystemClock
from ops_pipelines.run_lanes import LOGIN_TAG, login_key, seal_login


def launch(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, login: str | None, **given: object
) -> dg.ExecuteInProcessResult:
    """Execute a job with the tag that a login's run carries; without one if nobody is logged in."""
    run, tags = make_new_run_id(), {}
    if login is not None:
        key = login_key(Path(instance.root_directory))
        tags[LOGIN_TAG] = seal_login(key, name=login, job=job.name, run=run, now=SystemClock().now())
    return job.execute_in_process(instance=instance, run_id=run, tags=tags, raise_on_error=False, **given)  # type: ignore[arg-type]  # as execute_in_process takes them
