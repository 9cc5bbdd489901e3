"""The set-up as the documents give it: a drill types their own lines, at its own places.

Read are docs/INSTALL.md, docs/START_GUARD.md and the units of deploy/systemd. A line that is no longer there, or no
longer names what a drill must put elsewhere, stops the drill: the documents and what was tried are then two things.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
INSTALL, START_GUARD = PROJECT / "docs" / "INSTALL.md", PROJECT / "docs" / "START_GUARD.md"
UNITS = PROJECT / "deploy" / "systemd"
_FENCE = "```"


class DocumentedStepError(RuntimeError):
    """A document does not say what a drill must do. The message names the document and what was looked for."""


def step(document: Path, *first_words: str) -> tuple[str, ...]:
    """Return the one command of the document's fenced blocks that begins so. Raises DocumentedStepError."""
    found = {words for words in _commands(_read(document)) if words[: len(first_words)] == first_words}
    if len(found) != 1:
        raise DocumentedStepError(f"{document} has {len(found)} commands `{shlex.join(first_words)} ...`; expected one")
    return found.pop()


def unit_command(name: str) -> tuple[str, ...]:
    """Return the words of a unit's ExecStart. Raises DocumentedStepError."""
    lines = _read(UNITS / name).splitlines()
    found = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    if len(found) != 1:
        raise DocumentedStepError(f"the unit {name} has {len(found)} lines ExecStart; expected one")
    return tuple(shlex.split(found[0]))


def at(words: Sequence[str], places: Mapping[str, str]) -> tuple[str, ...]:
    """Return a command with each place put where the drill has it. Raises DocumentedStepError if it names one not.

    A path is replaced wherever it stands in a word, anything else as a whole word.
    """
    changed = tuple(words)
    for documented, own in places.items():
        is_path = documented.startswith("/")
        if not any(documented in word if is_path else documented == word for word in changed):
            raise DocumentedStepError(f"`{shlex.join(words)}` does not name {documented}, which is to be {own}")
        changed = tuple(
            word.replace(documented, own) if is_path else own if word == documented else word for word in changed
        )
    return changed


def own_program(name: str) -> str:
    """Return where a program of our own environment lies."""
    return str(Path(sys.executable).with_name(name))


def _commands(text: str) -> set[tuple[str, ...]]:
    """Return the commands of all fenced blocks; a line of several, joined by `&&`, counts as each of them."""
    found: set[tuple[str, ...]] = set()
    for block in text.split(f"\n{_FENCE}")[1::2]:
        for line in block.splitlines():
            for part in line.split("&&"):
                try:
                    words = tuple(shlex.split(part, comments=True))
                except ValueError:  # No shell command: an example of output, say.
                    continue
                if words:
                    found.add(words)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as problem:
        raise DocumentedStepError(f"{path} cannot be read ({problem}); run this from a checkout") from problem
