"""On whose word a job of a person acts: the login's that launched this run; a form says nothing."""

from pathlib import Path

import dagster as dg

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster
from ops_pipelines.core.policy import Mode
from ops_pipelines.login_tag import LOGIN_TAG, login_key, read_login
from ops_pipelines.remediate.by_hand import ByHandRefused

WITHOUT_LOGIN = "somebody without a login"


def login_behind(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> str | None:
    """Return the name of the login that launched this run; None if nobody's login stands behind it, or not any more."""
    said = context.run.tags.get(LOGIN_TAG, "")
    if not said:
        return None
    key = login_key(Path(context.instance.root_directory))
    # The wall clock, as the seal was made by it; the cluster's may be a pretended one.
    return read_login(key, said, job=context.run.job_name, run=context.run.run_id, now=SystemClock().now())


def launched_by(context: dg.OpExecutionContext, cluster: Cluster, *, instead: str) -> str:
    """Return the name of the login that launched this run.

    Raise ByHandRefused in `auto` and `approve` if there is none, naming what to do `instead`.
    In `observe` nothing is acted upon.
    """
    name = login_behind(context)
    if name is not None:
        return name
    if cluster.rules.policy.mode is Mode.OBSERVE:
        return WITHOUT_LOGIN
    too_old = ", or it is older than a quarter of an hour" if context.run.tags.get(LOGIN_TAG) else ""
    raise ByHandRefused(
        f"nobody's login stands behind this run{too_old}; "
        "launch it from the web page of `ops-pipelines webserver` after a login, not by running an old one again, "
        f"or instead: {instead}"
    )
