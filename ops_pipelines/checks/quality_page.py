"""How people read the verdicts on an hour: one HTML page that needs nothing else, and tables for the Dagster UI.

Shows, judges nothing. Everything that comes from data is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ops_pipelines.checks.verdict import HourVerdict, Outcome, Verdict, counted
from ops_pipelines.lake.quality.expectations import Kind, Measure, Severity
from ops_pipelines.lake.schema import TABLES

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--dim:#5c6775;--line:#d9dee5;--back:#fff;--soft:#f4f6f8;
--error:#b3261e;--warning:#8a5a00;--good:#1b6e3c}
@media(prefers-color-scheme:dark){:root{--ink:#e8ecf1;--dim:#9aa6b4;--line:#39424e;--back:#14181d;--soft:#1d232a;
--error:#ff8a80;--warning:#ffc65c;--good:#7bd69b}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:1080px;margin:2rem auto;
padding:0 1.2rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}p{margin:.3rem 0;color:var(--dim)}
.verdict{border-left:.5rem solid var(--tone);background:var(--soft);padding:.9rem 1.2rem;margin:1.2rem 0}
.verdict b{font-size:1.3rem;color:var(--tone)}
.error{--tone:var(--error)}.warning{--tone:var(--warning)}.good{--tone:var(--good)}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th{text-align:left;color:var(--dim);font-weight:600}
th,td{padding:.35rem .7rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.mark{color:var(--tone);font-weight:600;white-space:nowrap}
code{font:.85em ui-monospace,monospace;overflow-wrap:anywhere}small{color:var(--dim)}
details{margin:.2rem 0}summary{cursor:pointer;padding:.25rem 0}
"""


def render_page(verdict: HourVerdict) -> str:
    """Return the page: the verdict, then what failed, then every column. No links, no scripts, nothing from outside."""
    errors, warnings = verdict.failed(Severity.ERROR), verdict.failed(Severity.WARNING)
    tone, word, told = _summary(len(errors), len(warnings))
    judged = sum(each.outcome is not Outcome.NOT_JUDGED for each in verdict.verdicts)
    asked = len(verdict.verdicts)
    head = (
        f"<h1>{escape(verdict.table)}, {verdict.hour:%Y-%m-%d %H:%M} UTC</h1>"
        f"<p>{escape(TABLES[verdict.table].meaning)}</p>"
        f'<div class="verdict {tone}"><b>{word}</b><p>{told} {judged:,} of {asked:,} expectations could be'
        f" judged, over all {verdict.row_count:,} rows.</p></div>"
    )
    failed = _failed_rows([*errors, *warnings])
    body = (
        head
        + (f"<h2>What failed</h2>{failed}" if failed else "")
        + f"<h2>By kind</h2>{_kind_rows(verdict.verdicts)}"
        + f"<h2>The table as a whole</h2>{_whole_rows(verdict)}"
        + f"<h2>Column by column</h2>{_columns(verdict)}"
    )
    title = f"{verdict.table} {verdict.hour:%Y-%m-%d %H:%M}: {word}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>\n'
    )


def _summary(errors: int, warnings: int) -> tuple[str, str, str]:
    also = f" {counted(warnings, 'warning')} as well." if warnings else ""
    if errors:
        return "error", "Not to be built upon", f"{counted(errors, 'error')}: what is downstream waits.{also}"
    if warnings:
        return "warning", "Usable, with gaps", f"No errors, {counted(warnings, 'warning')}."
    return "good", "As expected", "No errors, no warnings."


def _failed_rows(failed: Sequence[Verdict]) -> str:
    if not failed:
        return ""
    rows = "".join(
        f'<tr class="{each.expectation.severity.value}"><td class="mark">{each.expectation.severity.value}</td>'
        f"<td><code>{escape(each.expectation.name)}</code><br>{escape(each.expectation.meaning)}</td>"
        f"<td>{escape(each.observed_text)}</td><td>{_expected(each)}</td><td>{_examples(each)}</td></tr>"
        for each in failed
    )
    return _table(("", "expectation", "observed", "expected", "first examples"), rows)


def _expected(each: Verdict) -> str:
    text = escape(each.expected_text)
    return f"<code>{text}</code>" if each.expectation.measure is None else text


def _examples(each: Verdict) -> str:
    return "<br>".join(f"<code>{escape(_readable(text))}</code>" for text in each.examples)


def _readable(text: str) -> str:
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def _kind_rows(verdicts: Sequence[Verdict]) -> str:
    rows = "".join(
        f"<tr><td>{kind}</td>" + "".join(f'<td class="n">{number:,}</td>' for number in numbers) + "</tr>"
        for kind, *numbers in _by_kind(verdicts)
    )
    return _table(("kind", "n:failed", "n:passed", "n:not judged"), rows)


def _by_kind(verdicts: Sequence[Verdict]) -> Iterable[tuple[str, int, int, int]]:
    for kind in Kind:
        outcomes = [each.outcome for each in verdicts if each.expectation.kind is kind]
        if outcomes:
            failed, passed, not_judged = (outcomes.count(outcome) for outcome in Outcome)
            yield kind.value.replace("_", " "), failed, passed, not_judged


def _whole_rows(verdict: HourVerdict) -> str:
    names = TABLES[verdict.table].by_name
    chosen = [each for each in verdict.verdicts if each.expectation.column not in names]
    rows = "".join(
        f'<tr class="{_tone(each)}"><td class="mark">{each.outcome.value}</td>'
        f"<td><code>{escape(each.expectation.name)}</code><br>{escape(each.expectation.meaning)}</td>"
        f"<td>{escape(each.observed_text)}</td><td>{_expected(each)}</td></tr>"
        for each in sorted(chosen, key=_failing_first)
    )
    return _table(("", "expectation", "observed", "expected"), rows)


def _columns(verdict: HourVerdict) -> str:
    blocks = []
    for column in TABLES[verdict.table].columns:
        about = sorted(
            (each for each in verdict.verdicts if each.expectation.column == column.name), key=_failing_first
        )
        missing = verdict.numbers.get((column.name, Measure.NULL_COUNT)) or 0.0
        filled = verdict.row_count - int(missing)
        least, most = (verdict.numbers.get((column.name, each)) for each in (Measure.MIN, Measure.MAX))
        span = "" if least is None or most is None else f", {least:.6g} to {most:.6g} {escape(column.unit)}"
        failed = sum(each.outcome is Outcome.FAILED for each in about)
        tone = _tone(about[0]) if about else "good"
        word = f'<span class="{tone}"><span class="mark">{failed} failed</span></span>' if failed else "in order"
        if not filled and not failed:
            word = "no values"
        rows = "".join(
            f'<tr class="{_tone(each)}"><td class="mark">{each.outcome.value}</td>'
            f"<td>{escape(each.expectation.meaning)}</td><td>{escape(each.observed_text)}</td>"
            f"<td>{_expected(each)}</td></tr>"
            for each in about
        )
        opened = " open" if failed else ""
        blocks.append(
            (
                not failed,
                not filled,
                f"<details{opened}><summary><code>{escape(column.name)}</code>: {word} <small>{filled:,} of"
                f" {verdict.row_count:,} rows{span}</small></summary><p>{escape(column.meaning)}</p>"
                f"{_table(('', 'expectation', 'observed', 'expected'), rows)}</details>",
            )
        )
    return "".join(block for *_, block in sorted(blocks, key=lambda block: block[:2]))


def _tone(each: Verdict) -> str:
    return each.expectation.severity.value if each.outcome is Outcome.FAILED else "good"


def _failing_first(each: Verdict) -> tuple[int, int]:
    return list(Outcome).index(each.outcome), list(Severity).index(each.expectation.severity)


def _table(heads: Iterable[str], rows: str) -> str:
    cells = "".join(
        f'<th class="n">{head.removeprefix("n:")}</th>' if head.startswith("n:") else f"<th>{head}</th>"
        for head in heads
    )
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table>"


def failed_rows(judged: Sequence[HourVerdict], *, severity: Severity) -> list[Mapping[str, object]]:
    """Return what failed, an expectation a row, with the first hour in which it did; for the Dagster UI."""
    several = len({each.table for each in judged}) > 1
    found: dict[tuple[str, str], list[tuple[HourVerdict, Verdict]]] = {}
    for hour in judged:
        for each in hour.failed(severity):
            found.setdefault((hour.table, each.expectation.name), []).append((hour, each))
    rows: list[Mapping[str, object]] = []
    for (table, name), failures in found.items():
        first, verdict = failures[0]
        rows.append(
            {
                **({"table": table} if several else {}),
                "expectation": name,
                "meaning": verdict.expectation.meaning,
                "hours": len(failures),
                "first_in": f"{first.hour:%Y-%m-%d %H:%M}",
                "observed": verdict.observed_text,
                "expected": verdict.expected_text,
                "example": _readable(" ".join(verdict.examples[:1]))[:160],
            }
        )
    return rows


def kind_rows(verdicts: Sequence[Verdict]) -> list[Mapping[str, object]]:
    """Return how many expectations of each kind failed, passed or were not judged; for the Dagster UI."""
    return [
        {"kind": kind, "failed": failed, "passed": passed, "not_judged": left}
        for kind, failed, passed, left in _by_kind(verdicts)
    ]
