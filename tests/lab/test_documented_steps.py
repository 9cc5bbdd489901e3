"""What a drill types is what the documents say; a document that no longer says it stops the drill."""

from pathlib import Path

import pytest

from ops_pipelines_lab.drills.stack import INSTALL, START_GUARD, DocumentedStepError, at, step, unit_command

_PAGE = """\
Text with `tool run --in-text`.

```
umask 077          # a comment
tool start --at /etc/tool/a.conf && other reload
tool stop
```

tool run --between-blocks

```text
tool stop
it's no command
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(_PAGE)
    return path


def test_commands_are_those_of_fenced_blocks_without_their_comments(page: Path) -> None:
    assert step(page, "umask") == ("umask", "077")
    assert step(page, "tool", "start") == ("tool", "start", "--at", "/etc/tool/a.conf")
    assert step(page, "other") == ("other", "reload")
    assert step(page, "tool", "stop") == ("tool", "stop")


@pytest.mark.parametrize("words", [("tool", "run"), ("tool",), ("missing",)])
def test_a_command_that_is_not_there_or_not_the_only_one_is_refused(page: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(DocumentedStepError, match=r"page.md has \d commands .* expected one"):
        step(page, *words)


def test_a_missing_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentedStepError, match=r"none.md cannot be read"):
        step(tmp_path / "none.md", "tool")


def test_paths_are_replaced_within_words_and_other_places_as_whole_words() -> None:
    words = ("sh", "-c", "run /etc/tool/x --config /etc/tool/y", "--user", "tool", "--tool")

    changed = at(words, {"/etc/tool": "/lab", "tool": "root"})

    assert changed == ("sh", "-c", "run /lab/x --config /lab/y", "--user", "root", "--tool")


def test_a_place_that_a_command_does_not_name_is_refused() -> None:
    with pytest.raises(DocumentedStepError, match="does not name 4266"):
        at(("tool", "--port", "42660"), {"4266": "1"})


def test_the_documents_have_what_the_drills_type() -> None:
    for words in (
        ("umask",),
        ("export", "DAGSTER_HOME=/var/lib/dagster"),
        ("ops-pipelines", "code-server"),
        ("dagster-daemon",),
        ("ops-pipelines", "webserver"),
        ("ops-pipelines", "check-config"),
        ("ops-pipelines", "status", "--wait"),
    ):
        assert step(INSTALL, *words)
    assert step(START_GUARD, "ops-pipelines", "guard", "install")
    assert step(START_GUARD, "systemctl", "restart", "slurmctld")
    assert "watch" in unit_command("ops-pipelines-start-guard.service")[-1]
    assert "--inetd" in unit_command("ops-pipelines-node-witness@.service")
