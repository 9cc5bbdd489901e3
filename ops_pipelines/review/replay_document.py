"""Two policies side by side over recorded history, as a document: attached to every proposal of a policy.

Shows what `replay` found; decides nothing.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime

from ops_pipelines.core.action import Verb
from ops_pipelines.core.identity import listed
from ops_pipelines.report import document as doc
from ops_pipelines.report.charts import Mark, policy_columns
from ops_pipelines.report.document import Mood, Number, Shade, code, soft, strong
from ops_pipelines.report.numbers import counted, moment
from ops_pipelines.review.replay import differing, proof_sentence, sentences_of
from ops_pipelines.review.replay_result import Assessment, ComparedAct, Difference, Replay, ReplayedInterval

ROWS_AT_MOST = 300
"""More rows than this nobody reads; `replay --json` has them all."""
_DIFFERENCES: Mapping[Difference, tuple[str, Mood, Shade]] = {
    Difference.SAME: ("same", Mood.SOFT, Shade.GREY),
    Difference.ONLY_THEN: ("no longer done", Mood.BAD, Shade.ORANGE),
    Difference.ONLY_NEW: ("new", Mood.GOOD, Shade.BLUE),
    Difference.OTHER_MOMENT: ("other moment", Mood.WARN, Shade.YELLOW),
}


def replay_document(found: Replay, *, now: datetime) -> doc.Document:
    """Return what a proposed policy would have done, beside what was done."""
    again = found.reproduction
    is_proven = not again.different and not again.unreadable_count
    return doc.Document(
        title=f"{found.proposed} beside the policy of then",
        cluster=found.cluster,
        about=f"recorded history from {moment(found.since)} to {moment(found.until)}",
        home="",
        now=now,
        blocks=doc.sections(
            doc.Numbers(numbers=_numbers(found)),
            doc.under(
                "What changes for whom",
                doc.Items(items=sentences_of(found), is_ordered=True),
                doc.Note(words=proof_sentence(found), mood=Mood.GOOD if is_proven else Mood.BAD),
                doc.Items(items=again.different) if again.different else None,
                _chart(found),
            ),
            doc.under(
                "Keys of policy.yaml that differ",
                doc.Table(
                    columns=doc.columns_of("Key|Then:words|New:words"),
                    rows=[(code(each.key), each.then, each.new) for each in found.policy_differences],
                    empty="None: the two policies say the same.",
                    at_most=ROWS_AT_MOST,
                ),
            ),
            _counts(found),
            _guardrails(found),
            _acts(found),
            _lessons(found),
            doc.under(
                "What this rests on",
                *(_interval(each) for each in found.stretches),
                doc.Items(items=found.cautions) if found.cautions else None,
                doc.Note(
                    words=(
                        soft(
                            "GPU-hours are what plans expected to lose when they were made, not what was measured. "
                            "The whole record: "
                        ),
                        code("ops-pipelines replay --json"),
                    )
                ),
            ),
        ),
    )


def _numbers(found: Replay) -> list[Number]:
    then, new = found.then, found.new
    changes = {
        "GPU-hours at stake": f"{then.lost_gpu_hours:.1f} → {new.lost_gpu_hours:.1f}",
        "pages": f"{then.page_count} → {new.page_count}",
    }
    return [
        *(Number(value=found.count(each), kind=doc.Kind.COUNT, about=words)
          for each, (words, *_) in _DIFFERENCES.items()),
        *(Number(value=words, about=name) for name, words in changes.items()),
    ]  # fmt: skip


def _chart(found: Replay) -> tuple[doc.Block, ...]:
    marks = [
        Mark(
            at=act.at, what=_DIFFERENCES[act.difference][0], shade=_DIFFERENCES[act.difference][2],
            is_above=act.plan_new is not None, is_below=act.plan_then is not None,
        )
        for act in found.acts
    ]  # fmt: skip
    if not marks:
        return ()
    title = "Acts over time: the proposed policy above the line, the policy of then below it"
    key = [doc.Swatch(what=words, step=shade) for words, _, shade in _DIFFERENCES.values()]
    svg = policy_columns(marks, since=found.since, until=found.until)
    return doc.Chart(title=title, svg=svg), doc.Legend(parts=(f"{title}.", *key))


def _counts(found: Replay) -> tuple[doc.Block, ...]:
    then, new = found.then, found.new
    rows: list[tuple[doc.Cell, ...]] = [
        ("acts started", then.act_count, new.act_count),
        ("of them on nodes and jobs", then.node_act_count, new.node_act_count),
        ("plans started", then.plan_count, new.plan_count),
        ("GPU-hours expected to be lost by them", f"{then.lost_gpu_hours:.2f}", f"{new.lost_gpu_hours:.2f}"),
        ("jobs of unknown loss", then.unknown_loss_count, new.unknown_loss_count),
        ("pages to people", then.page_count, new.page_count),
        ("messages to job owners", then.owner_message_count, new.owner_message_count),
        ("plans that ask for approval", then.approval_count, new.approval_count),
        ("false alarms acted on", then.false_count, new.false_count),
        ("real incidents missed", then.missed_count, new.missed_count),
    ]
    about = (
        "Decisions at which the new policy sees other incidents: "
        f"{found.understanding_difference_count}; at which it plans or holds back something else: "
        f"{found.plan_difference_count}. Not replayed, for they follow the course of things: {found.follow_up_count} "
        f"tests, returns, reminders and acts of plans made before, and {found.by_hand_count} acts of people."
    )
    table = doc.Table(columns=doc.columns_of("What|Then:count|New:count"), rows=rows)
    return doc.under("Counts", table, doc.Note(words=about, mood=Mood.SOFT))


def _guardrails(found: Replay) -> tuple[doc.Block, ...]:
    then, new, due = found.then.refusals, found.new.refusals, found.refused_when_due
    rows = [(name, then.get(name, 0), new.get(name, 0), due.get(name, 0)) for name in sorted({*then, *new, *due})]
    heads = "Guardrail:name|Incidents then:count|Incidents new:count|Acts refused when due:count"
    table = doc.Table(columns=doc.columns_of(heads), rows=rows)
    return doc.under("What the guardrails held back", table) if rows else ()


def _acts(found: Replay) -> tuple[doc.Block, ...]:
    heads = "When|Difference|Incident:words|Acts:words|Why:words|Done then|GPU-h:gpu_hours"
    return doc.under(
        "Acts that differ",
        doc.Table(
            columns=doc.columns_of(heads),
            rows=[_row(acts) for acts in _groups(differing(found))],
            at_most=ROWS_AT_MOST,
            more=(code("ops-pipelines replay --json"), " has all"),
        ),
    )


def _groups(acts: Sequence[ComparedAct]) -> list[Sequence[ComparedAct]]:
    """Return the acts of one plan that differ in the same way together: nobody reads nine rows about one node."""
    groups: dict[Hashable, list[ComparedAct]] = {}
    for act in acts:
        alike = (act.source, act.incident, act.at, act.difference, act.why, act.is_counterfactual)
        groups.setdefault(alike, []).append(act)
    return list(groups.values())


def _row(acts: Sequence[ComparedAct]) -> tuple[doc.Cell, ...]:
    first = acts[0]
    losses = [act.lost_gpu_hours for act in acts if act.lost_gpu_hours is not None]
    where = f" on {listed(sorted(first.nodes))}" if first.nodes else ""
    words, mood, _ = _DIFFERENCES[first.difference]
    mark = (doc.toned(" counterfactual", Mood.WARN),) if first.is_counterfactual else ()
    return (
        (moment(first.at), soft(f" from the {first.source.value}")),
        (strong(words, mood), *mark),
        (f"{first.incident}{where} ", soft(first.cause)),
        ", ".join(map(_act_words, acts)),
        first.why,
        _outcome(acts),
        f"{sum(losses):.2f}" if losses else None,
    )


def _act_words(act: ComparedAct) -> str:
    verb = act.verb.value.replace("_", " ")
    return verb if act.verb is Verb.PAGE_HUMAN else f"{verb} {act.target}"


def _outcome(acts: Sequence[ComparedAct]) -> str:
    outcomes = Counter("not started" if act.done_at is None else act.outcome or "under way" for act in acts)
    return ", ".join(word if len(acts) == 1 else f"{count} {word}" for word, count in sorted(outcomes.items()))


def _lessons(found: Replay) -> tuple[doc.Block, ...]:
    learned = [each for each in found.lessons if each.verdict is not Assessment.UNKNOWN]
    alike = Counter(each.how for each in found.lessons if each.verdict is Assessment.UNKNOWN)
    rows = [(each.incident, strong(each.verdict.value.replace("_", " ")), each.how) for each in learned]
    return doc.under(
        "What was learned later",
        doc.Table(
            columns=doc.columns_of("Incident:name|Verdict|How:words"),
            rows=rows,
            empty="" if alike else "There was no incident in the ledger.",
            at_most=ROWS_AT_MOST,
        ),
        [
            doc.Note(words=f"{counted(count, 'incident')}: {how}.", mood=Mood.SOFT)
            for how, count in sorted(alike.items(), key=lambda item: (-item[1], item[0]))
        ],
    )


def _interval(each: ReplayedInterval) -> tuple[doc.Block, ...]:
    lasted = f"{moment(each.since)} to {moment(each.until)}: {each.decision_count} decisions; then: {each.then}."
    return doc.sections(
        doc.Note(words=(strong(each.source.value), f", {lasted}")),
        doc.Items(items=each.unknown) if each.unknown else None,
    )
