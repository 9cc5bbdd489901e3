"""What a stranger did to the program on his own Slurm, each attack by itself, on one lab that stands.

The open door, the deaf pause, a storm that goes on, five hundred restarts at once, and a ledger that is gone. An attack
ends with the lab as it was, but for the last. Silent nodes are `trial_writers`'.
"""

import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import quote

from ops_pipelines.core.action import ActionRecord, Verb
from ops_pipelines.core.entries import LedgerError
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.observation import HAS_PROCESSES, JobState, JobStatus
from ops_pipelines.core.sources import SourceError
from ops_pipelines_lab.drills.lab_act import SOON_SECONDS, is_done
from ops_pipelines_lab.drills.lab_stage import Demand, DrillError, LabView
from ops_pipelines_lab.drills.stack import CODE_SERVER
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
    """Break half of the nodes at once, then let one of them lose a GPU: that one is drained, and told of."""
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
