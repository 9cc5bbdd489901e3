"""`make trial`: a stranger's bad day on a real Slurm. What once went wrong, on purpose, judged at the end.

Set up by the lines of docs/INSTALL.md and docs/START_GUARD.md. Silent nodes, a lab for each cell (`trial_writers`);
then the attacks, each by itself, on one lab of twelve nodes: the open door, the deaf pause, a storm that continues,
five hundred restarts at once, and a ledger that is gone. An attack ends with the lab as it was, but for the last. Each
part is judged by itself; the exit code is 0 only if none failed.
"""

import argparse
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from rich.console import Console

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, JobStatus
from ops_pipelines.core.sources import SourceError
from ops_pipelines_lab.drills.lab import CANNOT_BE_PLAYED, POLICY, Lab, brought_up, default_state
from ops_pipelines_lab.drills.lab_act import SOON_SECONDS, is_done
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView
from ops_pipelines_lab.drills.stack import CODE_SERVER, INSTALL, own_program, port_number, sole_owner, step
from ops_pipelines_lab.drills.trial_writers import Cell, CellResult, Disturbance, SilentNodes
from ops_pipelines_lab.drills.writer_watch import WriterWatch
from ops_pipelines_lab.simulator.journal import FaultKind

_RESTART_COUNT = 500
_NOT_OVER = HAS_PROCESSES | {JobState.PENDING}
_LAUNCH = 'mutation{launchRun(executionParams:{selector:{repositoryLocationName:"ops_pipelines",repositoryName:"__repository__",pipelineName:"pause_autopilot"},runConfigData:{}}){__typename}}'  # noqa: E501 - one line of a URL
_FOREIGN = "http://wiki.example"


def open_door(view: LabView) -> Iterator[Demand]:
    """Ask for a pause as any page in an operator's browser could, and as any user of the machine."""
    stack = view.stage.stack
    graphql = f"{stack.url}/graphql"
    tries: Mapping[str, urllib.request.Request] = {
        "an image tag": _request(f"{graphql}?query={quote(_LAUNCH)}", {"Origin": _FOREIGN, "Referer": _FOREIGN}),
        "a form": _request(
            graphql, {"Origin": _FOREIGN, "Content-Type": "text/plain"}, body=f'{{"query": "{quote(_LAUNCH)}"}}'
        ),
        "a user without a token": _request(graphql, {"Content-Type": "application/json"}, body=_as_json(_LAUNCH)),
        "a foreign Host": _request(
            graphql, {"Host": "wiki.example", "Content-Type": "application/json"}, body=_as_json(_LAUNCH)
        ),
    }
    for what, request in tries.items():
        status = _status_of(request)
        yield Demand(is_so=status >= HTTPStatus.BAD_REQUEST, otherwise=f"{what} was answered with {status}")
    state = view.stage.cluster.ledger.read_state(view.stage.cluster.clock.now())
    yield Demand(is_so=state.pause is None, otherwise="the autopilot is paused")


def deaf_pause(view: LabView) -> Iterator[Demand]:
    """Break policy.yaml with a slip of the keyboard: somebody is paged, and the brake still works."""
    policy = view.stage.cluster_file.with_name("policy.yaml")
    kept = policy.read_text()
    policy.write_text(kept.replace("mode: auto", "mode: auto:"))
    try:
        began = time.monotonic()
        paused = _program(view, "pause", "--reason", "the trial's")
        took = time.monotonic() - began
        view.say(f"paused in {took:.1f} s, policy.yaml being broken")
        yield Demand(is_so=paused.returncode == 0, otherwise=f"pause ended with {paused.returncode}: {paused.stderr}")
        status = _program(view, "status")
        yield Demand(is_so="policy.yaml" in status.stdout + status.stderr, otherwise="status does not name policy.yaml")
        yield _awaited(view, "a page about policy.yaml", lambda: _is_paged_about(view, "policy.yaml"))
    finally:
        policy.write_text(kept)
    resumed = _program(view, "resume-autopilot")
    yield Demand(is_so=resumed.returncode == 0, otherwise=f"resume-autopilot: {resumed.stderr}")
    yield _awaited(view, "the mode to hold again", view.is_quiet)


def storm_that_goes_on(view: LabView) -> Iterator[Demand]:
    """Break half of the nodes at once, then let one of them lose a GPU: that one is drained, and named."""
    stage = view.stage
    nodes = sorted(view.nodes())[:6]
    for node in nodes:
        stage.twin.inject(FaultKind.UNCORRECTABLE_ECC, node, gpu=1)
    yield _awaited(view, "one incident of them all", lambda: any(each.is_mass_event for each in view.incidents()))
    storm = next((each for each in view.incidents() if each.is_mass_event), None)
    if storm is None:
        return
    yield Demand(is_so=not _drained(view, nodes), otherwise="a node of the storm was drained in the storm")
    time.sleep(70.0)  # The storm's window: what breaks within it is the storm.
    hit = nodes[0]
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, hit, gpu=5)
    yield _awaited(view, f"a drain of {hit}", lambda: hit in _drained(view, nodes))
    yield _awaited(view, "a second page", lambda: len(_pages(view)) > 1 and hit in _pages(view)[-1].action.text)
    others = sorted(_drained(view, nodes) - {hit})
    yield Demand(is_so=not others, otherwise=f"{', '.join(others)} were drained, too")
    for node in nodes:
        stage.twin.repair_by_hand(node)
    for node in sorted(_drained(view, nodes)):
        stage.cluster.scheduler.resume(node)
    for incident in view.incidents():
        if incident.is_open:
            _program(view, "close", incident.incident, "--reason", "the trial is over")


def many_restarts(view: LabView) -> Iterator[Demand]:
    """Requeue five hundred running tasks at once: the guard sees each, and Slurm starts all of them again."""
    environment = view.stage.slurm.client_environment
    submit = ("sbatch", "--parsable", "--requeue", "--output=/dev/null", f"--array=0-{_RESTART_COUNT - 1}", "--mem=1")
    array = _ask([*submit, "--time=60", "--wrap=exec sleep 3600"], environment).strip()

    def own() -> list[JobStatus]:
        """Return the tasks that are not over."""
        jobs = view.stage.cluster.scheduler.read_jobs()
        return [job for job in jobs if job.job.startswith(f"{array}_") and job.state in _NOT_OVER]

    def running(restarts: int) -> int:
        return sum(job.restart_count >= restarts for job in own() if job.state is JobState.RUNNING)

    yield _awaited(view, "all tasks to run", lambda: running(0) == _RESTART_COUNT, seconds=3 * SOON_SECONDS)
    began = time.monotonic()
    # scontrol 22.05 does not know the answer that it gets for so many, and ends with 1 when all of them are requeued.
    subprocess.run(
        ["scontrol", "requeue", array],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=SOON_SECONDS,
        check=False,
    )

    def ended_by_slurm() -> int:
        """Return how many a starved slurmctld ended: it kills what it could not launch, late, in the attempt after."""
        log = view.stage.slurm.read_controller_log()
        return len(set(re.findall(r"Killing non-startable batch JobId=(\d+)", log)))

    def all_run_again() -> bool:
        return running(1) >= _RESTART_COUNT - ended_by_slurm() and running(0) == running(1) == len(own())

    yield _awaited(view, "all tasks to run again", all_run_again, seconds=3 * SOON_SECONDS)
    took, count = time.monotonic() - began, running(1)
    view.say(f"{count} restarts, each guarded, took {took:.0f} s; {_RESTART_COUNT - count} were ended by Slurm itself")
    up = {name for name, node in view.nodes().items() if node.is_responding and not node.is_drained}
    yield Demand(is_so=len(up) == len(view.nodes()), otherwise="not every node is in service afterwards")
    _ask(["scancel", array], environment)
    yield _awaited(view, "the tasks to end", lambda: running(0) == 0)


def lost_ledger(view: LabView) -> Iterator[Demand]:
    """Take the ledger away under the running program: nothing is done on an empty one before a person says so."""
    stage = view.stage
    node = sorted(view.nodes())[-1]
    stage.postgres.empty("ledger")
    stage.stack.kill(CODE_SERVER)
    stage.stack.start_code_server()
    yield _awaited(view, "the loss to be seen", lambda: "ledger" in _program(view, "status").stdout.splitlines()[0])
    stage.twin.inject(FaultKind.GPU_FELL_OFF_BUS, node, gpu=2)
    time.sleep(20.0)  # Long enough for five ticks; what must not come has no end that could be awaited.
    yield Demand(is_so=view.is_in_service(node), otherwise=f"{node} was drained on an empty ledger")


ATTACKS: Mapping[str, Callable[[LabView], Iterator[Demand]]] = {
    "door": open_door,
    "pause": deaf_pause,
    "storm": storm_that_goes_on,
    "restarts": many_restarts,
    "ledger": lost_ledger,
}
"""In this order; after the last one the lab is of no use."""


def attack(view: LabView, name: str) -> tuple[str, ...]:
    """Play one attack, and return what did not hold."""
    view.say(f"{name}: {(ATTACKS[name].__doc__ or '').splitlines()[0]}")
    failures = tuple(f"{name}: {demand.otherwise}" for demand in ATTACKS[name](view) if not demand.is_so)
    view.say(f"{name}: {'; '.join(failures) or 'held'}")
    return failures


def _awaited(view: LabView, what: str, is_so: Callable[[], bool], *, seconds: float = SOON_SECONDS) -> Demand:
    def is_so_by_now() -> bool:
        try:
            return is_so()
        except (LedgerError, SourceError):
            return False

    try:
        view.wait(what, is_so_by_now, limit_seconds=seconds, every_seconds=1.0)
    except (TimeoutError, DrillError) as problem:
        return Demand(is_so=False, otherwise=f"{what} did not come: {problem}")
    return Demand(is_so=True, otherwise="")


def _drained(view: LabView, nodes: Sequence[NodeName]) -> set[NodeName]:
    return {name for name, node in view.nodes().items() if name in nodes and node.is_drained}


def _pages(view: LabView) -> list[ActionRecord]:
    return [each for each in view.records() if each.action.verb is Verb.PAGE_HUMAN and is_done(each)]


def _is_paged_about(view: LabView, words: str) -> bool:
    return any(words in each.action.text for each in _pages(view))


def _program(view: LabView, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        view.program(*words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SOON_SECONDS,
        check=False,
    )


def _ask(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        argv, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SOON_SECONDS
    )
    if done.returncode != 0:
        raise DrillError(f"{' '.join(argv[:2])} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _as_json(query: str) -> str:
    escaped = query.replace('"', '\\"')
    return f'{{"query": "{escaped}"}}'


def _request(url: str, headers: Mapping[str, str], *, body: str | None = None) -> urllib.request.Request:
    data = None if body is None else body.encode()
    return urllib.request.Request(url, data=data, headers=dict(headers))  # noqa: S310 - our own loopback URL


def _status_of(request: urllib.request.Request) -> int:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - our own loopback URL
            return int(answer.status)
    except urllib.error.HTTPError as problem:
        return problem.code


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
    """Type what docs/INSTALL.md has an operator type around the start; raise DrillError unless both approve."""
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
