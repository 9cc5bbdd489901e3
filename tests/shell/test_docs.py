"""What the docs name exists: tests, commands and files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "ARCHITECTURE.md", "docs/SAFETY.md", "docs/DISK.md", "deploy/systemd/README.md")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
TARGET = re.compile(r"`make (\w+)")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


def mentions(pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    found = {
        (page, *(part or "" for part in match.groups()))
        for page in PAGES
        for match in pattern.finditer((ROOT / page).read_text())
    }
    return sorted(found)


@pytest.mark.parametrize(("page", "path", "name"), mentions(TEST))
def test_every_test_that_a_page_names_exists(page: str, path: str, name: str) -> None:
    assert f"def {name or 'test_'}" in (ROOT / path).read_text()


@pytest.mark.parametrize(("page", "target"), mentions(TARGET))
def test_every_make_target_that_a_page_names_exists(page: str, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("page", "link"), mentions(LINK))
def test_every_file_that_a_page_links_to_exists(page: str, link: str) -> None:
    assert ((ROOT / page).parent / link).exists()


def test_pages_name_something() -> None:
    assert len(mentions(TEST)) > 20
