"""cat"""

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from enum import Enum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from ops_pipelines.core.fault import AtFault, Family, FirstAction
from ops_pipelines.core.finding import (
    AT_ONCE,
    AlertRule,
    Catalogue,
    CodeRule,
    Hazard,
    LogRule,
    NvlinkSubcode,
    RepeatRule,
    SourceAdvice,
)
from ops_pipelines.core.node_tests import HealthGate, Suite, parse_suite_name, parse_test_name
from ops_pipelines.core.sources import SuiteFile
from ops_pipelines.remediate.guardrails.lints import lint_gates, lint_suites

_BYTES_AT_MOST = 1_000_000


def read_suite_files(directory: Path) -> tuple[SuiteFile, ...]:
    """Return the suites of a directory, a file `TABLE.json` each; none where there is none. Never raises."""
    return tuple(_read(path) for path in sorted(directory.glob("*.json")))


def _read(path: Path) -> SuiteFile:
    try:
        if path.stat().st_size > _BYTES_AT_MOST:
            return SuiteFile(path=str(path), table=path.stem, problem=f"larger than {_BYTES_AT_MOST:,} bytes")
        return SuiteFile(path=str(path), table=path.stem, text=path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return SuiteFile(path=str(path), table=path.stem, problem=f"cannot be read: {error}")


# -- gates and suites --


Value = TypeVar("Value")
GATES_TABLE, SUITES_TABLE = "health_gates.csv", "verification_suites.csv"
BY_NAME = "by_name"
"""Is in place of families for suites that no fault chooses."""
_GATE_COLUMNS = ("test", "measurement", "unit", "gpu_model", "gpu_count", "low", "high", "typical", "physical",
                 "baseline_ratio", "source", "checked_on")  # fmt: skip
_SUITE_COLUMNS = ("name", "families", "tests", "required", "says", "source", "checked_on")


def read_gates() -> tuple[HealthGate, ...]:
    """Return the shipped gates; raise ValueError naming what is wrong with the table."""
    gates = parse_gates(shipped_table(GATES_TABLE), table=f"catalogue/{GATES_TABLE}")
    _refuse(GATES_TABLE, lint_gates(gates))
    return gates


def read_suites() -> tuple[Suite, ...]:
    """Return the shipped suites; raise ValueError naming what is wrong with the table."""
    suites = parse_table(shipped_table(SUITES_TABLE), f"catalogue/{SUITES_TABLE}", _SUITE_COLUMNS, _suite)
    _refuse(SUITES_TABLE, lint_suites(suites))
    return suites


def parse_gates(text: str, *, table: str) -> tuple[HealthGate, ...]:
    """Return the gates of a table as they stand there; raise ValueError naming the row that cannot be read.

    Whether they are worth anything is `lint_gates`' to say.
    """
    return parse_table(text, table, _GATE_COLUMNS, lambda row: _gate(row, table))


def shipped_table(name: str) -> str:
    """Return the text of a table of the catalogue."""
    return (files("ops_pipelines.catalogue") / name).read_text(encoding="utf-8")


def _refuse(name: str, faults: tuple[str, ...]) -> None:
    if faults:
        raise ValueError(f"catalogue/{name}: {'; '.join(faults)}")


def parse_table(
    text: str, table: str, columns: tuple[str, ...], build: Callable[[Mapping[str, str]], Value]
) -> tuple[Value, ...]:
    """Return the rows of a table, built one by one; raise ValueError naming the table and the row that is wrong."""
    # Spreadsheets put a byte order mark before the first column.
    reader = csv.DictReader(text.removeprefix("\ufeff").splitlines(), strict=True)
    values = []
    try:
        found = tuple(reader.fieldnames or ())
        if found != columns:
            raise ValueError(f"its columns are {', '.join(found)[:200] or 'none'}; expected {', '.join(columns)}")
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(f"expected {len(columns)} fields; is a comma unquoted?")
            values.append(build(row))
    except csv.Error as problem:
        raise ValueError(f"{table}, about line {reader.line_num}: {problem}; is a quote left open?") from problem
    except ValueError as problem:
        where = f"{table}, line {reader.line_num}" if reader.line_num > 1 else table
        raise ValueError(f"{where}: {problem}") from problem
    if not values:
        raise ValueError(f"{table}: it has no rows; empty never means that all is well")
    return tuple(values)


def _gate(row: Mapping[str, str], table: str) -> HealthGate:
    for column in ("measurement", "unit", "source"):
        if not row[column].strip():
            raise ValueError(f"{column} is empty")
    count = row["gpu_count"]
    if count and not count.isdecimal():
        raise ValueError(f"gpu_count is {count!r}; expected a whole number or nothing")
    checked = f", checked {row['checked_on']}" if row["checked_on"] else ""
    return HealthGate(
        test=parse_test_name(row["test"]),
        measurement=row["measurement"],
        unit=row["unit"],
        gpu_model=row["gpu_model"],
        low=_number(row, "low"),
        high=_number(row, "high"),
        typical=_number(row, "typical"),
        physical=_number(row, "physical"),
        baseline_ratio=_number(row, "baseline_ratio"),
        source=f"{row['source']} ({table}{checked})",
        gpu_count=int(count) if count else None,
    )


def _number(row: Mapping[str, str], column: str) -> float | None:
    text = row[column]
    if not text:
        return None
    try:
        return float(text)
    except ValueError as problem:
        raise ValueError(f"{column} is {text!r}; expected a number or nothing") from problem


def _suite(row: Mapping[str, str]) -> Suite:
    is_by_name = row["families"] == BY_NAME
    return Suite(
        name=parse_suite_name(row["name"]),
        families=frozenset(Family(word) for word in row["families"].split("|") if word and not is_by_name),
        tests=tuple(parse_test_name(word) for word in row["tests"].split("|")),
        required=frozenset(parse_test_name(word) for word in row["required"].split("|") if word),
        is_by_name=is_by_name,
    )


# -- what faults do to jobs --


Word = TypeVar("Word", bound=Enum)
HAZARDS_TABLE = "fault_hazards.csv"


def read_hazards() -> tuple[Hazard, ...]:
    """Return the shipped table. Raises ValueError naming the row that cannot be read, and what it should say."""
    return parse_hazards(shipped_table(HAZARDS_TABLE))


def parse_hazards(text: str) -> tuple[Hazard, ...]:
    """Return the rows of a table; raises ValueError on an unknown word, a number out of range, a row without a source,
    two rows for the same fault, and a table without a row for any fault."""
    hazards = tuple(_hazard(row) for row in csv.DictReader(text.splitlines()))
    named = [(each.family, each.first_action) for each in hazards]
    twice = {_hazard_name(*each) for each in named if named.count(each) > 1}
    if twice:
        raise ValueError(f"catalogue/{HAZARDS_TABLE} has more than one row for {', '.join(sorted(twice))}; keep one")
    if (None, None) not in named:
        raise ValueError(
            f"catalogue/{HAZARDS_TABLE} has no row with empty family and first action; add one for any fault"
        )
    return hazards


def _hazard(row: Mapping[str, str]) -> Hazard:
    family, action = _word_or_any(Family, row, "family"), _word_or_any(FirstAction, row, "first_action")
    where = f"catalogue/{HAZARDS_TABLE}, {_hazard_name(family, action)}"
    rate = _hazard_number(row, "ends_job_per_hour", where)
    slowdown = _hazard_number(row, "slowdown_ratio", where)
    if rate < 0:
        raise ValueError(f"{where}: ends_job_per_hour is {rate}; expected 0 or more, or inf")
    if not 0 <= slowdown <= 1:
        raise ValueError(f"{where}: slowdown_ratio is {slowdown}; expected 0 to 1")
    if not row["source"]:
        raise ValueError(f"{where}: no source; name it, or write 'Assumption: ...'")
    return Hazard(
        family=family,
        first_action=action,
        ends_job_per_hour=min(rate, AT_ONCE),
        slowdown_ratio=slowdown,
        source=f"{row['source']} (catalogue/{HAZARDS_TABLE})",
    )


def _hazard_number(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        number = float(row[column])
    except ValueError as problem:
        raise ValueError(f"{where}: {column} is {row[column]!r}; expected a number") from problem
    if math.isnan(number):
        raise ValueError(f"{where}: {column} is {row[column]!r}; expected a number")
    return number


def _word_or_any(kind: type[Word], row: Mapping[str, str], column: str) -> Word | None:
    if not row[column]:
        return None
    try:
        return kind(row[column])
    except ValueError as problem:
        raise ValueError(f"catalogue/{HAZARDS_TABLE}: {row[column]!r} is no {kind.__name__}") from problem


def _hazard_name(family: Family | None, action: FirstAction | None) -> str:
    return f"{family.value if family else 'any family'} and {action.value if action else 'any first action'}"


# -- codes and log lines --


Row = Mapping[str, str]
_IS = {"yes": True, "no": False}


@cache
def read_catalogue() -> Catalogue:
    """Return the shipped catalogue; it is read once and never changes while the program runs.

    Raises ValueError naming the row of a table that cannot be read.
    """
    answers = _read_answers()
    return Catalogue(
        xids=_read_codes("xid.csv", kind="xid", answers=answers),
        sxids=_read_codes("sxid.csv", kind="sxid", answers=answers),
        signatures={rule.signature: rule for rule in map(_log_rule, _rows("log_signatures.csv"))},
        alerts={rule.alert: rule for rule in map(_alert_rule, _rows("alerts.csv"))},
        nvlink_subcodes=tuple(map(_subcode, _rows("nvlink_subcodes.csv"))),
        hazards=read_hazards(),
        gates=read_gates(),
        suites=read_suites(),
    )


@cache
def read_explaining_catalogue() -> Catalogue:
    """Return the facts with the meanings of further lines among the signatures: to explain lines, never to decide."""
    facts = read_catalogue()
    meanings = {rule.signature: rule for rule in map(_log_rule, _rows("log_meanings.csv"))}
    return replace(facts, signatures={**facts.signatures, **meanings})


def _rows(name: str) -> list[dict[str, str]]:
    return [{**row, "table": name} for row in csv.DictReader(shipped_table(name).splitlines())]


def _read_answers() -> Mapping[tuple[str, int], tuple[SourceAdvice, ...]]:
    answers: defaultdict[tuple[str, int], list[SourceAdvice]] = defaultdict(list)
    for row in _rows("code_answers.csv"):
        answers[row["kind"], int(row["code"])].append(SourceAdvice(source=row["source"], says=row["says"]))
    return {code: tuple(given) for code, given in answers.items()}


def _read_codes(
    name: str, *, kind: str, answers: Mapping[tuple[str, int], tuple[SourceAdvice, ...]]
) -> Mapping[int, CodeRule]:
    rules = [
        CodeRule(
            code=int(row["code"]),
            mnemonic=row["mnemonic"],
            meaning=row["meaning"],
            at_fault=_word(AtFault, row, "at_fault"),
            family=_word(Family, row, "family"),
            first_action=_word(FirstAction, row, "first_action"),
            is_secondary=_IS[row["is_secondary"]],
            repeat=_repeat(row),
            answers=answers.get((kind, int(row["code"])), ()),
            is_disputed=_IS[row["is_disputed"]],
            source=_source(row),
        )
        for row in _rows(name)
    ]
    return {rule.code: rule for rule in rules}


def _log_rule(row: Row) -> LogRule:
    return LogRule(
        signature=row["id"],
        category=row["category"],
        component=row["component"],
        meaning=row["meaning"],
        at_fault=_word(AtFault, row, "at_fault"),
        family=_word(Family, row, "family"),
        actions=tuple(_parse(FirstAction, word, row) for word in row["actions"].split("|")),
        confidence=float(row["confidence"]),
        is_secondary=_IS[row["is_secondary"]],
        repeat=_repeat(row),
        source=_source(row),
    )


def _alert_rule(row: Row) -> AlertRule:
    return AlertRule(
        alert=row["alert"],
        meaning=row["meaning"],
        at_fault=_word(AtFault, row, "at_fault"),
        family=_word(Family, row, "family"),
        first_action=_word(FirstAction, row, "first_action"),
        confidence=float(row["confidence"]),
        is_evidence=_IS[row["is_evidence"]],
        source=_source(row),
    )


def _subcode(row: Row) -> NvlinkSubcode:
    return NvlinkSubcode(
        code=int(row["code"]),
        unit=row["unit"],
        mask_before_r575=row["mask_before_r575"],
        mask_from_r575=row["mask_from_r575"],
        error_status=int(row["error_status"], 16) if row["error_status"] else None,
        first_action=_word(FirstAction, row, "first_action"),
        is_fatal=_IS[row["is_fatal"]],
        effects=row["effects"],
        source=_source(row),
    )


def _repeat(row: Row) -> RepeatRule | None:
    if not row["repeat_count"]:
        return None
    return RepeatRule(
        count=int(row["repeat_count"]),
        within=timedelta(hours=float(row["repeat_hours"])),
        then=_word(FirstAction, row, "repeat_then"),
        source=row["repeat_source"],
    )


def _source(row: Row) -> str:
    checked = f", checked {row['checked_on']}" if row["checked_on"] else ""
    return f"{row['source']} (catalogue/{row['table']}{checked})"


def _word(kind: type[Word], row: Row, column: str) -> Word:
    return _parse(kind, row[column], row)


def _parse(kind: type[Word], word: str, row: Row) -> Word:
    try:
        return kind(word)
    except ValueError as problem:
        name = row.get("code") or row.get("id") or row.get("alert")
        raise ValueError(f"catalogue/{row['table']}, {name}: {word!r} is no {kind.__name__}") from problem
