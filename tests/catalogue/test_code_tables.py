"""The tables of codes and signatures: complete, at one with themselves, every destructive answer with a source."""

import csv
import re
from collections import Counter
from datetime import date
from importlib.resources import files
from pathlib import Path

import pytest

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, AtFault, Family, FirstAction
from ops_pipelines.core.finding import REPAIRS, RESPONSES, CodeRule, LogRule
from ops_pipelines.observe.logs.matching import Origin, read_rules
from ops_pipelines.resources.catalogue_files import read_catalogue

FACTS = Path(__file__).parents[3] / "shared" / "facts"
CATALOGUE = read_catalogue()
CODES = [*CATALOGUE.xids.values(), *CATALOGUE.sxids.values()]
RULES: list[CodeRule | LogRule] = [*CODES, *CATALOGUE.signatures.values()]


def rows(name: str) -> list[dict[str, str]]:
    text = (files("ops_pipelines.catalogue") / name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def first_action(rule: CodeRule | LogRule) -> FirstAction:
    return rule.first_action if isinstance(rule, CodeRule) else rule.actions[0]


def test_every_code_that_is_known_has_one_row_in_order() -> None:
    assert list(CATALOGUE.xids) == list(range(1, 177))
    assert len(CATALOGUE.sxids) == 400
    assert list(CATALOGUE.sxids) == sorted(CATALOGUE.sxids)
    for name in ("xid.csv", "sxid.csv"):
        assert [n for n, count in Counter(row["code"] for row in rows(name)).items() if count > 1] == []


def test_matching_and_meaning_read_the_same_rows() -> None:
    assert list(CATALOGUE.signatures) == [rule.id for rule in read_rules()]


@pytest.mark.parametrize("name", ["xid.csv", "sxid.csv", "nvlink_subcodes.csv", "log_signatures.csv"])
def test_cells_are_clean_and_dated(name: str) -> None:
    for row in rows(name):
        assert all(value == value.strip() or column in ("pattern", "example") for column, value in row.items()), row
        assert row["source"]
        assert not row["checked_on"] or date.fromisoformat(row["checked_on"]).year >= 2026


def test_rows_have_what_they_must() -> None:
    for rule in RULES:
        assert rule.meaning, rule
        if first_action(rule) in DESTRUCTIVE_ACTIONS:
            assert rule.source, rule
        if rule.repeat is not None:
            assert rule.repeat.count >= 2, rule
            assert rule.repeat.source, rule
            assert rule.repeat.then is not first_action(rule), rule
        if rule.at_fault in (AtFault.NOTHING, AtFault.USER, AtFault.APPLICATION):
            assert RESPONSES[first_action(rule)] not in REPAIRS, f"a fault of nobody's hardware costs no node: {rule}"


def test_codes_that_no_driver_uses_are_never_destructive() -> None:
    unused = [rule for rule in CATALOGUE.xids.values() if rule.meaning.startswith("unused")]

    assert len(unused) > 40
    assert {rule.first_action for rule in unused} == {FirstAction.MONITOR}


def test_a_row_for_damage_of_something_else_repairs_nothing() -> None:
    for rule in RULES:
        if rule.is_secondary and isinstance(rule, CodeRule):
            assert RESPONSES[rule.first_action] not in REPAIRS, rule


def test_words_that_any_program_can_write_never_repair_a_node() -> None:
    """Who prints a line in a job's log must not be able to have a GPU reset or a node started again."""
    for rule in read_rules():
        if rule.origin == Origin.PROGRAM:
            assert RESPONSES[CATALOGUE.signatures[rule.id].actions[0]] not in REPAIRS, rule.id


def test_each_signature_has_actions_and_a_share_of_sureness() -> None:
    for rule in CATALOGUE.signatures.values():
        assert rule.actions
        assert len(set(rule.actions)) == len(rule.actions)
        assert 0 < rule.confidence <= 1


@pytest.mark.parametrize(
    ("signature", "family", "at_fault"),
    [
        pytest.param("slurm_preempted", Family.NORMAL, AtFault.USER, id="preemption is no fault"),
        pytest.param("slurm_time_limit", Family.NORMAL, AtFault.USER, id="a time limit is no fault"),
        pytest.param("nccl_ib_flush", Family.COLLECTIVE, AtFault.NOTHING, id="flushed work is damage"),
        pytest.param("lustre_evicted", Family.STORAGE, AtFault.STORAGE, id="the file system, not the node"),
        pytest.param("mlx5_cable_error", Family.FABRIC, AtFault.FABRIC, id="a cable"),
        pytest.param("cuda_out_of_memory", Family.APPLICATION, AtFault.APPLICATION, id="the job asked too much"),
    ],
)
def test_who_is_at_fault(signature: str, family: Family, at_fault: AtFault) -> None:
    rule = CATALOGUE.signatures[signature]

    assert (rule.family, rule.at_fault) == (family, at_fault)


def test_answers_of_all_sources_are_kept_and_disputes_are_marked() -> None:
    assert sum(rule.is_disputed for rule in CATALOGUE.xids.values()) == 66
    said = {answer.source: answer.says for answer in CATALOGUE.xids[64].answers}
    assert said["NVIDIA Xid catalogue"] == "RESET_GPU"
    assert "ISOLATE" in said["awslabs health check"]
    assert all(len(rule.answers) >= 2 for rule in CODES if rule.is_disputed)


@pytest.mark.skipif(not FACTS.is_dir(), reason="the published tables (../shared/facts) are not here")
def test_disputed_codes_are_those_of_the_published_tables() -> None:
    for name, column, rules in (("xid", "xid", CATALOGUE.xids), ("sxid", "sxid", CATALOGUE.sxids)):
        with (FACTS / f"{name}_catalog.csv").open(encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                code = int(row.get(column) or row["code"])
                assert rules[code].is_disputed is (row["sources_disagree"] == "yes"), code


def test_masks_of_nvlink_subcodes_are_one_register_wide() -> None:
    for row in CATALOGUE.nvlink_subcodes:
        assert re.fullmatch(r"[01-]{32}", row.mask_before_r575)
        assert re.fullmatch(r"[01-]{32}", row.mask_from_r575)
        assert 144 <= row.code <= 150
    assert {row.code for row in CATALOGUE.nvlink_subcodes} == set(range(144, 151))


@pytest.mark.parametrize(
    ("code", "text"),
    [(45, "is_secondary"), (43, "is_secondary"), (171, "is_secondary"), (172, "is_secondary"), (174, "is_secondary")],
)
def test_sympathetic_codes_are_marked(code: int, text: str) -> None:
    assert getattr(CATALOGUE.xids[code], text) is True
