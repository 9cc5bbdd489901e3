"""Reads the tables of `catalogue/` that say what codes and log lines mean, and returns them as domain values.

What a finding makes of them is `observe.rules`; patterns of log_signatures.csv are matched by
`observe.logs.matching`. A table that says something unknown is a fault of this program: the error names the file, the
row and the word.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from enum import Enum
from functools import cache
from importlib.resources import files
from typing import TypeVar

from ops_pipelines.core.fault import AtFault, Family, FirstAction
from ops_pipelines.core.finding import AlertRule, Answer, Catalogue, CodeRule, LogRule, NvlinkSubcode, RepeatRule
from ops_pipelines.resources.catalogue_gates import read_gates, read_suites
from ops_pipelines.resources.catalogue_hazards import read_hazards

Word = TypeVar("Word", bound=Enum)
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


def _rows(name: str) -> list[dict[str, str]]:
    text = (files("ops_pipelines.catalogue") / name).read_text(encoding="utf-8")
    return [{**row, "table": name} for row in csv.DictReader(text.splitlines())]


def _read_answers() -> Mapping[tuple[str, int], tuple[Answer, ...]]:
    answers: defaultdict[tuple[str, int], list[Answer]] = defaultdict(list)
    for row in _rows("code_answers.csv"):
        answers[row["kind"], int(row["code"])].append(Answer(source=row["source"], says=row["says"]))
    return {code: tuple(given) for code, given in answers.items()}


def _read_codes(
    name: str, *, kind: str, answers: Mapping[tuple[str, int], tuple[Answer, ...]]
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
