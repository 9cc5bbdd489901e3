"""Diagnosis measured on replayed days with known truth, beside its peers; exits 1 where a promise is not kept.

A positive is one incident that names the culprit (its node, or a part of it; for faults of no node the switch, rack,
feed, store or job itself) inside [onset, end + 10 min]. Every other incident that was raised is a false positive: one
that blames a node for a fault whose truth is no node, a victim, a second incident of the same fault, a pause. Notices
to owners about errors of their own programs are no verdict on the cluster; they are counted apart.

Run it with `make bench`, or `python -m bench.diagnosis`. Seeds from 1000 on were never looked at while tuning.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from bench import diagnosis_peers
from bench.claims import Claim
from bench.replayed_days import WatchedRetrace, retrace_day
from ops_pipelines.core.fault import ComponentKind, Family
from ops_pipelines.core.finding import REPAIRS, Response
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.observation import Signal
from ops_pipelines.resources.catalogue_files import read_catalogue
from ops_pipelines_lab.simulator.replay.day import Day, FaultClass, Truth
from ops_pipelines_lab.simulator.replay.make import make_day, make_quiet_day

HELD_OUT_FROM = 1000
_CATALOGUE = Path(__file__).parent.parent / "ops_pipelines" / "catalogue"
CONFUSION_FILE = _CATALOGUE / "diagnosis_confusion.csv"
DELAYS_FILE = _CATALOGUE / "diagnosis_delays.csv"
CASES_FILE = _CATALOGUE / "diagnosis_cases.csv"
FALSE_ALARMS_FILE = _CATALOGUE / "diagnosis_false_alarms.csv"
_QUANTILES = tuple(range(0, 101, 5))
"""Percent: each delay of the simulation is drawn between two of them."""
GRACE = timedelta(minutes=10)
FIELD_FAULTS_PER_1000_NODE_DAYS = 6.5
"""Meta RSC-1 (arXiv 2410.21680)."""
PROMISED_PRECISION, PROMISED_RECALL, PROMISED_CULPRITS = 0.99, 0.95, 0.95
PROMISED_FALSE_PER_1000_NODE_DAYS = 0.3
PROMISED_EXPLICIT_SECONDS = 20.0
"""One sample of 15 s and one tick of 5 s."""
PROMISED_HANG_SECONDS = 120.0
GPUS_OF_A_LARGE_CLUSTER = 16_000
EXPLICIT = frozenset(
    {
        FaultClass.GPU_OFF_BUS,
        FaultClass.MEMORY_UNCORRECTABLE,
        FaultClass.MEMORY_CONTAINED,
        FaultClass.GSP_TIMEOUT,
        FaultClass.NVLINK_FAULT,
        FaultClass.NVSWITCH_FAULT,
        FaultClass.HOST_MEMORY,
        FaultClass.LEAF_SWITCH,
    }
)
"""Faults that say so themselves, by a line or a state."""
HANGS = frozenset({FaultClass.HANG_ONE_RANK, FaultClass.HANG_OF_PROGRAM})
NODE_KINDS = frozenset({ComponentKind.GPU, ComponentKind.LINK, ComponentKind.DISK, ComponentKind.NODE})
_NAMED_BY_CODE = frozenset({Signal.XID, Signal.SXID})
"""Their rules bear the code in their name."""
_OWNERS_OWN = frozenset({Family.APPLICATION, Family.NORMAL})


@dataclass(slots=True, kw_only=True)
class Score:
    """Sums over days; adding two adds everything."""

    days: int = 0
    node_days: float = 0.0
    gpu_days: float = 0.0
    injected: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    named: Counter[str] = field(default_factory=Counter)
    """Of those that any incident was about: the ones whose culprit was named."""
    about: Counter[str] = field(default_factory=Counter)
    exact: Counter[str] = field(default_factory=Counter)
    """The very part, not only its node."""
    delays: dict[str, list[float]] = field(default_factory=dict)
    claims: int = 0
    true_claims: int = 0
    false_claims: Counter[str] = field(default_factory=Counter)
    """What the false ones reported."""
    false_on_nodes: int = 0
    wrong_isolations: int = 0
    """Of those: the ones that would have taken the node out of service."""
    notices: int = 0
    confusion: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """(class, what the incident reported, whether it named the culprit) for each injected fault."""
    cases: list[tuple[str, str, bool, float, str]] = field(default_factory=list)
    """(class, what the incident reported, whether it named the culprit, seconds from the onset, what it rested on)."""
    false_isolations: Counter[str] = field(default_factory=Counter)
    """What the false ones stated that would have taken a node out of service."""
    notes: list[str] = field(default_factory=list)
    """One line for each miss and each false claim."""

    def add(self, other: "Score") -> None:
        for name in (
            "days",
            "node_days",
            "gpu_days",
            "claims",
            "true_claims",
            "false_on_nodes",
            "wrong_isolations",
            "notices",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("injected", "found", "named", "about", "exact", "false_claims", "confusion", "false_isolations"):
            getattr(self, name).update(getattr(other, name))
        for name, seconds in other.delays.items():
            self.delays.setdefault(name, []).extend(seconds)
        self.notes += other.notes
        self.cases += other.cases

    @property
    def precision(self) -> float:
        return self.true_claims / self.claims if self.claims else 1.0

    @property
    def recall(self) -> float:
        return self.found.total() / self.injected.total() if self.injected else 1.0

    @property
    def culprits_named(self) -> float:
        return self.named.total() / self.about.total() if self.about else 1.0

    @property
    def false_per_1000_node_days(self) -> float:
        return 1000 * self.false_on_nodes / self.node_days if self.node_days else 0.0


def claims_of(retrace: WatchedRetrace) -> list[Claim]:
    """Return what was raised in the end: merged incidents are part of another, watched ones troubled nobody."""
    verdicts = {rule.signature for rule in read_catalogue().signatures.values() if rule.category == "numerical_anomaly"}
    incidents = list(retrace.incidents.values())
    raised_at = retrace.raised_at
    merged_into: dict[str, datetime] = {}
    for incident in incidents:
        if incident.state is IncidentState.MERGED:
            into = incident.note.rsplit(" ", 1)[-1]
            told_at = raised_at.get(incident.incident)
            if told_at is not None:
                merged_into[into] = min(merged_into.get(into, told_at), told_at)
    found = []
    for incident in incidents:
        hypothesis = incident.hypothesis
        if incident.state is IncidentState.MERGED or incident.response is Response.MONITOR or hypothesis is None:
            continue
        is_notice = (
            incident.response is Response.NOTIFY_OWNER
            and hypothesis.family in _OWNERS_OWN
            and not any(finding.is_lasting or finding.rule in verdicts for finding in incident.findings)
        )
        opened_at = raised_at[incident.incident]
        opened_at = min(opened_at, merged_into.get(incident.incident, opened_at))
        found.append(
            Claim(
                name=incident.incident,
                opened_at=opened_at,
                rests_on=_ground_of(incident, retrace, opened_at=opened_at),
                culprits=hypothesis.culprits,
                says=_said(incident),
                is_notice=is_notice,
                isolates=incident.response in REPAIRS,
            )
        )
    return found


def _ground_of(incident: Incident, retrace: WatchedRetrace, *, opened_at: datetime) -> tuple[str, ...]:
    """Return what an incident came to rest on within ten minutes, each rule once; damage is left out."""
    seconds: dict[str, float] = {}
    for finding in incident.findings:
        if finding.is_secondary:
            continue
        rested_at = retrace.rested_at.get((incident.incident, finding.rule, finding.node), opened_at)
        after = max(0.0, (rested_at - opened_at).total_seconds())
        observation = finding.evidence[0]
        is_state = observation.code is not None and observation.signal not in _NAMED_BY_CODE
        token = f"{finding.rule}={observation.code}" if is_state else finding.rule
        if after <= GRACE.total_seconds():
            seconds[token] = min(after, seconds.get(token, after))
    return tuple(
        f"{token}@{after:.0f}" for token, after in sorted(seconds.items(), key=lambda each: (each[1], each[0]))
    )


def _said(incident: Incident) -> str:
    hypothesis = incident.hypothesis
    assert hypothesis is not None
    rules = Counter(finding.rule for finding in incident.findings if not finding.is_secondary)
    rule = rules.most_common(1)[0][0] if rules else "damage"
    kind = incident.suspect.kind.value if incident.suspect is not None else hypothesis.family.value
    return f"{kind}:{rule}"


def names(claim: Claim, truth: Truth) -> bool:
    """Return whether a claim's first culprit is the truth's, or a part of the same node."""
    if not claim.culprits:
        return False
    if truth.culprit.kind in NODE_KINDS:
        return any(part.node == truth.culprit.node for part in claim.culprits) and all(
            part.node == truth.culprit.node for part in claim.culprits
        )
    if truth.culprit.kind is ComponentKind.JOB:
        # A program that is submitted again after each failure has a new id each time: any of them names it.
        return any(
            part.kind is ComponentKind.JOB and part.name in truth.affected_jobs | {truth.culprit.name}
            for part in claim.culprits
        )
    return any(part.kind is truth.culprit.kind and part.name == truth.culprit.name for part in claim.culprits)


def is_about(claim: Claim, truth: Truth) -> bool:
    """Return whether a claim blames anything that the fault touched: its culprit, its victims, its jobs."""
    if names(claim, truth):
        return True
    nodes = truth.affected_nodes | ({truth.culprit.node} if truth.culprit.node is not None else set())
    return any(
        part.node in nodes or (part.kind is ComponentKind.JOB and part.name in truth.affected_jobs)
        for part in claim.culprits
    )


def judge(claims: Sequence[Claim], day: Day) -> Score:
    """Return how one day's claims stand against its truth."""
    hours = len(day.panel.times) * day.panel.step_seconds / 3600
    node_count = len(day.topology.places)
    score = Score(
        days=1,
        node_days=node_count * hours / 24,
        gpu_days=node_count * day.topology.gpus_per_node * hours / 24,
        notices=sum(claim.is_notice for claim in claims),
    )
    taken: dict[int, Claim] = {}
    used: set[str] = set()
    for number, truth in enumerate(day.truths):
        score.injected[truth.fault.value] += 1
        within = [
            claim for claim in claims if truth.onset <= claim.opened_at <= truth.end + GRACE and not claim.is_notice
        ]
        right = sorted(
            (claim for claim in within if names(claim, truth) and claim.name not in used),
            key=lambda each: each.opened_at,
        )
        about = [claim for claim in within if is_about(claim, truth)]
        if about:
            score.about[truth.fault.value] += 1
            score.named[truth.fault.value] += bool(right)
        if not right:
            said = sorted({claim.says for claim in about}) or ["nothing"]
            score.confusion[truth.fault.value, said[0], False] += 1
            if about:
                first = min(about, key=lambda each: each.opened_at)
                late = max(0.0, (first.opened_at - truth.onset).total_seconds())
                score.cases.append((truth.fault.value, said[0], False, late, " ".join(first.rests_on)))
            score.notes.append(
                f"seed {day.seed}: missed {truth.fault.value} of {truth.culprit} at {truth.onset:%H:%M:%S}: {said}"
            )
            continue
        claim = right[0]
        taken[number] = claim
        used.add(claim.name)
        score.found[truth.fault.value] += 1
        score.exact[truth.fault.value] += truth.culprit in claim.culprits
        score.confusion[truth.fault.value, claim.says, True] += 1
        began = truth.onset if truth.steps_began_at is None else max(truth.onset, truth.steps_began_at)
        late = max(0.0, (claim.opened_at - began).total_seconds())
        score.delays.setdefault(truth.fault.value, []).append(late)
        score.cases.append((truth.fault.value, claim.says, True, late, " ".join(claim.rests_on)))
    for claim in claims:
        if claim.name in used:
            score.claims += 1
            score.true_claims += 1
        elif not (claim.is_notice and all(part.kind is ComponentKind.JOB for part in claim.culprits)):
            score.claims += 1
            score.false_claims[claim.says] += 1
            on_node = any(part.node is not None for part in claim.culprits)
            score.false_on_nodes += on_node
            score.wrong_isolations += on_node and claim.isolates
            score.false_isolations[claim.says] += on_node and claim.isolates
            blamed = ", ".join(map(str, claim.culprits)) or "nobody"
            near = [
                truth.fault.value
                for truth in day.truths
                if truth.onset - GRACE <= claim.opened_at <= truth.end + GRACE and is_about(claim, truth)
            ]
            score.notes.append(
                f"seed {day.seed}: false {claim.says} blames {blamed} at {claim.opened_at:%H:%M:%S}, "
                f"near {near or 'no fault'}"
            )
    return score


def run_seed(seed: int, is_quiet: bool, node_count: int, hours: float) -> dict[str, Score]:
    """Return the scores of one day: ours and each peer's."""
    make = make_quiet_day if is_quiet else make_day
    day = make(seed, node_count=node_count, hours=hours)
    ours = retrace_day(day, read_catalogue())
    found = {"ops_pipelines": judge(claims_of(ours), day)}
    for name, peer in diagnosis_peers.PEERS.items():
        found[name] = judge(peer(day), day)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 1 if a promise is not kept, else 0."""
    parser = argparse.ArgumentParser(description="Diagnosis on replayed days, beside its peers.")
    parser.add_argument("--seed", type=int, default=HELD_OUT_FROM, help="first seed; those below 1000 are for tuning")
    parser.add_argument("--runs", type=int, default=30, help="days with faults")
    parser.add_argument("--quiet-runs", type=int, default=24, help="days with negatives only")
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--notes", action="store_true", help="print every miss and false claim")
    parser.add_argument("--write", action="store_true", help="store the confusion table for the what-if simulation")
    options = parser.parse_args(arguments)
    console = Console()
    faulty = _run(range(options.seed, options.seed + options.runs), False, options, console)
    quiet_seeds = range(options.seed + 500, options.seed + 500 + options.quiet_runs)
    quiet = _run(quiet_seeds, True, options, console)
    ours = faulty["ops_pipelines"]
    _print_classes(ours, console)
    _print_peers(faulty, quiet, console)
    _print_confusion(ours, console)
    broken = _judge_promises(ours, quiet.get("ops_pipelines", Score()), console)
    if options.notes:
        for note in (*ours.notes, *quiet.get("ops_pipelines", Score()).notes):
            console.print(note, soft_wrap=True, markup=False, highlight=False)
    if options.write:
        _write(ours)
    return 1 if broken else 0


def _run(seeds: range, is_quiet: bool, options: argparse.Namespace, console: Console) -> dict[str, Score]:
    sums: dict[str, Score] = {}
    if not seeds:
        return sums
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        jobs = [pool.submit(run_seed, seed, is_quiet, options.nodes, options.hours) for seed in seeds]
        for seed, job in zip(seeds, jobs, strict=True):
            for name, score in job.result().items():
                sums.setdefault(name, Score()).add(score)
            ours = sums["ops_pipelines"]
            console.print(
                f"seed {seed}: so far precision {ours.precision:.4f}, recall {ours.recall:.4f}", highlight=False
            )
    return sums


def _print_classes(score: Score, console: Console) -> None:
    table = Table(title=f"{score.injected.total()} faults on {score.days} days, {score.node_days:,.0f} node-days")
    for heading in ("fault", "injected", "found", "recall", "very part", "P50 s", "P95 s"):
        table.add_column(heading, justify="left" if heading == "fault" else "right")
    for name, count in sorted(score.injected.items()):
        delays = score.delays.get(name, [])
        fifty, ninety_five = (f"{np.percentile(delays, part):.0f}" if delays else "" for part in (50, 95))
        found = score.found[name]
        exact = f"{score.exact[name] / found:.0%}" if found else ""
        table.add_row(name, str(count), str(found), f"{found / count:.3f}", exact, fifty, ninety_five)
    console.print(table)


def _print_peers(faulty: dict[str, Score], quiet: dict[str, Score], console: Console) -> None:
    table = Table(title="beside its peers, on the same days")
    for heading in (
        "method",
        "precision",
        "recall",
        "culprit named",
        "false node incidents / 1,000 node-days",
        "on quiet days",
    ):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for name, score in faulty.items():
        table.add_row(
            name,
            f"{score.precision:.3f}",
            f"{score.recall:.3f}",
            f"{score.culprits_named:.3f}",
            f"{score.false_per_1000_node_days:.2f}",
            str(quiet[name].false_on_nodes) if name in quiet else "",
        )
    console.print(table)
    console.print("Minder as published: precision .904, recall .883 (arXiv 2411.01791)", highlight=False)


def _print_confusion(score: Score, console: Console) -> None:
    table = Table(title="what each class was taken for")
    for heading in ("fault", "taken for", "times"):
        table.add_column(heading)
    for (fault, said, _), count in sorted(score.confusion.items(), key=lambda item: (item[0][0], -item[1])):
        table.add_row(fault, said, str(count))
    console.print(table)


def rescaled_precision(score: Score) -> float:
    """Return the precision at the field's rate of faults: the same recall, the same false incidents a node-day."""
    true = FIELD_FAULTS_PER_1000_NODE_DAYS * score.recall
    false = score.false_per_1000_node_days
    return true / (true + false) if true + false else 1.0


def upper_95(count: int, exposure: float) -> float:
    """Return the exact upper 95 % bound (one-sided) of a Poisson rate, by bisection."""
    low, high = 0.0, count + 10.0 * (count + 3.0) ** 0.5 + 10.0
    for _ in range(200):
        middle = (low + high) / 2
        term, total = np.exp(-middle), 0.0
        for number in range(count + 1):
            total += term
            term *= middle / (number + 1)
        low, high = (middle, high) if total > 0.05 else (low, middle)
    return high / exposure if exposure else float("inf")


def _judge_promises(score: Score, quiet: Score, console: Console) -> list[str]:
    explicit = [each for name in EXPLICIT for each in score.delays.get(name.value, [])]
    hangs = [each for name in HANGS for each in score.delays.get(name.value, [])]
    rows: list[tuple[str, float, str, float, bool]] = [
        ("precision", score.precision, ">=", PROMISED_PRECISION, score.precision >= PROMISED_PRECISION),
        ("recall", score.recall, ">=", PROMISED_RECALL, score.recall >= PROMISED_RECALL),
        ("culprit named", score.culprits_named, ">=", PROMISED_CULPRITS, score.culprits_named >= PROMISED_CULPRITS),
    ]
    false = score.false_per_1000_node_days
    rows.append(
        (
            "false node incidents per 1,000 node-days",
            false,
            "<=",
            PROMISED_FALSE_PER_1000_NODE_DAYS,
            false <= PROMISED_FALSE_PER_1000_NODE_DAYS,
        )
    )
    for name, delays, limit in (
        ("explicit faults, P95 s", explicit, PROMISED_EXPLICIT_SECONDS),
        ("hangs, P95 s", hangs, PROMISED_HANG_SECONDS),
    ):
        worst = float(np.percentile(delays, 95)) if delays else float("nan")
        rows.append((name, worst, "<=", limit, worst <= limit))
    rows.append(("wrong isolations on quiet days", quiet.wrong_isolations, "<=", 0, quiet.wrong_isolations == 0))
    table = Table(title="promises")
    for heading in ("what", "measured", "promised", "kept"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for name, value, sign, promise, is_kept in rows:
        table.add_row(name, f"{value:.3f}", f"{sign} {promise:g}", "yes" if is_kept else "NO")
    console.print(table)
    bound = upper_95(quiet.false_on_nodes, quiet.gpu_days) * GPUS_OF_A_LARGE_CLUSTER
    console.print(
        f"precision at the field's {FIELD_FAULTS_PER_1000_NODE_DAYS} faults per 1,000 node-days: "
        f"{rescaled_precision(score):.4f}\n"
        f"quiet days: {quiet.wrong_isolations} wrong isolations, {quiet.false_on_nodes} wrong incidents on nodes "
        f"in {quiet.gpu_days:,.0f} GPU-days; upper 95 % bound of wrong incidents at "
        f"{GPUS_OF_A_LARGE_CLUSTER:,} GPUs: {bound:.2f} a day\n"
        f"notices to owners of programs that failed by themselves: {score.notices}",
        highlight=False,
    )
    return [name for name, _, _, _, is_kept in rows if not is_kept]


def _write(score: Score) -> None:
    confusion = [
        (fault, said, "yes" if is_named else "no", count)
        for (fault, said, is_named), count in sorted(score.confusion.items())
    ]
    _write_table(CONFUSION_FILE, ("fault", "taken_for", "culprit_named", "count"), confusion)
    cases = [
        (fault, said, "yes" if is_named else "no", f"{late:.1f}", ground)
        for fault, said, is_named, late, ground in sorted(score.cases)
    ]
    _write_table(CASES_FILE, ("fault", "taken_for", "culprit_named", "seconds", "evidence"), cases)
    heads = tuple(f"p{percent}_seconds" for percent in _QUANTILES)
    delays = [
        (fault, len(seconds), *(f"{each:.1f}" for each in np.percentile(seconds, _QUANTILES)))
        for fault, seconds in sorted(score.delays.items())
    ]
    _write_table(DELAYS_FILE, ("fault", "count", *heads), delays)
    alarms = [
        (said, count, score.false_isolations[said], f"{score.node_days:.0f}")
        for said, count in sorted(score.false_claims.items())
    ]
    _write_table(FALSE_ALARMS_FILE, ("taken_for", "count", "isolates_node_count", "node_days"), alarms)


def _write_table(path: Path, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(heads)
        writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
