"""What lets something be done is made in one place each: nobody else can write a proof down."""

import ast
from pathlib import Path

import pytest

import ops_pipelines

ROOT = Path(ops_pipelines.__file__).parent
MAKERS = {
    "Proof": "remediate/plan_proof.py",
    "CheckedPlan": "remediate/plan_proof.py",
    "ProvedPlan": "remediate/plan_proof.py",
    "ActProof": "remediate/act_proof.py",
    "QuotaProof": "quotas/proof.py",
}


def callers_of(name: str) -> set[str]:
    found = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if f"{name}(" not in text:
            continue
        for each in ast.walk(ast.parse(text)):
            called = each.func if isinstance(each, ast.Call) else None
            if (isinstance(called, ast.Name) and called.id == name) or (
                isinstance(called, ast.Attribute) and called.attr == name
            ):
                found.add(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize(("name", "maker"), MAKERS.items())
def test_only_its_prover_makes_a_proof(name: str, maker: str) -> None:
    assert callers_of(name) == {maker}


def test_nobody_changes_what_was_proved() -> None:
    """`dataclasses.replace` would be a second way to write one down; only a record takes a proof, from its guard."""
    changed = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == "replace"
        if any(word.arg in ("contradictions", "checked", "checks") for word in each.keywords)
    }

    assert changed == set()
