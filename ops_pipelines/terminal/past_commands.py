"""Commands that compute the past again: `ops-pipelines prove` a plan, and `diagnose` a moment of what was recorded.

Both only read: a plan is proved from the snapshot that it was made from, a moment is diagnosed from the lake. What was
believed and done then is `incidents` and `explain`.
"""

import json as documents
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from ops_pipelines.terminal.edge import (
    DEFAULT_CLUSTER_FILE,
    AsJson,
    ClusterFile,
    ExitCode,
    at_the_edge,
    complain,
    end_with,
    open_named,
    print_answer,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ops_pipelines.core.cluster import Cluster
    from ops_pipelines.core.identity import PlanId
    from ops_pipelines.core.plan import BlastRadius, IncidentPlan, Snapshot
    from ops_pipelines.resources.config.cluster_config import ClusterConfig
    from ops_pipelines.resources.lake.parquet_lake import ParquetLake
    from ops_pipelines.terminal.explain import DiagnosedTime

_ENTRIES_AT_ONCE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailView:
    """One guardrail: what it is judged on, its limit here, and what it says of the plan's acts as of then."""

    guardrail: str
    judged_on: str
    limit: str
    says: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofView:
    """Answer of `prove --json`."""

    cluster: str
    plan: str
    incident: str
    taken_at: datetime
    """Of the snapshot."""
    is_stored: bool
    """False: the plan was made by a version that kept no proof, or touches nothing."""
    holds: bool
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    proof: dict[str, object]
    guardrails: tuple[GuardrailView, ...]


@at_the_edge
def prove(
    ctx: typer.Context,
    plan: Annotated[str, typer.Argument(help="Such as PLAN-0123456789ab; `incidents` and `show` name them.")],
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: AsJson = False,
) -> None:
    """Prove a plan again: what it touches, what stays healthy, and whether its stored proof holds as of then.

    Everything is computed from the snapshot that the plan was made from, so that the answer is the same years later.
    Ends with 1 if the proof does not hold, or none was stored with a plan that touches the cluster.

    \b
    JSON: cluster, plan, incident, taken_at, is_stored, holds, problems [text], notes [text], proof {jobs [job, account,
    gpu_count, lost_gpu_hours or null, is_interrupted], teams [text], lost_gpu_hours, unknown_loss_count, remaining
    [kind, name, total_count, out_before_count, out_after_count, limit], violations [text]}, guardrails [guardrail,
    judged_on, limit, says [text]].
    """
    from ops_pipelines.core.identity import PlanId
    from ops_pipelines.remediate.by_hand import ByHandRefused
    from ops_pipelines.remediate.decide import prove_again
    from ops_pipelines.report.document import to_json
    from ops_pipelines.report.terminal import console

    cluster = open_named(ctx, cluster_file)
    known = cluster.ledger.plan(PlanId(plan))
    if known is None:
        raise ByHandRefused(f"there is no plan {plan}; `ops-pipelines incidents` lists what waits")
    snapshot = find_snapshot(known, cluster)
    if snapshot is None:
        raise ByHandRefused(f"the ledger does not say from which snapshot {plan} was made; nothing can be proven")
    proof = prove_again(known, snapshot, cluster.rules)
    view = view_proof(known, snapshot, proof, cluster)
    if json:
        typer.echo(to_json(view))
    else:
        print_proof(console(), view, proof)
    for problem in view.problems:
        complain(problem)
    if not view.holds:
        raise typer.Exit(ExitCode.UNEXPECTED)


def find_snapshot(plan: "IncidentPlan", cluster: "Cluster") -> "Snapshot | None":
    """Return the snapshot that a plan was made from: that of the decision before the plan's own line."""
    from ops_pipelines.core.entries import EntryKind
    from ops_pipelines.core.identity import Digest

    seq = _line_of(plan.plan, plan, cluster)
    while seq is not None and seq > 0:
        after = max(0, seq - _ENTRIES_AT_ONCE)
        for entry in reversed(cluster.ledger.entries(after=after, limit=seq - after)):
            if entry.kind is EntryKind.DECISION:
                return cluster.ledger.load_snapshot(Digest(str(documents.loads(entry.body)["inputs"])))
        seq = after
    return None


def _line_of(name: "PlanId", plan: "IncidentPlan", cluster: "Cluster") -> int | None:
    from ops_pipelines.core.entries import EntryKind
    from ops_pipelines.terminal.outlook import entries_of

    incident = cluster.ledger.incident(plan.incident)
    if incident is None:
        return None
    for entry in entries_of(incident, cluster.ledger):
        if entry.kind is EntryKind.PLAN and documents.loads(entry.body)["plan"] == name:
            return entry.seq
    return None


def view_proof(plan: "IncidentPlan", snapshot: "Snapshot", proof: "BlastRadius", cluster: "Cluster") -> ProofView:
    """Return what is shown of a proof that was computed again."""
    from ops_pipelines.remediate.decide import re_prove
    from ops_pipelines.remediate.plan_proof import PROOFS

    rules = cluster.rules
    problems = list(re_prove(plan, snapshot, rules))
    for _, find_contradictions in PROOFS.values():
        problems += [each for each in find_contradictions((plan,), snapshot, rules) if each not in problems]
    is_same = snapshot.rules_digest == cluster.rules_digest
    changed = "policy.yaml, cluster.yaml or the catalogue have changed since: what is shown is by the present ones"
    return ProofView(
        cluster=cluster.name,
        plan=plan.plan,
        incident=plan.incident,
        taken_at=snapshot.taken_at,
        is_stored=plan.proof is not None,
        holds=not problems,
        problems=tuple(problems),
        notes=() if is_same else (changed,),
        proof=asdict(proof),
        guardrails=_view_guardrails(plan, snapshot, cluster),
    )


def _view_guardrails(plan: "IncidentPlan", snapshot: "Snapshot", cluster: "Cluster") -> tuple[GuardrailView, ...]:
    """Return each guardrail with what it stated, as of then, of the plan's acts, had somebody approved it."""
    from ops_pipelines.core.proof import Authority
    from ops_pipelines.remediate.decide import facts_behind
    from ops_pipelines.remediate.guardrails.judge import judge, read_rulebook
    from ops_pipelines.remediate.verbs import explain_action

    rules = cluster.rules
    facts = facts_behind(plan, snapshot, rules)
    says: dict[str, list[str]] = {}
    for action in plan.actions:
        refusal = judge(action, facts, policy=rules.policy, topology=rules.topology, authority=Authority.APPROVED_PLAN)
        if refusal is not None:
            # A later step is judged again when its turn comes: here it is judged as if it were the next.
            said = f"{explain_action(action)}, had it been the next step: {refusal.reason}"
            says.setdefault(refusal.guardrail, []).append(said)
    return tuple(
        GuardrailView(
            guardrail=each.guardrail,
            judged_on=each.judged_on,
            limit=each.limit,
            says=tuple(says.get(each.guardrail, ())),
        )
        for each in read_rulebook(rules.policy)
    )


def print_proof(out: "Console", view: ProofView, proof: "BlastRadius") -> None:
    """Print the verdict first, then what is touched, what remains, and every guardrail."""
    from rich.table import Table
    from rich.text import Text

    from ops_pipelines.report.numbers import moment
    from ops_pipelines.report.terminal import print_fields, print_lines, printable

    verdict = "the proof holds" if view.holds else "THE PROOF DOES NOT HOLD; why is on standard error"
    if not view.is_stored and not view.holds:
        verdict = "no proof was stored with it; what is shown here was computed now"
    out.print(Text(f"{printable(view.plan)} for {printable(view.incident)}: {verdict}", style="bold"))
    unknown = f", and {proof.unknown_loss_count} job(s) of unknown loss" if proof.unknown_loss_count else ""
    print_fields(
        out,
        {
            "as of": moment(view.taken_at),
            "expected loss": f"{proof.lost_gpu_hours:.2f} GPU-hours{unknown}",
            "teams": "; ".join(proof.teams) or "none",
        },
    )
    print_lines(out, [f"note: {note}" for note in view.notes])
    jobs = Table(title="Jobs", title_justify="left", box=None)
    for name in ("job", "account", "GPUs", "what happens", "expected loss"):
        jobs.add_column(name, overflow="fold")
    for job in proof.jobs:
        loss = "unknown" if job.lost_gpu_hours is None else f"{job.lost_gpu_hours:.2f} GPU-hours"
        what = "interrupted" if job.is_interrupted else "waited for"
        row = (job.job, job.account, str(job.gpu_count), what, loss if job.is_interrupted else "none")
        jobs.add_row(*(Text(printable(cell)) for cell in row))
    if proof.jobs:
        out.print(jobs)
    parts = Table(title="What stays in service", title_justify="left", box=None)
    for name in ("part", "in service before", "after", "limit"):
        parts.add_column(name, overflow="fold")
    for part in proof.remaining:
        before = f"{part.total_count - part.out_before_count} of {part.total_count}"
        cells = (
            f"{part.kind.replace('_', ' ')} {part.name}".strip(),
            before,
            str(part.total_count - part.out_after_count),
            part.limit or "none",
        )
        parts.add_row(*(Text(printable(cell)) for cell in cells))
    if proof.remaining:
        out.print(parts)
    rules = Table(title="Guardrails, as of then", title_justify="left", box=None)
    for name in ("guardrail", "judged on", "limit", "says"):
        rules.add_column(name, overflow="fold")
    for rule in view.guardrails:
        said = "; ".join(rule.says) or "passes"
        rules.add_row(*(Text(printable(cell)) for cell in (rule.guardrail, rule.judged_on, rule.limit, said)))
    out.print(rules)


NOW = "now"
_LONGEST_BACK_MINUTES = 7 * 24 * 60
"""A day of a large cluster is read in minutes; anyone who wants more asks the lake in SQL."""


class NoSuchTime(ValueError):
    """The time cannot be diagnosed. The message says why, and what to give instead."""


@at_the_edge
def diagnose(
    from_lake: Annotated[
        bool, typer.Option("--from-lake", help="Read what the lake recorded: the one source so far, so always given.")
    ] = False,
    at: Annotated[
        str, typer.Option(metavar="TIME", help="The moment: ISO 8601, UTC where it names no zone; or `now`.")
    ] = NOW,
    back: Annotated[
        int,
        typer.Option(metavar="MINUTES", min=1, max=_LONGEST_BACK_MINUTES, help="How long before it to begin."),
    ] = 60,
    cluster_file: ClusterFile = DEFAULT_CLUSTER_FILE,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Say what was wrong at a time, by what was recorded until then.

    The rules are those of the live loop. Nothing is asked but the lake, and nothing is written. Incidents are named
    PAST-1 and so on, as they are found again each time; what was done about them is in the ledger: `incidents --all`.
    What the lake does not hold is stated. Ends with 3 where it holds no sample at all of that time.

    \b
    JSON: cluster, since, at, incidents [incident, state, nodes, victims, began_at, closed_at, diagnosis (as in
    `incidents`), sightings (as in `explain`)], gaps [text], problems [text].
    """
    from ops_pipelines.clock import SystemClock
    from ops_pipelines.resources.config.cluster_file import read_cluster
    from ops_pipelines.terminal.explain import diagnosed_document, diagnosed_json

    if not from_lake:
        complain("say --from-lake: it reads what was recorded. What is wrong now, `incidents` and `explain` tell")
        raise typer.Exit(ExitCode.USAGE)
    try:
        now = SystemClock().now()
        found = look_back(
            read_cluster(cluster_file.absolute()), at=parse_time(at, now=now), back=timedelta(minutes=back), now=now
        )
    except NoSuchTime as problem:
        complain(str(problem))
        raise typer.Exit(ExitCode.USAGE) from problem
    print_answer(lambda: diagnosed_json(found), lambda: diagnosed_document(found), as_json=json)
    end_with(found.problems)


def parse_time(text: str, *, now: datetime) -> datetime:
    """Return the time that a person gave, in UTC. Raises NoSuchTime."""
    if text.strip().lower() == NOW:
        return now
    try:
        time = datetime.fromisoformat(text.strip())
        # A zone may carry the first or the last day of the calendar beyond it.
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError) as problem:
        raise NoSuchTime(
            f"{text!r} is no time; expected ISO 8601, such as {now:%Y-%m-%dT%H:%M} (UTC) or "
            f"{now:%Y-%m-%dT%H:%M}+02:00, or `now`"
        ) from problem


def look_back(config: "ClusterConfig", *, at: datetime, back: timedelta, now: datetime) -> "DiagnosedTime":
    """Return what the lake of `config` shows of [at - back, at]. Raises NoSuchTime, LakeError, PolicyError."""
    from ops_pipelines.review.retrace import find_past_incidents
    from ops_pipelines.terminal.explain import DiagnosedTime
    from ops_pipelines.wiring import open_lake, read_rules

    if at > now:
        raise NoSuchTime(f"{at:%Y-%m-%d %H:%M:%S} UTC is in the future: it is {now:%Y-%m-%d %H:%M:%S} UTC")
    rules = read_rules(config)
    lake = open_lake(config)
    first = _first_hour(lake)
    if first is None:
        raise NoSuchTime(f"the lake {config.lake.url} is empty: nothing was recorded yet")
    if at < first:
        raise NoSuchTime(
            f"{at:%Y-%m-%d %H:%M} UTC is before the first hour of the lake {config.lake.url}, {first:%Y-%m-%d %H:%M}; "
            "`ops-pipelines telemetry tables` shows what it holds"
        )
    found = find_past_incidents(
        lake,
        at=at,
        back=back,
        rules=rules,
        release=config.release,
        step_seconds=int(config.lake.step.total_seconds()),
    )
    return DiagnosedTime(
        cluster=config.name,
        since=found.start,
        at=found.end,
        incidents=tuple(found.incidents),
        gaps=found.gaps,
        problems=("no sample of this time is recorded: nobody knows how the cluster was",) if found.is_blind else (),
    )


def _first_hour(lake: "ParquetLake") -> datetime | None:
    from ops_pipelines.lake.schema import TELEMETRY_TABLES

    hours = [hour for table in (*TELEMETRY_TABLES, "kernel_events", "job_logs") for hour in lake.hours(table)[:1]]
    return min(hours, default=None)
