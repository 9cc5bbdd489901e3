"""The node's own check: tests that run for a while on a pretended node, and what cuts them short.

What a test finds follows from the hardware at the end of the run (`check_findings`). Whether a check can be started
is `commands`' business.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ops_pipelines.core.identity import ActionKey
from ops_pipelines.core.node_tests import NodeCheck
from ops_pipelines_lab.simulator.check_findings import find, not_run
from ops_pipelines_lab.simulator.defects import Defects
from ops_pipelines_lab.simulator.hardware import Hardware, Node
from ops_pipelines_lab.simulator.inspections import inspect, serials_of
from ops_pipelines_lab.simulator.journal import CheckOrder
from ops_pipelines_lab.simulator.scenario import Scenario


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    order: CheckOrder
    started_at: datetime
    image_number: int
    found_busy: bool
    is_over: bool = False
    found: NodeCheck | None = None


class NodeChecks:
    """All checks that were ever started, by node and key: their results lie on the nodes."""

    def __init__(
        self,
        scenario: Scenario,
        hardware: Hardware,
        defects: Defects,
        *,
        seed: int,
        lowers: Callable[[Node, str], float],
        later: Callable[[datetime, Callable[[datetime], None]], None],
    ) -> None:
        self._scenario = scenario
        self._hardware = hardware
        self._defects = defects
        self._seed = seed
        self._lowers = lowers
        """By which share what a node runs lowers the numbers of a test."""
        self._later = later
        self._runs: dict[tuple[str, str], _Run] = {}

    def start(self, node: Node, order: CheckOrder, at: datetime) -> None:
        """Begin the tests; under a key that was used before on this installation of the node nothing begins."""
        earlier = self._runs.get((node.name, order.key))
        if earlier is not None and earlier.image_number == node.image_number:
            return
        run = _Run(order=order, started_at=at, image_number=node.image_number, found_busy=bool(node.processes))
        self._runs[node.name, order.key] = run
        if run.found_busy:
            # The tests that need idle GPUs give up at once, and the others take no time worth telling.
            self._finish(node, run, at)
            return

        def finish(then: datetime) -> None:
            if not run.is_over:
                self._finish(node, run, then)

        self._later(at + timedelta(seconds=self._scenario.durations.check_seconds), finish)

    def cut_short(self, node: Node, at: datetime) -> None:
        """End what runs on a node that goes down: its tests did not come to an end."""
        for run in self._running_on(node):
            run.is_over = True
            tests = tuple(not_run(test, "cut short: the node went down") for test in run.order.tests)
            run.found = NodeCheck(
                key=ActionKey(run.order.key),
                node=node.name,
                suite=run.order.suite,
                started_at=run.started_at,
                finished_at=at,
                tests=tests,
            )

    def read(self, node: Node, key: ActionKey) -> NodeCheck | None:
        """Return what lies on the node under the key; None while it runs, or if nothing was begun since the image."""
        run = self._runs.get((node.name, key))
        return None if run is None or run.image_number != node.image_number else run.found

    def running_on(self, node: Node) -> tuple[ActionKey, ...]:
        """Return the keys of the checks that run on the node now."""
        return tuple(ActionKey(run.order.key) for run in self._running_on(node))

    def _running_on(self, node: Node) -> tuple[_Run, ...]:
        return tuple(run for (name, _), run in self._runs.items() if name == node.name and not run.is_over)

    def _finish(self, node: Node, run: _Run, at: datetime) -> None:
        run.is_over = True
        is_busy = run.found_busy or bool(node.processes)
        inspection = inspect(self._hardware, node, now=at)
        tests = run.order.tests
        seen = {
            test: [each for each in self._defects.of(node.name) if test in each.course.found_by]
            for test in tests
            if not is_busy and test not in self._scenario.absent_tests
        }
        seconds = 0.0 if run.found_busy else (at - run.started_at).total_seconds() / len(tests)
        found = [
            find(
                node,
                test,
                seen=seen.get(test, []),
                absent=self._scenario.absent_tests,
                is_busy=is_busy,
                lowered_ratio=self._lowers(node, test),
                seed=str(self._seed),
                key=run.order.key,
            )
            for test in tests
        ]
        run.found = NodeCheck(
            key=ActionKey(run.order.key),
            node=node.name,
            suite=run.order.suite,
            started_at=run.started_at,
            finished_at=at,
            tests=tuple(replace(each, seconds=seconds) for each in found),
            gpu_models=tuple(gpu.model for gpu in inspection.gpus),
            serials=serials_of(self._hardware, inspection, node),
            inspection=inspection,
        )
        for defect in {id(each): each for visible in seen.values() for each in visible}.values():
            self._defects.fail_check(defect)
