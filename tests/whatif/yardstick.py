"""The yardstick's own numbers, and our measured inputs in its terms: each number follows from tables and decisions."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import NO_NODE
from ops_pipelines.core.plan import Rules
from ops_pipelines_lab.whatif import peers
from ops_pipelines_lab.whatif.autopilot import EPOCH, JOB, new_autopilot, observe
from ops_pipelines_lab.whatif.fault_mix import FaultKind, Group, Scenario
from ops_pipelines_lab.whatif.measured import NOTHING, Case, Classification, Measured, seconds_held, seconds_until_hold

SCRIPT = Path(__file__).parents[2].resolve().parent / "shared" / "yardstick" / "ettr_sim.py"
_LAUNCHER_SECONDS, _NODE_DOWN_SECONDS = 30.0, 300.0
_LATE = 0.5
"""A coverage of a half finds a part at the second attempt, on average."""
_MEAN_GAP = timedelta(hours=3)
_KEYS = {Group.GPU: "gpu", Group.NETWORK: "net", Group.HOST: "host", Group.SOFTWARE: "sw"}


def load() -> ModuleType:
    """Return the yardstick as a module."""
    spec = spec_from_file_location("ettr_sim", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["ettr_sim"] = module
    spec.loader.exec_module(module)
    return module


def run(policy: Mapping[str, object], *, reps: int, directory: Path) -> Mapping[str, Mapping[str, float]]:
    """Return the yardstick's results for its policies and this one, all with one start-up and checkpoint regime."""
    file = directory / "ours.json"
    file.write_text(json.dumps(policy))
    command = [sys.executable, str(SCRIPT), "--common", "--json", "--reps", str(reps), "--policy", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found: Mapping[str, Mapping[str, float]] = json.loads(said[said.index("\n{") :])
    return found


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the production code makes of one case: seconds until it drains and until it holds; None: never."""

    drained: float | None
    held: float | None
    held_for: float


def policy_of(rules: Rules, scenario: Scenario, measured: Measured) -> dict[str, object]:
    """Return our measured inputs as a policy of the yardstick."""
    random = np.random.default_rng(5)
    weights: dict[str, float] = {}
    removed: dict[str, float] = {}
    detect: dict[str, list[float]] = {"crash": [], "node_down": [], "hang": [], "slow": []}
    held: list[float] = []

    def meet(kind: FaultKind, key: str, how: str, share: float, fault: str) -> None:
        answers = [_answer(rules, measured, fault, kind, random) for _ in range(12)]
        latest = {"crash": _LAUNCHER_SECONDS, "node_down": _NODE_DOWN_SECONDS, "hang": 600.0, "slow": 4 * 3600.0}[how]
        for each in answers:
            was_fast = each.drained is not None and each.drained <= latest
            weights[key] = weights.get(key, 0.0) + share
            is_removed = was_fast or each.held is not None or how == "node_down"
            # Drained after the job was back, and the job left on it: its next failure leaves the node behind.
            late = _LATE if each.drained is not None and not is_removed else 0.0
            removed[key] = removed.get(key, 0.0) + share * (1.0 if is_removed else late)
            detect[how] += [min(latest, each.held or latest)] * max(1, round(share * kind.count))
            held.append(each.held_for if each.held is not None and each.held < latest else 0.0)

    for kind in scenario.kinds:
        if kind.group in (Group.PLANNED, Group.SOFTWARE):
            continue
        silent = "" if kind.silent is None else kind.silent.value
        if silent == "corrupts":
            continue
        for fault, share in kind.shows_as:
            if fault == NOTHING:
                continue
            if silent:
                meet(kind, "slow", "slow", share, fault)
            else:
                how = "node_down" if kind.ends_node else "crash"
                meet(kind, _KEYS[kind.group], how, share * (1 - kind.hang_ratio), fault)
        if kind.hang_ratio:
            meet(kind, "hang", "hang", kind.hang_ratio, "hang_one_rank")
    coverage = {key: removed[key] / weights[key] for key in weights}
    wrong = sum(rate for _, rate in measured.false_isolations) * scenario.node_count
    return {
        "name": "ours_measured",
        "detect": {**{how: ["emp", seconds] for how, seconds in detect.items()}, "sdc": 3600.0},
        "coverage": {"sw": 0.0, "sdc": 0.0, **coverage},
        "localise_s": ["emp", held],
        "sched_s": peers.STANDBY.seconds,
        "sched_short_s": peers.RESCHEDULE.seconds,
        "u0_s": peers.START.seconds,
        "planned_sched_s": peers.STANDBY.seconds,
        "planned_merge": 0.5,
        "escalate_after": 2,
        "fp_per_day": wrong,
        "ckpt": {"interval_s": 0.0},
    }


def _answer(rules: Rules, measured: Measured, fault: str, kind: FaultKind, random: np.random.Generator) -> _Answer:
    verdict = measured.verdict_on(fault, random)
    if verdict.rule == NOTHING:
        return _Answer(None, None, 0.0)
    return _answer_to(rules, measured, measured.case_of(fault, verdict, random), verdict, kind, random)


def _answer_to(
    rules: Rules, measured: Measured, case: Case, verdict: Classification, kind: FaultKind, random: np.random.Generator
) -> _Answer:
    autopilot = new_autopilot(
        rules, job_node_count=8, restart_seconds=160.0, queue_seconds=70.0, checkpoint_seconds=110.0
    )
    node = next(iter(rules.topology.places)) if verdict.is_culprit_named else NO_NODE
    looks = sorted({*(sign.after_seconds for sign in case.signs), *(30.0, 60.0, 120.0, 240.0)})
    for after in looks:
        at = EPOCH + _MEAN_GAP + timedelta(seconds=case.seconds + after)
        autopilot.checkpointed_at = at - timedelta(seconds=60)
        signs = [each for each in case.signs if each.after_seconds == after]
        if kind.ends_node and node != NO_NODE and not after:
            autopilot.set_responding(NodeName(node), is_responding=verdict.rule != "node_unreachable")
        seen = [
            observe(each.rule, node=NodeName(node), job=JOB, at=at, number=place, code=each.code)
            for place, each in enumerate(signs)
        ]
        for plan in autopilot.decide(seen, now=at).plans:
            if any(action.verb is Verb.DRAIN for action in plan.actions):
                until_hold = seconds_until_hold(plan.actions, measured.latencies, random)
                is_held = any(action.verb is Verb.HOLD for action in plan.actions)
                late = case.seconds + after
                return _Answer(
                    late + 2.0,
                    late + until_hold if is_held else None,
                    seconds_held(plan.actions, measured.latencies, random),
                )
    return _Answer(None, None, 0.0)
