"""One Dagster instance for all ticks of a process.

Dagster makes one for each tick of a sensor that has resources, and with it opens its storage: on SQLite it reads every
migration script of its own to see that none is missing. That was 72 % of what a code server used while nothing
happened (measured). An instance may be shared by threads: the daemon and the web page do.
"""

import threading

import dagster as dg
from dagster._core.instance.ref import InstanceRef

_turn = threading.Lock()
_kept: list[tuple[InstanceRef, dg.DagsterInstance]] = []
"""The one instance and what it was made from, or nothing yet."""
_makes_its_own = dg.SensorEvaluationContext.instance.fget  # type: ignore[attr-defined]  # Dagster's decorator hides it


def share_one_instance() -> None:
    """Let the ticks of this process share an instance, unless a test hands one in. To call it twice changes nothing."""
    dg.SensorEvaluationContext.instance = property(_instance_of)  # type: ignore[method-assign,assignment]  # that is the point


def _instance_of(context: dg.SensorEvaluationContext) -> dg.DagsterInstance:
    if context._instance is None and context.instance_ref is not None:
        context._instance = _shared(context.instance_ref)
    return _makes_its_own(context)  # type: ignore[no-any-return]  # as above


def _shared(ref: InstanceRef) -> dg.DagsterInstance:
    """Return the instance of `ref`: the one that is kept, unless the daemon by now names another."""
    with _turn:
        if not _kept or _kept[0][0] != ref:
            _kept[:] = [(ref, dg.DagsterInstance.from_ref(ref))]
        return _kept[0][1]
