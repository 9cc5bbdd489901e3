"""How a repair report reads as Markdown, for a vendor's ticket. Its JSON is the value itself, field by field.

What a log, a job or a test wrote is never markup: sentences are escaped, lines stand in a fence that they cannot end.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ops_pipelines.domain.returning.repair_evidence import MeasuredValue, Sign, SuspectPart, ToldTest
from ops_pipelines.domain.returning.repair_report import RepairReport
from ops_pipelines.report.markdown import escape_markdown

_BACKTICKS = re.compile("`+")
_LONGEST_CELL = 160


def fence(lines: Iterable[str]) -> str:
    """Return lines as they are, each on one line, in a code block whose end none of them can be."""
    shown = ["".join(char if char.isprintable() else "\ufffd" for char in line) for line in lines]
    longest = max((len(run) for line in shown for run in _BACKTICKS.findall(line)), default=0)
    mark = "`" * max(3, longest + 1)
    return "\n".join([f"{mark}text", *shown, mark])


def as_markdown(report: RepairReport) -> str:
    """Return the report as Markdown: what is asked for first, then what it rests on, then what is not known."""
    sureness = "" if report.sureness is None else f" ({report.sureness:.0%} sure)"
    chassis = escape_markdown(report.chassis_serial) or "not known"
    head = [
        f"# Repair of {escape_markdown(report.node)}",
        f"Chassis serial: **{chassis}** · incident {escape_markdown(report.incident)}"
        f" · written {_time(report.written_at)}",
        f"**{escape_markdown(report.what_broke)}**{sureness}, since {_time(report.began_at)}",
    ]
    tried = [
        f"{_time(each.ended_at)}: {escape_markdown(each.repair.replace('_', ' '))} did not help: "
        f"{escape_markdown(each.why)}"
        for each in report.useless_repairs
    ]
    acts = [
        f"{_time(each.begun_at)}: {escape_markdown(each.act)}: {each.outcome}"
        + (f", {escape_markdown(each.witness)}" if each.witness else "")
        for each in report.repairs
    ]
    history = [
        f"{_time(each.began_at)}: {escape_markdown(each.incident)}, {each.state}: {escape_markdown(each.cause)}"
        + (f" (blamed {escape_markdown(', '.join(each.parts))})" if each.parts else "")
        for each in report.history
    ]
    evidence = f"sha256 of the kept evidence: `{report.evidence}`" if report.evidence.isalnum() else "None was kept."
    blocks = [
        *head,
        _section("What we ask for", map(escape_markdown, report.asks)),
        _parts(report.parts),
        _signs(report.signs, report.left_out_sign_count),
        _section("What was tried", [*tried, *acts]),
        _tests(report.tests),
        _section("Versions", map(escape_markdown, report.versions)),
        _section("Earlier trouble of this node", history),
        f"## Evidence\n\n{evidence}",
        _section("What is not known", map(escape_markdown, report.not_known)),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(title: str, items: Iterable[str]) -> str:
    return f"## {title}\n\n" + ("\n".join(f"- {each}" for each in items) or "Nothing.")


def _parts(parts: Sequence[SuspectPart]) -> str:
    lines = [
        _row("part", "PCI address", "serial", "model", "firmware", "named earlier"),
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        _row(
            *(escape_markdown(text) or "not known" for text in (each.part, each.pci_address, each.serial, each.model)),
            escape_markdown(each.firmware) or "not known",
            f"{each.earlier_incident_count} times",
        )
        for each in parts
    ]
    reasons = [f"- {escape_markdown(each.part)}: {escape_markdown(why)}" for each in parts for why in each.reasons]
    return "## Suspect parts\n\n" + "\n".join(lines) + "\n\n" + "\n".join(reasons)


def _signs(signs: Sequence[Sign], left_out_count: int) -> str:
    blocks = ["## What failed"]
    for number, each in enumerate(signs):
        if left_out_count and number == len(signs) // 2:
            blocks.append(f"({left_out_count} more between these)")
        until = f" to {_time(each.last_at)}, {each.count} times" if each.count > 1 else ""
        blocks.append(f"{_time(each.first_at)}{until}, {escape_markdown(each.part)}: {escape_markdown(each.says)}")
        if each.lines:
            blocks.append(fence(each.lines))
    return "\n\n".join(blocks if signs else [*blocks, "Nothing was recorded."])


def _tests(tests: Sequence[ToldTest]) -> str:
    if not tests:
        return "## Tests\n\nNone was run."
    lines = [_row("at", "test", "result", "measured", "limit", "said"), "| --- | --- | --- | --- | --- | --- |"]
    for each in tests:
        name = f"{each.test} ({each.suite})"
        values: Sequence[MeasuredValue | None] = each.values or (None,)
        for value in values:
            lines.append(
                _row(
                    _time(each.finished_at),
                    escape_markdown(name),
                    each.result.replace("_", " "),
                    "" if value is None else _measured(value),
                    "" if value is None else _limit(value),
                    escape_markdown(each.said, at_most=_LONGEST_CELL),
                )
            )
    return "## Tests\n\n" + "\n".join(lines)


def _measured(value: MeasuredValue) -> str:
    where = f"{value.part}: " if value.part else ""
    return escape_markdown(f"{where}{value.name} {value.value:g} {value.unit}")


def _limit(value: MeasuredValue) -> str:
    bounds = [
        f"{words} {bound:g}" for words, bound in (("at least", value.low), ("at most", value.high)) if bound is not None
    ]
    limits = f" ({', '.join(bounds)} {value.unit})" if bounds else ""
    text = f"{value.verdict}{limits}"
    return escape_markdown(text + (f"; {value.source}" if value.source else ""), at_most=_LONGEST_CELL)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
