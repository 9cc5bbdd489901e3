"""`make trial`: a stranger's bad day on a real Slurm. What once went wrong, on purpose, judged at the end.

Set up by the lines of docs/INSTALL.md and docs/START_GUARD.md. Silent nodes, a lab for each cell (`trial_writers`);
then the attacks, on one lab of twelve nodes (`trial_attacks`).
Each part is judged by itself; the exit code is 0 only if none failed.
"""

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ops_pipelines_lab.drills.documented_steps import INSTALL, own_program, step
from ops_pipelines_lab.drills.lab import CANNOT_BE_PLAYED, POLICY, Lab, brought_up, default_state
from ops_pipelines_lab.drills.lab_stage import DrillError, LabView
from ops_pipelines_lab.drills.stack import port_number, sole_owner
from ops_pipelines_lab.drills.trial_attacks import ATTACKS, attack
from ops_pipelines_lab.drills.trial_writers import Cell, CellResult, Disturbance, SilentNodes
from ops_pipelines_lab.drills.writer_watch import WriterWatch

SILENCE_LIMITS_SECONDS = (30, 60, 180)
_NODE_COUNT = 24
"""Ten fall silent at once, and their jobs need room elsewhere."""
_ATTACKED_NODE_COUNT = 12
_WITH_STORMS = POLICY.replace("mass_event: {min_node_count: 20,", "mass_event: {min_node_count: 6,")
"""Half of the nodes are a storm."""
_READY_SECONDS = 420.0
"""On a busy host: the daemon and the code server start beside the nodes."""
_RISK_TAKEN = "accepted_risks: {no_start_guard: the trial shows what it costs}\n"
"""Without it the autopilot would ask before it acts, and nothing of its speed would be seen."""


def main(argv: Sequence[str] | None = None) -> int:
    """Play what is asked for, print what came of it, and end with 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="make trial", description=__doc__)
    parser.add_argument("--silent", type=int, default=50, metavar="N", help="nodes that fall silent in each cell")
    parser.add_argument("--at-once", type=int, default=10, metavar="N", help="how many of them at once")
    parser.add_argument(
        "--limits", type=int, nargs="+", default=SILENCE_LIMITS_SECONDS, metavar="SECONDS", help="SlurmdTimeout"
    )
    names = [each.name.lower() for each in Disturbance]
    parser.add_argument("--disturbances", nargs="+", choices=names, help="what is wrong meanwhile; else no attacks")
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, help="what is tried afterwards; else no cells")
    parser.add_argument("--without-guard", action="store_true", help="show what the start guard is for: play without")
    parser.add_argument("--port", type=port_number, default=3000, help="port of the Dagster UI on 127.0.0.1")
    parser.add_argument("--state", type=Path, default=None, help="where the lab keeps its state")
    options = parser.parse_args(argv)
    if not 1 <= options.at_once <= _NODE_COUNT // 2 or options.silent < 1:
        parser.error(f"--silent must be 1 or more, --at-once 1 to {_NODE_COUNT // 2}")
    attacks = options.attacks or (() if options.disturbances else tuple(ATTACKS))
    console = Console(highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    state = options.state.resolve() if options.state is not None else default_state()
    cells = [
        Cell(disturbance=Disturbance[name.upper()], slurmd_timeout_seconds=limit, is_guarded=not options.without_guard)
        for name in options.disturbances or (() if options.attacks else names)
        for limit in options.limits
    ]
    results: list[CellResult] = []
    failures: list[str] = []
    try:
        with sole_owner(state):
            for cell in cells:
                try:
                    results.append(
                        _play_cell(
                            cell, state, console, port=options.port, count=options.silent, at_once=options.at_once
                        )
                    )
                except CANNOT_BE_PLAYED as problem:  # Hours of other cells must not be lost for it.
                    failures.append(f"{cell}: could not be played: {problem}")
                    console.print(failures[-1], style="bold red", markup=False)
            attacked = _attack(state, console, port=options.port, names=attacks)
    except CANNOT_BE_PLAYED as problem:
        console.print(f"trial: {problem}", style="bold red", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped.")
        return 130
    for result in results:
        console.print(f"  {result}", markup=False, soft_wrap=True)
    failures += [*(words for result in results for words in result.failures), *attacked]
    for words in failures:
        console.print(f"  {words}", markup=False, soft_wrap=True)
    console.print("the trial ended as it must" if not failures else f"{len(failures)} thing(s) did not hold")
    return 1 if failures else 0


def _play_cell(cell: Cell, state: Path, console: Console, *, port: int, count: int, at_once: int) -> CellResult:
    console.print(f"{cell}:", markup=False)
    lab = Lab(
        state,
        port=port,
        node_count=_NODE_COUNT,
        slurmd_timeout_seconds=cell.slurmd_timeout_seconds,
        is_guarded=cell.is_guarded,
        policy=POLICY if cell.is_guarded else POLICY + _RISK_TAKEN,
        has_own_code_server=cell.disturbance is not Disturbance.EPHEMERAL,
    )
    with brought_up(lab, console), _watched(lab, console) as view:
        return SilentNodes(view, cell, at_once=at_once).play(count)


def _attack(state: Path, console: Console, *, port: int, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    lab = Lab(state, port=port, node_count=_ATTACKED_NODE_COUNT, policy=_WITH_STORMS)
    with brought_up(lab, console), _watched(lab, console) as view:
        return [words for name in ATTACKS if name in names for words in attack(view, name)]


@contextmanager
def _watched(lab: Lab, console: Console) -> Iterator[LabView]:
    stage = lab.stage()
    watch = WriterWatch(stage.checkpoints)
    view = LabView(stage, console, watch)
    watch.start()
    try:
        _as_the_install_page_ends(lab, console)
        view.wait("no node in trouble", view.is_no_node_in_trouble, limit_seconds=_READY_SECONDS)
        view.begin()
        yield view
    finally:
        watch.stop()


def _as_the_install_page_ends(lab: Lab, console: Console) -> None:
    """Type what docs/INSTALL.md has an operator type around the start; raise DrillError unless both say yes."""
    for words in (step(INSTALL, "ops-pipelines", "check-config"), step(INSTALL, "ops-pipelines", "status", "--wait")):
        done = subprocess.run(
            [own_program(words[0]), *words[1:]],
            env=lab.stack.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        line = shlex.join(words)
        if done.returncode != 0:
            raise DrillError(f"`{line}` ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        console.print(f"  {line}: yes", markup=False)


if __name__ == "__main__":
    sys.exit(main())
