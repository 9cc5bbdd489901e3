"""Documents, settings and code use the field's words: what is in none of them, CONVENTIONS.md lists under "Words".

Left out of pages: code, and tables between `<!-- begin NAME -->` and `<!-- end NAME -->`, which are the program's own
words. Prose of code: comments, docstrings and strings of several words; a string without a space is a key or a state.
"""

import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
PAGES = (
    *("README.md", "ARCHITECTURE.md", "CONVENTIONS.md", "deploy/systemd/README.md"),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
)
CONFIGS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in (
        *("*.yaml", "releases/*.yaml", "deploy/**/*.y*ml", "deploy/**/*.service"),
        *("ops_pipelines/**/*.csv", "ops_pipelines/**/*.sh"),
    )
    for path in ROOT.glob(pattern)
)
NO_PROSE = re.compile(r"^ *```.*?^ *```|<!-- begin .*?<!-- end |`(?:[^`\n]|\n(?!\n))*`", re.DOTALL | re.MULTILINE)


def listed() -> Mapping[str, str]:
    """Each word of the list, with what to write instead."""
    section = (ROOT / "CONVENTIONS.md").read_text().split("## Words\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", section, re.MULTILINE)
    return {word: instead for words, instead in rows for word in re.findall("`([^`]+)`", words)}


WORDS = listed()
ANY_WORD = re.compile(rf"\b({'|'.join(WORDS)})\b".replace(" ", r"\s+"), re.IGNORECASE)


def faults(page: str, text: str) -> Iterator[str]:
    prose = NO_PROSE.sub(lambda code: re.sub(r"[^\n]", "`", code[0]), text)  # Lines stay where they are.
    for found in ANY_WORD.finditer(prose):
        word = " ".join(found[0].split())
        line = prose[: found.start()].count("\n") + 1
        yield f"{page}:{line}: not {word!r}, but {WORDS[word.lower()]}"


KEY = re.compile(r'"\w+":')
IN_BRACES = re.compile(r"(?<!\{)\{[^{}]*\}")


def prose_of_code(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, docstrings and strings of several words, each with its line; not what f-strings compute."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string
        if token.type == tokenize.STRING and re.match("[rR]?[fF]", text):
            text = IN_BRACES.sub("``", text)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and re.search(r"\s", text)):
            yield token.start[0], KEY.sub("``", text)


def faults_of_code(path: str, source: str) -> list[str]:
    if not ANY_WORD.search(source):
        return []  # To take a module apart takes longer.
    found = []
    for line, text in prose_of_code(source):
        for fault in faults("", text):
            where, _, what = fault.removeprefix(":").partition(": ")
            found.append(f"{path}:{line + int(where) - 1}: {what}")
    return found


@pytest.mark.parametrize("package", ["ops_pipelines", "ops_pipelines_lab", "bench"])
def test_the_prose_of_the_code_uses_the_words_of_the_field(package: str) -> None:
    paths = sorted((ROOT / package).rglob("*.py"))

    found = [each for path in paths for each in faults_of_code(path.relative_to(ROOT).as_posix(), path.read_text())]

    assert found == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        pytest.param('"""It tells all."""\n', [1], id="docstring"),
        pytest.param("x = 1\n# whoever reads\n", [2], id="comment"),
        pytest.param('x = """a\nb told c"""\n', [2], id="second line of a string"),
        pytest.param("x = f\"{told['a b']} was said\"\n", [1], id="f-string"),
        pytest.param("x = f'{told} of it'\n", [], id="what an f-string computes"),
        pytest.param("told = 'told'\n", [], id="names and keys"),
        pytest.param("'''see `told` there'''\n", [], id="code in prose"),
        pytest.param('x = """{"said": 1, "a": 2}"""\n', [], id="a key in an example"),
    ],
)
def test_words_are_found_in_prose_of_code_alone(source: str, lines: list[int]) -> None:
    assert [int(each.split(":")[1]) for each in faults_of_code("m.py", source)] == lines


@pytest.mark.parametrize("page", [*PAGES, *CONFIGS])
def test_a_page_uses_the_words_of_the_field(page: str) -> None:
    assert list(faults(page, (ROOT / page).read_text())) == []


def test_the_list_is_read() -> None:
    assert WORDS["anew"] == "again"
    assert len(WORDS) > 20


@given(page=st.sampled_from(PAGES), word=st.sampled_from(sorted(WORDS)), data=st.data())
def test_a_planted_word_is_found(page: str, word: str, data: st.DataObject) -> None:
    paragraphs = (ROOT / page).read_text().split("\n\n")
    place = data.draw(st.sampled_from([i for i in range(len(paragraphs) + 1) if is_prose(paragraphs[:i])]))
    planted = data.draw(st.sampled_from([word, word.upper(), word.replace(" ", "\n")]))

    found = list(faults(page, "\n\n".join([*paragraphs[:place], f"It {planted}.", *paragraphs[place:]])))

    line = sum(paragraph.count("\n") + 2 for paragraph in paragraphs[:place]) + 1
    assert found == [f"{page}:{line}: not {' '.join(planted.split())!r}, but {WORDS[word]}"]


def is_prose(before: list[str]) -> bool:
    text = "\n\n".join(before)
    return text.count("```") % 2 == 0 and text.count("<!-- begin ") == text.count("<!-- end ")


@pytest.mark.parametrize(
    "text", ["`told`", "```\ntold\n```", "<!-- begin x -->\ntold\n<!-- end x -->", "retold", "tolds"]
)
def test_code_and_other_words_are_left_alone(text: str) -> None:
    assert list(faults("page", text)) == []
