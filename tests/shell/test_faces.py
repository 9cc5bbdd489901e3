"""Each subject is reached through its face: the modules that `__all__` of its package names, and nobody else's.

The edges (assets, sensors, resources, commands) count as others too. The laboratory, tests and benches look inside.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "ops_pipelines"
SUBJECTS = (
    *("lake", "report", "observe", "diagnose", "remediate", "rollouts", "review", "teams", "costs", "quotas"),
    *("efficiency", "capacity", "people"),
)


IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|.*)|import ([\w.]+).*)$", re.MULTILINE)
"""One import of a module as the formatter leaves it; taking half a thousand modules apart whole would take seconds."""


def imported(source: str) -> Iterator[str]:
    """Yield the dotted names that a module imports, wherever in it."""
    for package, names, module in IMPORT.findall(source):
        yield from (f"{package}.{name}" for name in re.findall(r"\w+", names)) if package else (module,)


@cache
def imports_below(root: Path) -> Mapping[Path, frozenset[str]]:
    """Return what each module of a package imports."""
    return {
        path.relative_to(root): frozenset(imported(path.read_text(encoding="utf-8"))) for path in root.rglob("*.py")
    }


def used_from_outside(root: Path, subject: str) -> Mapping[str, set[str]]:
    """Return which modules of a subject others import, each with who does."""
    found: dict[str, set[str]] = {}
    for own, names in imports_below(root).items():
        if own.parts[0] == subject:
            continue
        for name in names:
            parts = name.split(".")
            if parts[:2] != [root.name, subject]:
                continue
            for end in range(len(parts), 2, -1):
                module = ".".join(parts[2:end])
                if (root / subject / Path(*parts[2:end])).with_suffix(".py").exists():
                    found.setdefault(module, set()).add(own.as_posix())
                    break
    return found


@pytest.mark.parametrize("subject", SUBJECTS)
def test_others_import_what_the_face_names_and_it_names_nothing_else(subject: str) -> None:
    face = import_module(f"ops_pipelines.{subject}").__all__

    assert sorted(used_from_outside(ROOT, subject)) == face


def test_an_import_past_the_face_is_found(tmp_path: Path) -> None:
    root = tmp_path / "house"
    for name, source in {
        "quotas/proof.py": "",
        "quotas/inside/deep.py": "",
        "costs/report.py": "from house.quotas.inside.deep import thing\nimport house.quotas.proof\n",
        "quotas/apply.py": "from house.quotas.proof import it\n",
        "cli.py": "def late():\n    from house.quotas import proof\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    assert used_from_outside(root, "quotas") == {
        "inside.deep": {"costs/report.py"},
        "proof": {"costs/report.py", "cli.py"},
    }
