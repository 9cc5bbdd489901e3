"""A process that has the lease and is stopped by the kernel between its before-entry and its command."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from ops_pipelines.core.action import Action
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.plan import ProvedPlan
from ops_pipelines.remediate.carry_out import carry_out_together
from ops_pipelines.remediate.judgement import TTL, Lease
from ops_pipelines.remediate.perform import perform
from tests.ports.proved_plans import keep_proved, order_of, passed, plan_named
from tests.scenarios.small_autopilot import MessagesInMemory, SmallAutopilot

HOLDER = "the one that is stopped"
PLAN = PlanId("PLAN-000000000001")


class StoppedAfterBeforeEntry:
    """A ledger whose user is stopped as soon as a before-entry is written, until somebody lets it continue."""

    def __init__(self, ledger: object) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        call = cast("Callable[..., object]", getattr(self._ledger, name))
        if name not in ("begin", "begin_all", "begin_again"):
            return call

        def begin(*args: object, **options: object) -> object:
            answer = call(*args, **options)
            os.kill(os.getpid(), signal.SIGSTOP)
            return answer

        return begin


def act_and_be_stopped(directory: Path, at: datetime, action: Action, *, together: bool) -> None:
    """Take the lease and begin an act, alone or as one of many drains."""
    autopilot = SmallAutopilot.on_disk(directory, at=at, messages=MessagesInMemory())
    token = autopilot.cluster.ledger.take_lease(holder=HOLDER, ttl=TTL, now=autopilot.clock.now())
    lease = Lease(holder=HOLDER, given=token)
    cluster = replace(autopilot.cluster, ledger=cast("Any", StoppedAfterBeforeEntry(autopilot.cluster.ledger)))
    ledger = autopilot.cluster.ledger
    if together:
        plan = plan_named(PLAN, action.incident, action)
        keep_proved(ledger, plan, at=at)
        proved = ProvedPlan(plan=plan, content=ledger.content_of(plan), proof=passed(plan, ledger, at=at))
        carry_out_together([proved.step(action)], cluster, lease=lease)
    else:
        perform(order_of(action, ledger, at=at), cluster, lease=lease)
