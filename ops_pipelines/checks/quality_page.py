"""How people read the verdicts on an hour: one HTML page that needs nothing else, and tables for the Dagster UI.

Shows, judges nothing. The page is the template `quality.html`, which escapes everything.
"""

from collections.abc import Iterable, Mapping, Sequence

from ops_pipelines.checks.verdict import HourVerdict, Outcome, Verdict, counted
from ops_pipelines.lake.quality.expectations import Kind, Measure, Severity
from ops_pipelines.lake.schema import TABLES


def render_page(verdict: HourVerdict) -> str:
    """Return the page: the verdict, then what failed, then every column. No links, no scripts, nothing from outside."""
    from ops_pipelines.report.html import render

    errors, warnings = verdict.failed(Severity.ERROR), verdict.failed(Severity.WARNING)
    tone, word, said = _summary(len(errors), len(warnings))
    names = TABLES[verdict.table].by_name
    whole = sorted((each for each in verdict.verdicts if each.expectation.column not in names), key=_failing_first)
    return render(
        "quality.html",
        {
            "table": verdict.table,
            "hour": verdict.hour,
            "meaning": TABLES[verdict.table].meaning,
            "tone": tone,
            "word": word,
            "said": said,
            "judged": sum(each.outcome is not Outcome.NOT_JUDGED for each in verdict.verdicts),
            "asked": len(verdict.verdicts),
            "row_count": verdict.row_count,
            "failed": [{**_shown(each), "mark": each.expectation.severity.value} for each in (*errors, *warnings)],
            "kinds": kind_rows(verdict.verdicts),
            "whole": [_shown(each) for each in whole],
            "columns": sorted(_columns(verdict), key=lambda each: (not each["failed"], not each["filled"])),
        },
    )


def _summary(errors: int, warnings: int) -> tuple[str, str, str]:
    also = f" {counted(warnings, 'warning')} as well." if warnings else ""
    if errors:
        return "error", "Not to be built upon", f"{counted(errors, 'error')}: what is downstream waits.{also}"
    if warnings:
        return "warning", "Usable, with gaps", f"No errors, {counted(warnings, 'warning')}."
    return "passed", "As expected", "No errors, no warnings."


def _shown(each: Verdict) -> Mapping[str, object]:
    return {
        "tone": each.expectation.severity.value if each.outcome is Outcome.FAILED else "passed",
        "mark": each.outcome.value,
        "name": each.expectation.name,
        "meaning": each.expectation.meaning,
        "observed": each.observed_text,
        "expected": each.expected_text,
        "examples": each.examples,
    }


def _columns(verdict: HourVerdict) -> Iterable[Mapping[str, object]]:
    for column in TABLES[verdict.table].columns:
        about = sorted(
            (each for each in verdict.verdicts if each.expectation.column == column.name), key=_failing_first
        )
        missing = verdict.numbers.get((column.name, Measure.NULL_COUNT)) or 0.0
        least, most = (verdict.numbers.get((column.name, each)) for each in (Measure.MIN, Measure.MAX))
        yield {
            "name": column.name,
            "meaning": column.meaning,
            "filled": verdict.row_count - int(missing),
            "span": "" if least is None or most is None else f", {least:.6g} to {most:.6g} {column.unit}",
            "failed": sum(each.outcome is Outcome.FAILED for each in about),
            "tone": _shown(about[0])["tone"] if about else "passed",
            "verdicts": [_shown(each) for each in about],
        }


def _failing_first(each: Verdict) -> tuple[int, int]:
    return list(Outcome).index(each.outcome), list(Severity).index(each.expectation.severity)


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


def _readable(text: str) -> str:
    return "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in text)


def kind_rows(verdicts: Sequence[Verdict]) -> list[Mapping[str, object]]:
    """Return how many expectations of each kind failed, passed or were not judged."""
    rows: list[Mapping[str, object]] = []
    for kind in Kind:
        outcomes = [each.outcome for each in verdicts if each.expectation.kind is kind]
        if outcomes:
            failed, passed, left = (outcomes.count(outcome) for outcome in Outcome)
            row = {"kind": kind.value.replace("_", " "), "failed": failed, "passed": passed, "not_judged": left}
            rows.append(row)
    return rows
