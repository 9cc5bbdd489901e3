"""Text from anywhere on its way into Markdown: on one line, cut where it is long, no character of it a sign."""

import re

_SPECIAL = re.compile(
    r"([\\`*\[\]<>!|#~&{}$@]|(?<![^\W_])_|_(?![^\W_])|(?<=\w):(?=//)|(?<=[Ww]{3})\.|^[-+=]|^\d+(?=[.)](?:\s|$)))"
)
"""An underscore within a word is none of Markdown's, and names of tests are full of them."""


_LONGEST_SENTENCE = 400


def escape_markdown(text: str, *, at_most: int = _LONGEST_SENTENCE) -> str:
    """Return a text on one line, at most so many characters of it, in which no character means anything to Markdown.

    Neither to GitHub's dialect: no link is made of an address, and no cell of a table ends.
    """
    flat = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    shown = flat if len(flat) <= at_most else f"{flat[: at_most - 1]}…"
    return _SPECIAL.sub(_written_out, shown)


def _written_out(found: re.Match[str]) -> str:
    """Return a sign with a backslash before it; a number at the beginning would be a list: a space makes it none."""
    return f"\\{found[0]}" if not found[0].isdigit() else f"{found[0]}\\"
