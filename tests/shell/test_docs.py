"""What the docs name exists: tests, commands and files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "ARCHITECTURE.md", "deploy/systemd/README.md"),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
TARGET = re.compile(r"`make (\w+)")
LINK = re.compile(r"\]\((?!https?:)([^)#`\n]+)\)")


def mentions(pattern: re.Pattern[str]) -> list[tuple[str, ...]]:
    found = {
        (page, *(part or "" for part in match.groups()))
        for page in PAGES
        for match in pattern.finditer((ROOT / page).read_text())
    }
    return sorted(found)


@pytest.mark.parametrize(("page", "path", "name"), mentions(TEST))
def test_every_test_that_a_page_names_exists(page: str, path: str, name: str) -> None:
    is_stage = not Path(path).name.startswith("test_")  # What tests share has no test of its own.

    assert ("" if is_stage else f"def {name or 'test_'}") in (ROOT / path).read_text()


@pytest.mark.parametrize(("page", "target"), mentions(TARGET))
def test_every_make_target_that_a_page_names_exists(page: str, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize(("page", "link"), mentions(LINK))
def test_every_file_that_a_page_links_to_exists(page: str, link: str) -> None:
    assert ((ROOT / page).parent / link).exists()


def test_pages_name_something() -> None:
    assert len(mentions(TEST)) > 20


def test_the_readme_is_short_and_shows_one_picture() -> None:
    readme = (ROOT / "README.md").read_text()

    assert len(readme.splitlines()) < 150
    assert readme.count("![") == 1


def test_the_architecture_can_be_read_at_one_sitting() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) < 1500


def test_the_tree_names_every_room() -> None:
    tree = (ROOT / "ARCHITECTURE.md").read_text().split("```")[3]
    rooms = {path.name for path in (ROOT / "ops_pipelines").iterdir() if (path / "__init__.py").is_file()}

    assert {room for room in rooms if f"{room}/" not in tree} == set()


@pytest.mark.parametrize("part", ["By task", "By reader"])
def test_the_index_finds_pages(part: str) -> None:
    section = (ROOT / "docs" / "README.md").read_text().split(f"## {part}\n")[1].split("\n## ")[0]

    assert len(set(LINK.findall(section))) >= 10


def test_the_index_by_task_names_every_page() -> None:
    section = (ROOT / "docs" / "README.md").read_text().split("## By task\n")[1].split("\n## ")[0]
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}

    assert pages - set(LINK.findall(section)) == set()
