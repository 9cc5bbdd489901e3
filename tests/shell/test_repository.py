"""The repository itself: what is shipped names no index, no machine, and locks what it needs."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()


def shipped_texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git checkout, so nobody can tell what is shipped")
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.suffix not in {".png", ".gz"} and path.is_file()]


def test_every_locked_version_is_exact_and_has_hashes() -> None:
    blocks = re.split(r"\n(?=[A-Za-z0-9_.-]+==)", LOCK[LOCK.index("\n", LOCK.rindex("#    make lock")) :])
    names = [block.split("==")[0].strip() for block in blocks if "==" in block]

    assert len(names) > 50
    assert all("--hash=sha256:" in block for block in blocks if "==" in block)


def test_the_lock_names_no_index_and_no_file() -> None:
    assert not re.findall(r"(?m)^--|https?://|file:|@ ", LOCK)


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = project["project"]["dependencies"] + project["dependency-groups"]["dev"]
    locked = {name.lower() for name in re.findall(r"(?m)^([A-Za-z0-9_.-]+)==", LOCK)}

    missing = {re.split(r"[<>=\[;]", each)[0].strip().lower() for each in declared} - locked

    assert missing == set()


def test_no_shipped_text_carries_a_machine_path_or_a_package_index() -> None:
    forbidden = re.compile(r"/(?:root|home)/[a-z]|index-url|pypi\.org|\.pyenv")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in shipped_texts()
        if path != Path(__file__)
        for match in forbidden.finditer(path.read_text(errors="replace"))
    ]

    assert found == []


def test_every_file_that_the_readme_links_to_exists() -> None:
    readme = (ROOT / "README.md").read_text()

    targets = [target for target in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in target]

    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
