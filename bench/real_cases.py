"""Real cases: lines that people pasted into issues, diaries of large trainings, and traces of slowed workers.

Prints the tables of docs/REAL_CASES.md: what our rules, detectors and correlation would have reported, beside what
people wrote. Nothing here knows the right answer but the columns that quote it. Run it with `python -m
bench.real_cases`. Titan's GPUs, another real case, are `bench.titan`. Only tables are
printed: what they mean is written by hand, and to be read again where a table changes.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.chronicles import (
    BASE_13B,
    BLOOM,
    WIDE_104B,
    Rebuilt,
    crash_without_end,
    hang_at_evaluation,
    loss_gauge,
    loss_in_lines,
    one_slow_gpu,
    quoted,
    read_losses,
)
from bench.classify import classify_texts
from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS
from ops_pipelines.core.identity import JobId, NodeName, Place, Topology
from ops_pipelines.core.incident import Incident
from ops_pipelines.core.observation import JobState, JobStatus, Observation, Signal, Workload
from ops_pipelines.observe.detectors.stragglers import TraceVerdict, judge_ranks, read_rank_times
from ops_pipelines.observe.logs import tables as log
from ops_pipelines.observe.logs.observations import coded_observations, observations_of
from ops_pipelines.observe.logs.tables import RawLine, Writer, tabulate
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines.review.retrace import Event, Retrace, Spell, turns

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
DOCS = Path(__file__).parent.parent / "docs" / "REAL_CASES.md"
KERNEL_LOGS, STRAGGLERS = DATA / "kernel_logs", DATA / "bytedance_straggler"
PASTED = KERNEL_LOGS / "real_issue_log_lines.jsonl"
NODE, JOB = NodeName("n1"), JobId("17")
"""Pasted lines name neither: they are taken as those of a running job on one node."""
ARRIVED_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""Of lines without a time."""
TICK = timedelta(seconds=5)
TRIALS = {"AR": "one worker slowed on purpose", "ST": "stages split unevenly"}
_SINCE = re.compile(r" since [\d:]{8} \([^)]*\)")
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the program would have stated of some lines."""

    signatures: Mapping[str, int]
    """Signature, `-` for lines that have none -> how many lines."""
    incidents: tuple[Incident, ...]


def tell_tables(tables: Mapping[str, pa.Table], *, node: NodeName = NODE, nodes: Sequence[NodeName] = (NODE,)) -> Told:
    """Return what comes of rows of kernel_events and job_logs: evidence, findings, correlation, hypothesis."""
    topology = _topology(nodes)
    observations: list[Observation] = []
    signatures: Counter[str] = Counter()
    for name, rows in tables.items():
        signatures.update(each or "-" for each in rows["signature"].to_pylist())
        observations += observations_of(rows, table=name)
        if name == "kernel_events":
            observations += coded_observations(rows, received_at=ARRIVED_AT, known_nodes=(node,))
    newest = max((each.observed_at for each in observations), default=ARRIVED_AT)
    oldest = min((each.observed_at for each in observations), default=ARRIVED_AT)
    retrace = Retrace(catalogue=read_catalogue(), topology=topology)
    events = [Event(observation=each, known_at=each.observed_at) for each in observations]
    job = job_on(nodes, started_at=oldest - timedelta(hours=1))
    for turn in turns(events, (), tick=TICK, until=newest + TICK):
        retrace.step(turn.at, events=turn.events, jobs=(job,))
    return Told(signatures=signatures, incidents=tuple(retrace.incidents.values()))


def tell_symptom(rebuilt: Rebuilt) -> tuple[Incident, ...]:
    """Return the incidents of a rebuilt symptom: detectors, findings, correlation, hypothesis."""
    nodes = tuple(part.node for part in rebuilt.panel.nodes.parts)
    end = rebuilt.panel.time(len(rebuilt.panel.times) - 1)
    job = job_on(nodes, started_at=rebuilt.panel.time(0) - timedelta(days=1))
    retrace = Retrace(catalogue=read_catalogue(), topology=rebuilt.topology)
    spells = [Spell(observation=each, known_at=at) for at, each in rebuilt.conditions()]
    for turn in turns((), spells, tick=TICK, until=end):
        retrace.step(turn.at, begun=turn.begun, jobs=(job,))
    return tuple(retrace.incidents.values())


def job_on(nodes: Sequence[NodeName], *, started_at: datetime) -> JobStatus:
    """Return the one job of a case, running on `nodes`."""
    return JobStatus(
        job=JOB,
        state=JobState.RUNNING,
        is_held=False,
        is_requeueable=True,
        name="training",
        user="",
        account="",
        workload=Workload.TRAINING,
        nodes=frozenset(nodes),
        gpu_count=8 * len(nodes),
        started_at=started_at,
        ended_at=None,
        restart_count=0,
        excluded_nodes=frozenset(),
        checkpointed_at=None,
    )


def _topology(nodes: Sequence[NodeName]) -> Topology:
    places = {node: Place(rack="r1", nvlink_domain=node, leaf_switch="s1") for node in nodes}
    return Topology(places=places, gpus_per_node=8)


# -- Lines that people pasted --


@dataclass(frozen=True, slots=True, kw_only=True)
class Pasted:
    """One incident that people pasted into an issue."""

    name: str
    lines: tuple[str, ...]
    stream: str
    label: Mapping[str, object]


def read_pasted() -> list[Pasted]:
    """Return the labelled incidents."""
    records = [json.loads(line) for line in PASTED.read_text(encoding="utf-8").splitlines()]
    return [Pasted(name=r["id"], lines=tuple(r["lines"]), stream=r["stream"], label=r["label"]) for r in records]


def tell_pasted(case: Pasted) -> Told:
    """Return what comes of pasted lines: of a kernel, or of a job where the stream is a job's."""
    is_job = case.stream.startswith("job")
    raw = (
        RawLine(text=text, position=f"{number:03d}", job=str(JOB) if is_job else None)
        for number, text in enumerate(case.lines, start=1)
    )
    parsed = tabulate(
        raw, source=case.name, at=ARRIVED_AT, writer=Writer.JOB if is_job else Writer.KERNEL, node=str(NODE)
    )
    nodes = [NODE, *(NodeName(name) for rows in parsed.tables.values() for name in rows["node"].to_pylist())]
    return tell_tables(parsed.tables, nodes=tuple(dict.fromkeys(nodes)))


def agreement(case: Pasted, told: Told) -> str:
    """Return whether what we say fits the label."""
    label = case.label
    incidents = told.incidents
    if label.get("severity") == "correctable" or label["component"] == "peermem":
        return "yes: nothing is broken" if not incidents else "no: an incident of what only needs watching"
    if not incidents:
        return "no: nothing is reported"
    culprits = [part for each in incidents if each.hypothesis for part in each.hypothesis.culprits]
    if label["component"] == "nccl_timeout":
        is_job = all(str(part) == f"job {JOB}" for part in culprits) and culprits
        return "yes: no part is blamed" if is_job else "no: a part is blamed"
    if any(part.name == label["pci"] for part in culprits):
        return "yes"
    if any(part.name in (NODE, part.node) for part in culprits):
        return "in part: the node, not its GPU"
    return "in part: its codes are read, the program is blamed"


def pasted_rows() -> Rows:
    """Return a row a pasted incident."""
    found: Rows = [("incident", "labelled", "what we say broke", "culprit", "first action", "sure", "agrees")]
    for case in read_pasted():
        told = tell_pasted(case)
        codes = case.label.get("xid") or case.label.get("equivalent_xid")
        told_label = " ".join(str(each) for each in (case.label["component"], codes, case.label.get("pci")) if each)
        found += [
            (case.name, told_label, *words, agreement(case, told)) for words in _sayings(told.incidents, told=told)
        ]
    return found


def _sayings(incidents: Sequence[Incident], *, told: Told | None = None) -> list[tuple[str, str, str, str]]:
    """Return statement, culprits, first action and confidence of each incident; one row where there is none."""
    if not incidents:
        read = ", ".join(sorted(told.signatures)) if told is not None else "nothing"
        return [(f"no incident ({read})", "-", "-", "-")]
    found = []
    for each in incidents:
        why = each.hypothesis
        if why is None:
            found.append((each.note, "-", "-", "-"))
            continue
        culprits = ", ".join(str(part) for part in why.culprits) or "nobody"
        found.append((why.statement, culprits, why.first_action.value, f"{why.confidence:.2f}"))
    return found


def file_rows() -> Rows:
    """Return a row a recorded log of gpud's tests."""
    found: Rows = [("log", "lines", "by first action", "destructive", "incidents")]
    for path in sorted((KERNEL_LOGS / "gpud").glob("*.log")):
        body = path.read_bytes()
        verdicts = classify_texts(body.splitlines())
        count = Counter(verdict.actions[0] for verdict in verdicts if verdict.category != "blank")
        told = tell_tables(log.parse(body, source=path.name, at=ARRIVED_AT, node=str(NODE)).tables)
        said = [f"{statement}: {culprit}, {action}" for statement, culprit, action, _ in _sayings(told.incidents)]
        found.append(
            (
                "/".join(path.name.split("__")[-2:]),
                str(count.total()),
                ", ".join(f"{action.value} {number}" for action, number in count.most_common()),
                str(sum(count[action] for action in DESTRUCTIVE_ACTIONS)),
                "; ".join(said) if told.incidents else "none",
            )
        )
    return found


# -- Diaries --


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """One thing that a diary reports and that can be rebuilt."""

    date: str
    happened: str
    noticed: str
    signal: Signal
    rebuild: Callable[[], Rebuilt]


SPIKES = (
    ("13B, no date", BASE_13B, "A huge lm loss spike", 29050, "loss 2.8 to 7.3, 500 steps to recover"),
    ("104B, exp. 1", WIDE_104B, "Experiment 1", 7010, "loss 6.4 to 11, then NaN"),
    ("104B, exp. 2", WIDE_104B, "Experiment 2", 6930, "loss 6.4 over 9.1 to 10"),
    ("104B, exp. 11", WIDE_104B, "Analyzing Spike", 11448, "loss 3.1 to 7.7, long to come down"),
    ("104B, exp. 12", WIDE_104B, "Experiment 12", 8741, "loss 3.7, 7.3, 4.1, 7.6 in four steps; later it diverged"),
    ("BLOOM, 2022-04-12", BLOOM, "2022-04-12 First lm loss spike", 31219, "loss 2.3 to 5.1, 30 steps to recover"),
)
SYMPTOMS = (
    Symptom(
        date="BLOOM, 2022-04-28",
        happened="one slow GPU: steps 5.7 % longer from one minute to the next",
        noticed="over a weekend, by excluding nodes and restarting",
        signal=Signal.GPU_SLOW,
        rebuild=lambda: one_slow_gpu(slower_ratio=0.057),
    ),
    Symptom(
        date="BLOOM, 2022-04-28",
        happened="the same, if the GPU is 2.5 % slower, as the site's benchmark of its node found",
        noticed="as above",
        signal=Signal.GPU_SLOW,
        rebuild=lambda: one_slow_gpu(slower_ratio=0.025),
    ),
    Symptom(
        date="BLOOM, 2022-04-30",
        happened="deadlock in an evaluation, all GPUs at 100 %, no NCCL timeout",
        noticed="at least 3 h; about 18 h lost until the cause was found",
        signal=Signal.JOB_HUNG,
        rebuild=hang_at_evaluation,
    ),
    Symptom(
        date="BLOOM, 2022-04-30",
        happened="the same, without the hourly line of their watchdog in the job's log",
        noticed="as above",
        signal=Signal.JOB_HUNG,
        rebuild=lambda: hang_at_evaluation(pulse_after_seconds=3600),
    ),
    Symptom(
        date="BLOOM, 2022-04-30",
        happened="the same, as it was when reproduced: one process waits for its data loader",
        noticed="as above; again 6 h lost on 2022-05-09 and 11 h on 2022-05-18",
        signal=Signal.JOB_HUNG,
        rebuild=lambda: hang_at_evaluation(idle_rank=5),
    ),
    Symptom(
        date="BLOOM, 2022-05-18",
        happened="a crash after which the job neither ends nor trains (recurrent)",
        noticed="when somebody looks",
        signal=Signal.JOB_HUNG,
        rebuild=lambda: crash_without_end(nodes=48),
    ),
)


def symptom_rows() -> Rows:
    """Return a row a symptom: what happened, what people noticed after how long, what we would have reported when."""
    found: Rows = [("when", "what happened", "people noticed", "we: after", "what we say", "culprit, first action")]
    for symptom in SYMPTOMS:
        rebuilt = symptom.rebuild()
        seen = rebuilt.first(symptom.signal)
        said = _sayings(tell_symptom(rebuilt))[0]
        words = "nothing" if seen is None else _SINCE.sub("", seen.text)
        verdict = "-" if seen is None else f"{said[1]}, {said[2]} ({said[3]})"
        after = _seconds(rebuilt.seconds_until(symptom.signal))
        found.append((symptom.date, symptom.happened, symptom.noticed, after, words, verdict))
    return found


def spike_rows() -> Rows:
    """Return a row a spike: after how long it is reported where the job exports its loss, and where only its log
    reports."""
    found: Rows = [("when", "what happened", "a line every", "loss as a metric: after", "in the log only: after")]
    for date, diary, heading, jump, happened in SPIKES:
        losses = read_losses(quoted(diary, heading))
        if heading == "Experiment 12":
            losses = [each for each in losses if each.step < 9000]  # what lay between is not quoted
        gap = (losses[1].step - losses[0].step) * losses[0].step_seconds
        stands = losses[-1].step_seconds if heading == "Experiment 12" else 600.0
        exported = loss_gauge(losses, jump=jump, stands_seconds=stands).seconds_until(Signal.LOSS_SPIKE)
        logged = loss_in_lines(losses, jump=jump).seconds_until(Signal.LOSS_SPIKE)
        found.append((date, happened, f"{gap:.0f} s", _seconds(exported), _seconds(logged)))
    return found


_CORRUPT = "Corrupt GPU crashes the training multiple times"
QUOTES = (
    ("13B, no date", BASE_13B, "Round3 SAVE_INTERVAL=1500 NNODES=32", 1, "never found out"),
    ("13B, 2021-08-08", BASE_13B, "Watchdog", 0, "nothing ran or was queued; their watchdog after 49 min"),
    ("13B, 2021-08-12", BASE_13B, _CORRUPT, 0, "a corrupt GPU; nobody was around, and nothing named the node"),
    ("13B, 2021-08-12, next job", BASE_13B, _CORRUPT, 1, "it got the same node and crashed at once"),
    ("BLOOM, 2022-03-21", BLOOM, "2022-03-21", 0, "a GPU crashed; 7.3 h of work lost"),
)
"""When, diary, heading, which of its quoted blocks, and what people say of it."""


def quote_rows() -> Rows:
    """Return a row a crash of which lines are quoted: from the log of one node, and from one that names none."""
    found: Rows = [("when", "what people say", "lines read as", "with the node in the log", "without")]
    for date, diary, heading, block, words in QUOTES:
        lines = quoted(diary, heading, block=block)
        told = tell_quoted(lines, node=NODE)
        read = ", ".join(f"{name} {count}" for name, count in sorted(told.signatures.items()) if name != "-")
        found.append((date, words, read, *(_short(tell_quoted(lines, node=node)) for node in (NODE, None))))
    return found


def tell_quoted(lines: Sequence[str], *, node: NodeName | None) -> Told:
    """Return what comes of the quoted output of a job on two nodes; `node` is the one whose log file it is."""
    raw = (RawLine(text=text, position=f"{number:04d}", job=str(JOB)) for number, text in enumerate(lines, start=1))
    tables = tabulate(raw, source="diary", at=ARRIVED_AT, writer=Writer.JOB, node=node).tables
    return tell_tables(tables, nodes=(NODE, NodeName("n2")))


def _short(told: Told) -> str:
    said = [f"{culprit}, {action} ({sure})" for _, culprit, action, sure in _sayings(told.incidents)]
    return "; ".join(said) if told.incidents else "no incident"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.0f} s"


# -- Traces of slowed workers --


def judge_trial(trial: str) -> TraceVerdict:
    """Return what we say of one of ByteDance's traces."""
    return judge_ranks(read_rank_times(pq.read_table(STRAGGLERS / f"trace-{trial}.parquet")))


def straggler_rows() -> Rows:
    """Return a row a trace: what was done to the job, what we say, and what the authors' own analysis finds."""
    found: Rows = [("trace", "ranks, steps", "what was done", "what we say", "the authors' analysis")]
    for trial, cause in TRIALS.items():
        times = read_rank_times(pq.read_table(STRAGGLERS / f"trace-{trial}.parquet"))
        theirs = json.loads((STRAGGLERS / f"result-{trial}.json").read_text(encoding="utf-8"))
        worker = json.loads((STRAGGLERS / f"mw-{trial}.json").read_text(encoding="utf-8"))["Mw"]
        stage = json.loads((STRAGGLERS / f"ms-{trial}.json").read_text(encoding="utf-8"))["Ms"]
        by_rank, by_stage = _worst(theirs, "dp_rank"), _worst(theirs, "stage")
        found.append(
            (
                trial,
                f"{len(times.ranks)}, {len(times.steps)}",
                cause,
                judge_trial(trial).explanation,
                f"slowed {theirs['blocking_slowdown']:.2f} times; worst replica {by_rank}, worst stage {by_stage}; "
                f"the slowest workers explain {worker:.0%}, the last stage {max(0.0, stage):.0%}",
            )
        )
    return found


def _worst(theirs: Mapping[str, Mapping[str, float]], name: str) -> str:
    values = theirs[f"blocking_decompose_by_{name}"]
    key = max(values, key=lambda each: values[each])
    return f"{key} ({values[key]:.2f})"


TABLES: Mapping[str, Callable[[], Rows]] = {
    "Incidents pasted into public issues": pasted_rows,
    "Recorded logs of gpud's tests": file_rows,
    "Symptoms that diaries describe": symptom_rows,
    "Spikes of the loss": spike_rows,
    "Crashes with quoted log lines": quote_rows,
    "Traces of slowed trainings": straggler_rows,
}


def table_lines(rows: Rows) -> list[str]:
    """Return rows as a table in Markdown."""
    heading, *body = ("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows)
    return [heading, "| " + " | ".join("---" for _ in rows[0]) + " |", *body]


def with_tables(text: str, tables: Mapping[str, list[str]]) -> str:
    """Return a document with the table of each section replaced; raises KeyError for a section that it has not."""
    head, *parts = text.split("\n## ")
    by_title = {part.split("\n", 1)[0]: part for part in parts}
    for title, lines in tables.items():
        old = [line for line in by_title[title].splitlines() if line.startswith("|")]
        by_title[title] = by_title[title].replace("\n".join(old), "\n".join(lines))
    return "\n## ".join([head, *by_title.values()])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or put them into the docs; return 1 if the data is not there, else 0."""
    parser = argparse.ArgumentParser(description="What we would have stated in real cases.")
    parser.add_argument("--write-docs", action="store_true", help=f"put the tables into {DOCS.name} instead")
    options = parser.parse_args(arguments)
    if not DATA.is_dir():
        sys.stderr.write(f"{DATA} is not here\n")
        return 1
    tables = {title: table_lines(rows()) for title, rows in TABLES.items()}
    if options.write_docs:
        DOCS.write_text(with_tables(DOCS.read_text(encoding="utf-8"), tables), encoding="utf-8")
        return 0
    for title, lines in tables.items():
        sys.stdout.write("\n".join([f"## {title}", "", *lines, "", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
