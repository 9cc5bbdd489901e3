"""How long our own acts keep a job: from the incident to its hold, and from its hold to its release.

Each duration is one that the lab's ledger recorded (`catalogue/lab_latencies.csv`): the acts by their verb, and what
lies between them, which is more. `first_act` is from the incident to the first act's begin (the drain, within the
sensor's tick), `run_start` from that drain to the next act (a run has to be launched), `between_acts` from one act's
end to the next one's begin. A verb that the lab never needed takes no time of its own.
"""

from collections.abc import Mapping, Sequence

from numpy.random import Generator

from ops_pipelines.core.action import Action, Verb
from ops_pipelines_lab.whatif.draws import Duration

FIRST_ACT, RUN_START, BETWEEN_ACTS = "first_act", "run_start", "between_acts"


def seconds_until_hold(actions: Sequence[Action], latencies: Mapping[str, Duration], random: Generator) -> float:
    """Return the seconds from a plan to its first hold: drained in the same tick, then in a run of its own."""
    before = [action.verb for action in actions[: _first(actions, Verb.HOLD)]]
    seconds = _draw(FIRST_ACT, latencies, random) + _draw(RUN_START, latencies, random)
    if before[:1] == [Verb.DRAIN]:
        seconds += _draw(Verb.DRAIN.value, latencies, random)
        before = before[1:]
    return seconds + sum(_one(verb, latencies, random) for verb in before)


def seconds_held(actions: Sequence[Action], latencies: Mapping[str, Duration], random: Generator) -> float:
    """Return the seconds from a plan's first hold to its last release: the job stands all that time."""
    releases = [place for place, action in enumerate(actions) if action.verb is Verb.RELEASE]
    held = actions[_first(actions, Verb.HOLD) : releases[-1] + 1] if releases else ()
    return sum(_one(action.verb, latencies, random) for action in held)


def _first(actions: Sequence[Action], verb: Verb) -> int:
    return next((place for place, action in enumerate(actions) if action.verb is verb), len(actions))


def _one(verb: Verb, latencies: Mapping[str, Duration], random: Generator) -> float:
    return _draw(verb.value, latencies, random) + _draw(BETWEEN_ACTS, latencies, random)


def _draw(act: str, latencies: Mapping[str, Duration], random: Generator) -> float:
    known = latencies.get(act)
    return 0.0 if known is None else known.draw(random)
