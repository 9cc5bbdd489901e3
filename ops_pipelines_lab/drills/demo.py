"""`make demo`: a simulated GPU cluster that breaks and heals itself, under the real Dagster daemon, sensors and runs.

Faults go into the simulated hardware only; everything else is the program as it runs in production.
Longer than other modules: the drill and the endless demo share the desk, the view and the order of the start.
"""

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.live import Live

from ops_pipelines.clock import SystemClock
from ops_pipelines.core.cluster import Cluster, Observatory
from ops_pipelines.core.identity import IncidentId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.core.observation import JobState
from ops_pipelines.wiring import TWIN_DIRECTORY, open_cluster, open_observatory
from ops_pipelines_lab.drills.daemon_processes import DaemonError
from ops_pipelines_lab.drills.dagster_api import DagsterApi, DagsterApiError, open_page
from ops_pipelines_lab.drills.demo_evidence import Evidence, Injected, Part
from ops_pipelines_lab.drills.demo_pages import (
    LOOK_AT_VERSIONS,
    PLAN_ROLLOUT,
    REBALANCE,
    SET_QUOTAS,
    InTurn,
    UiRuns,
    show_pages,
)
from ops_pipelines_lab.drills.demo_parts import ALONE, PARTS, SIDE_BY_SIDE, break_something, mend_what_waits
from ops_pipelines_lab.drills.demo_quotas import (
    PAST,
    QUOTAS,
    after_the_fill,
    answer_what_waits,
    begin_asking,
    day_key,
    quota_commands,
    with_limits,
)
from ops_pipelines_lab.drills.demo_rollout import BAD_PART, GOOD_PART, rollout_commands, with_racks
from ops_pipelines_lab.drills.demo_setup import (
    call_program,
    capacity_commands,
    capacity_line,
    clear,
    quarter_run,
    write_configuration,
)
from ops_pipelines_lab.drills.live_view import PartLine, draw
from ops_pipelines_lab.drills.recorded_past import fill_lake, pretend_past, pretend_year, start_fill
from ops_pipelines_lab.drills.stack import (
    LOOPBACK,
    DagsterStack,
    DocumentedStepError,
    port_beside,
    port_number,
    project_file,
    sole_owner,
)
from ops_pipelines_lab.simulator.ground_truth import read_lost_gpu_hours, read_progress
from ops_pipelines_lab.simulator.scenario import SWEEP_INTERVAL_SECONDS, demo_scenario
from ops_pipelines_lab.simulator.twin import Twin

SEED = 7
_PAST = timedelta(hours=2)
"""The simulated cluster has run for so long, so that the pages of its telemetry show whole hours."""
_PAST_OF_DRILL = timedelta(seconds=SWEEP_INTERVAL_SECONDS)
"""The drill has no time for more; each trial of the sweep has saved once. It may reach into the hour before this."""
_REFRESH_SECONDS = 0.5
_SEEN_IN, _CYCLES_SEEN = "application_telemetry", 3
"""Steps of jobs are counted there."""
_BEGIN_WITHIN_SECONDS = 150.0
"""The moments of all parts that happen side by side come within that time of the start."""
_FAULT_EVERY_SECONDS = (25.0, 50.0)
_NOT_PRETENDED = ("job_steps", "job_logs")
"""Tables that the simulated cluster cannot feed: its jobs write nothing, its scheduler accounts no steps."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if it ended as it should."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--once", action="store_true", help="run the fixed fourteen-part drill, print the verdict, and end"
    )
    parser.add_argument(
        "--port", type=port_number, default=3000, help="port of the Dagster UI on 127.0.0.1; its pages take the next"
    )
    parser.add_argument("--state", type=Path, default=Path(".demo"), help="where the demo keeps its state")
    options = parser.parse_args(argv)
    console = Console()
    os.umask(0o077)  # The other users of this machine may not read it either.
    # A terminated demo must stop what it started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with sole_owner(options.state.resolve()):
            return _run(options.state.resolve(), port=options.port, is_once=options.once, console=console)
    except (DocumentedStepError, DaemonError, DagsterApiError) as problem:
        console.print(f"[bold red]demo:[/] {problem}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped.")
        return 130 if options.once else 0


def _run(state: Path, *, port: int, is_once: bool, console: Console) -> int:
    began = time.monotonic()
    home = state / "dagster"
    stack = DagsterStack(
        home, cluster_file=state / "cluster.yaml", instance_file=project_file("deploy/dagster.yaml"), port=port
    )
    if home.exists():
        stack.stop()  # What an earlier demo left behind when it was killed.
    stack.refuse_taken_port()
    clear(state)
    pages_port = port_beside(port)
    pages_url = f"http://{LOOPBACK}:{pages_port}"
    cluster_file = write_configuration(state, pages_url=pages_url)
    past = _PAST_OF_DRILL if is_once else _PAST
    scenario = with_limits(with_racks(demo_scenario()))
    twin = Twin.create(state / TWIN_DIRECTORY, scenario, seed=SEED, clock=SystemClock(), past=past)
    cluster = open_cluster(cluster_file)
    observatory = open_observatory(cluster_file)
    # Before the daemon is there: its schedules compute on what is in the lake.
    with console.status("pretending a year before the start"):
        began_at = cluster.clock.now()  # of both: the year ends in the weeks
        pretend_past(observatory.lake, now=began_at, weeks=2, plan=PAST)
        pretend_year(observatory.lake, now=began_at, weeks=2, plan=PAST)
    try:
        with console.status("starting the Dagster processes") as status:
            stack.start(lambda what: status.update(f"starting the {what}"))
            status.update("starting the pages")
            serve = ["ops-pipelines", "serve", "--cluster", str(cluster_file), "--port", str(pages_port)]
            stack.start_beside("pages", serve, port=pages_port)
        console.print(
            f"Dagster UI: [link={stack.url}]{stack.url}[/]  (started in {time.monotonic() - began:.0f} s; "
            f"{stack.login_words})"
        )
        console.print(f"pages: [link={pages_url}/]{pages_url}/[/]  (reports, approvals, quotas, costs, advice)")
        desk = _Desk(cluster=cluster, twin=twin, stack=stack, console=console, state=state, pages_url=pages_url)
        if is_once:
            return _drill(desk, observatory)
        console.print(f"two releases lie ready ({pages_url}/rollouts); one of them is bad. To roll them out:")
        for words in rollout_commands(str(cluster_file)):
            console.print(f"  {words}", soft_wrap=True, highlight=False, markup=False)
        console.print(
            f"quotas of the morning wait for approval ({pages_url}/quotas), and a job of science for its GPUs:"
        )
        for words in quota_commands(str(cluster_file)):
            console.print(f"  {words}", soft_wrap=True, highlight=False, markup=False)
        console.print(f"what to order by when is shown once the quarter's run is over ({pages_url}/capacity), or now:")
        for words in capacity_commands(str(cluster_file)):
            console.print(f"  {words}", soft_wrap=True, highlight=False, markup=False)
        _endless(desk, observatory)
        return 0
    finally:
        with console.status("stopping"):
            stack.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Desk:
    """What the drill has in hand."""

    cluster: Cluster
    twin: Twin
    stack: DagsterStack
    console: Console
    state: Path
    pages_url: str

    def call(self, words: Sequence[str]) -> str:
        return call_program(words, cluster_file=self.state / "cluster.yaml")

    def evidence(self, injected: Injected) -> Evidence:
        return Evidence(
            twin=self.twin,
            cluster=self.cluster,
            injected=injected,
            state=self.state,
            call=self.call,
            browse=lambda url, form: open_page(url, form=form),
        )


def _drill(desk: _Desk, observatory: Observatory) -> int:
    """Break ten things, ask for an approval, update, share out again, and print the verdict as the last line."""
    cluster, twin, stack, console = desk.cluster, desk.twin, desk.stack, desk.console
    since = cluster.clock.now()
    view = _View(desk, parts=PARTS)
    drill = _Drill(desk, view)
    runs = UiRuns(DagsterApi(stack.url, token=stack.token))
    with view.shown():
        runs.launch(PLAN_ROLLOUT)
        _wait_for_training(twin, view)
        has_seen_jobs = _CyclesSeen(observatory, since=since).are_enough
        is_planned = partial(runs.is_over, PLAN_ROLLOUT)
        moments: dict[str, Callable[[], bool]] = {
            "e": has_seen_jobs,
            GOOD_PART.letter: is_planned,
            BAD_PART.letter: is_planned,
        }
        open_parts = drill.run(SIDE_BY_SIDE, but_not_before=moments)
        for part in ALONE:
            if open_parts:
                open_parts[part.letter] = ("not started, because an earlier part did not close",)
                continue
            if part is QUOTAS:
                runs.launch(REBALANCE, partition=day_key(cluster.clock.now()))
                moments[QUOTAS.letter] = partial(runs.is_over_after, SET_QUOTAS, first=REBALANCE)
            open_parts = drill.run([part], but_not_before=moments)
        if not open_parts:
            # Nothing may follow late either: what was healed stays healed, what was left alone stays alone.
            open_parts = drill.differences(PARTS)
        runs.launch(LOOK_AT_VERSIONS)
        fill = fill_lake(stack, observatory, hour_count=2, may_be_empty=_NOT_PRETENDED, pass_time=view.pass_time)
        # Costs, advice and the week are made of what accounting has, which the fill has just brought.
        runs.launch_all({**after_the_fill(cluster.clock.now()), **quarter_run(cluster.clock.now())})
        runs.await_all(view.pass_time)
        pages = show_pages(
            cluster,
            url=desk.pages_url,
            state=desk.state,
            since=since,
            call=desk.call,
            pass_time=view.pass_time,
        )
        run_differences = runs.differences(view.pass_time)
    for line in drill.stories(PARTS):
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    console.print(f"{fill}", soft_wrap=True, highlight=False)
    for line in pages.lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    line = capacity_line(desk.state, now=cluster.clock.now(), pages_url=desk.pages_url)
    console.print(line, soft_wrap=True, highlight=False, markup=False)
    lost = read_lost_gpu_hours(twin)
    console.print(
        f"{(cluster.clock.now() - since).total_seconds():.0f} s, {lost.total:.2f} GPU-hours lost, "
        f"{len(cluster.ledger.incidents_since(since))} incidents; ledger: {_chain_words(cluster)}"
    )
    expected = len(PARTS) - len(open_parts)
    for difference in fill.differences:
        console.print(f"lake: {difference}", soft_wrap=True, highlight=False, markup=False)
    for difference in pages.differences:
        console.print(f"pages: {difference}", soft_wrap=True, highlight=False, markup=False)
    for difference in run_differences:
        console.print(f"runs: {difference}", soft_wrap=True, highlight=False, markup=False)
    beside = {"the lake": fill.differences, "its pages": pages.differences, "its runs": run_differences}
    if any(beside.values()):
        what = " and ".join(name for name, differences in beside.items() if differences)
        console.print(f"{expected}/{len(PARTS)} as expected, but not {what}")
        return 1
    if not open_parts:
        console.print(f"{expected}/{len(PARTS)} as expected")
        return 0
    letter, differences = min(open_parts.items())
    console.print(f"{expected}/{len(PARTS)} as expected; first difference: ({letter}) {differences[0]}", soft_wrap=True)
    return 1


def _chain_words(cluster: Cluster) -> str:
    verdict = cluster.ledger.verify_chain()
    whole = "whole" if verdict.first_broken_seq is None else f"BROKEN at {verdict.first_broken_seq}: {verdict.problem}"
    return f"{verdict.entry_count} entries, chain {whole}"


def _wait_for_training(twin: Twin, view: "_View") -> None:
    """Let every job that will be hit reach a checkpoint."""
    while any(
        job.checkpointed_at is None
        for job in read_progress(twin)
        if job.state is JobState.RUNNING and len(job.nodes) in (2, 4, 6, 8, 16) and job.user.endswith("-train")
    ):
        view.pass_time(_REFRESH_SECONDS)


class _CyclesSeen:
    """Whether the live cycle has seen the jobs at work: one that was never seen to move cannot be seen to hang.

    A rate takes two samples; the third leaves room for one that came late.
    """

    def __init__(self, observatory: Observatory, *, since: datetime) -> None:
        self._observatory = observatory
        self._at = observatory.grid_time(since)
        self._seen_count = 0

    def are_enough(self) -> bool:
        observatory = self._observatory
        step = observatory.step
        while self._seen_count < _CYCLES_SEEN:
            if observatory.lake.read(_SEEN_IN, start=self._at, end=self._at + step, columns=("time",)).num_rows:
                self._seen_count += 1
            elif self._at + step > observatory.clock.now() - step:
                return False  # its turn has not come, or it is being written
            self._at += step
        return True


class _Drill:
    """The parts on their way: each is started at its moment and looked at until its end or its time limit."""

    def __init__(self, desk: _Desk, view: "_View") -> None:
        self._desk = desk
        self._twin = desk.twin
        self._view = view
        self._injected: dict[str, Injected] = {}

    def run(
        self, parts: Sequence[Part], *, but_not_before: Mapping[str, Callable[[], bool]] = MappingProxyType({})
    ) -> dict[str, tuple[str, ...]]:
        """Begin each part as soon as it may, and return what still differs when all have reached end or limit."""
        waiting = list(parts)
        give_up_at = time.monotonic() + _BEGIN_WITHIN_SECONDS
        while True:
            for part in tuple(waiting):
                may_begin = but_not_before.get(part.letter, _always)
                if may_begin() and part.is_ready(self._twin):
                    self._injected[part.letter] = part.inject(self._twin)
                    waiting.remove(part)
                    self._view.note(part, "running")
            begun = [part for part in parts if part.letter in self._injected]
            left = self.differences(begun)
            for part in begun:
                if part.letter in left:
                    part.proceed(self._evidence(part))
                self._view.note(part, "running" if part.letter in left else "as expected")
            if waiting and time.monotonic() > give_up_at:
                left |= {part.letter: ("not started: its moment did not come",) for part in waiting}
                waiting = []
            if not waiting and set(left) <= {part.letter for part in parts if self._is_late(part)}:
                for part in parts:
                    if part.letter in left:
                        self._view.note(part, left[part.letter][0])
                return left
            self._view.pass_time(_REFRESH_SECONDS)

    def differences(self, parts: Sequence[Part]) -> dict[str, tuple[str, ...]]:
        """Return what is not yet as it must become, of the parts that were started."""
        found = {part.letter: part.differences(self._evidence(part)) for part in parts}
        return {letter: differences for letter, differences in found.items() if differences}

    def stories(self, parts: Sequence[Part]) -> list[str]:
        """Return what the parts have shown, a line each."""
        begun = [part for part in parts if part.letter in self._injected]
        return [f"({part.letter}) {line}" for part in begun for line in part.tell(self._evidence(part))]

    def _is_late(self, part: Part) -> bool:
        injected = self._injected.get(part.letter)
        return injected is None or (self._desk.cluster.clock.now() - injected.at).total_seconds() > part.limit_seconds

    def _evidence(self, part: Part) -> Evidence:
        return self._desk.evidence(self._injected[part.letter])


def _always() -> bool:
    return True


def _endless(desk: _Desk, observatory: Observatory) -> None:
    """Break something every half minute until the user has seen enough.

    What waits for hands or for an approval then gets both; who wants to approve has until then.
    """
    chance = random.Random(SEED)
    view = _View(desk, parts=())
    twin = desk.twin
    api = DagsterApi(desk.stack.url, token=desk.stack.token)
    api.launch_job(REBALANCE, partition=day_key(desk.cluster.clock.now()))  # first: the fill keeps the pool for a while
    morning = InTurn(api, backfill=start_fill(desk.stack, observatory, hour_count=2))
    with view.shown():
        _wait_for_training(twin, view)
        asked = desk.evidence(begin_asking(twin))
        while True:
            answer_what_waits(asked)
            break_something(twin, chance)
            mend_what_waits(desk.cluster, twin, state=desk.state, call=desk.call)
            morning.go_on(lambda: {**quarter_run(desk.cluster.clock.now()), **after_the_fill(desk.cluster.clock.now())})
            view.pass_time(chance.uniform(*_FAULT_EVERY_SECONDS))


class _View:
    """The live picture, and the only place where the demo lets time pass."""

    def __init__(self, desk: _Desk, *, parts: Sequence[Part]) -> None:
        self._cluster, self._twin, self._stack, self._console = desk.cluster, desk.twin, desk.stack, desk.console
        self._urls = (desk.stack.url, desk.pages_url)
        self._since = desk.cluster.clock.now()
        self._told: dict[IncidentId, IncidentState] = {}
        self._lines = {part.letter: PartLine(letter=part.letter, title=part.title, state="waits") for part in parts}
        self._live = Live(console=self._console, auto_refresh=False, screen=False, transient=not sys.stdout.isatty())

    @contextmanager
    def shown(self) -> Iterator[None]:
        if not self._console.is_terminal:
            yield  # In a log, a picture twice a second would bury the verdict: `note` prints lines instead.
            return
        with self._live:
            yield

    def note(self, part: Part, state: str) -> None:
        """Keep the state of a part; print it in one line where there is no live picture."""
        line = self._lines[part.letter]
        if line.state != state and not self._console.is_terminal:
            self._console.print(f"({part.letter}) {part.title}: {state}", soft_wrap=True, highlight=False)
        self._lines[part.letter] = PartLine(letter=part.letter, title=part.title, state=state)

    def _tell_changes(self) -> None:
        """Say in one line what became of an incident, where there is no live picture and no drill to follow."""
        for incident in self._cluster.ledger.incidents_since(self._since):
            if self._told.get(incident.incident) is not incident.state:
                self._told[incident.incident] = incident.state
                where = ", ".join(sorted(incident.nodes)) or "no node"
                line = f"{incident.incident} {incident.state.value}: {where}: {incident.cause}"
                self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def pass_time(self, seconds: float) -> None:
        """Show the cluster for so long; raise StackError if a Dagster process died meanwhile."""
        until = time.monotonic() + seconds
        while True:
            self._stack.refuse_dead()
            if self._console.is_terminal:
                picture = draw(
                    self._cluster, self._twin, urls=self._urls, since=self._since, parts=tuple(self._lines.values())
                )
                self._live.update(picture, refresh=True)
            elif not self._lines:
                self._tell_changes()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _REFRESH_SECONDS))


if __name__ == "__main__":
    sys.exit(main())
