"""Every public file, taken in as an operator would: counts close, rows are those of the lake, and the docs tell it."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from bench.coverage import PUBLIC, Coverage, cover, public_files, table_lines, take_in
from ops_pipelines.lake.quantities import Parsed, WrongKind
from ops_pipelines.lake.schema import TABLES
from ops_pipelines.observe.imports import FileKind

FORMATS = Path(__file__).parent.parent.parent / "docs" / "FORMATS.md"
FILES = list(public_files())
pytestmark = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public files are not beside this checkout")


@cache
def coverages() -> Mapping[str, Coverage]:
    return cover(FILES)


def taken(path: Path, kind: FileKind) -> Parsed | WrongKind:
    try:
        return take_in(path, kind)
    except WrongKind as why:
        return why


@pytest.mark.parametrize(("path", "group", "kind"), FILES, ids=lambda value: getattr(value, "name", ""))
def test_a_public_file_is_read_into_known_columns_or_refused_by_name(path: Path, group: str, kind: FileKind) -> None:
    parsed = taken(path, kind)

    if isinstance(parsed, WrongKind):
        assert re.search(r"\b(?:expected|use|ingest|try)\b", str(parsed))
        return
    assert parsed.read == parsed.accepted + sum(parsed.reasons.values()) + parsed.ignored
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", reason) for reason in parsed.reasons)
    assert all(refused.detail for refused in parsed.refused)
    assert len({refused.record for refused in parsed.refused}) == len(parsed.refused)
    assert bool(parsed.tables) == bool(parsed.accepted)
    for name, rows in parsed.tables.items():
        keys = Counter(zip(*(rows[column].to_pylist() for column in TABLES[name].sort_order), strict=True))
        assert rows.schema.equals(TABLES[name].arrow())
        assert max(keys.values()) == 1


@pytest.mark.parametrize(
    "folder",
    [
        "dcgm_scrapes",
        "nvidia_smi",
        "slurm_outputs",
        "ub_sacct_xdmod",
        "mit_supercloud",
        "kernel_logs",
        "infiniband",
        "smartctl",
        "node_exporter",
        "redfish",
    ],
)
def test_no_public_file_is_left_out(folder: str) -> None:
    covered = {path for path, _, _ in FILES}

    for path in (PUBLIC / folder).rglob("*"):
        assert path.is_dir() or path in covered or covered & set(path.parents), path


def test_the_docs_tell_what_becomes_of_the_public_files() -> None:
    lines = FORMATS.read_text(encoding="utf-8").splitlines()

    assert [line for line in lines if line.startswith("| ")] == table_lines(coverages().values())


def test_the_docs_name_every_table_that_the_public_files_fill() -> None:
    text = FORMATS.read_text(encoding="utf-8")

    filled = {name for coverage in coverages().values() for name in coverage.rows}

    assert {name for name in filled if f"`{name}`" not in text} == set()
    assert filled <= set(TABLES)
