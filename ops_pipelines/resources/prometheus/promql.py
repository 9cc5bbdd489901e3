"""PromQL texts: which series are asked for, in which form. Nothing is asked here."""

import re
from collections.abc import Mapping, Sequence

_LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|`[^`]*`)"""
    r"|(?P<range>\[[^\]]*\])|(?P<number>\d[\w.]*)|(?P<word>[A-Za-z_:][\w:]*)|(?P<open>\{)|(?P<close>\})|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_LISTS = frozenset({"by", "without", "on", "ignoring", "group_left", "group_right"})
"""Words that a list of labels may follow."""
_WORDS = _LISTS | frozenset({"and", "or", "unless", "offset", "bool", "atan2", "start", "end", "inf", "nan"})


def matchers(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name="value"` for each label. Raises ValueError on what is no label name."""
    found: list[str] = []
    for name, value in labels.items():
        if not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a label name")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        found.append(f'{name}="{escaped}"')
    return tuple(found)


def newest_values(
    names: Sequence[str], *, labels: Mapping[str, str], look_back_seconds: int, among: Sequence[str] = ()
) -> str:
    """Return the query for the newest values of the series `names`, at each grid time, no older than the look-back.

    It both narrows the look-back and honours the marks of ended series: `last_over_time` alone would answer for a
    series that was ended; the bare selector alone looks 5 minutes back. (`and` does not compare names: of a target that
    goes on, one series that ends is still answered for, for as long as the look-back.) `among` are further matchers.
    """
    selector = "{" + ",".join([f'__name__=~"{"|".join(names)}"', *among, *matchers(labels)]) + "}"
    return f"last_over_time({selector}[{look_back_seconds}s]) and {selector}"


def narrow(promql: str, labels: Mapping[str, str]) -> str:
    """Return a query of the catalogue with the cluster's labels in each of its selectors."""
    added = ",".join(matchers(labels))
    if not added:
        return promql
    parts = [(match.lastgroup, match[0]) for match in _TOKEN.finditer(promql)]
    written: list[str] = []
    depth = 0
    is_in_list = False
    for index, (kind, part) in enumerate(parts):
        following = next((text for _, text in parts[index + 1 :] if not text.isspace()), "")
        before = next((text for _, text in reversed(parts[:index]) if not text.isspace()), "")
        if kind == "open":
            depth += 1
            written.append(f"{{{added}" + ("" if following == "}" else ","))
            continue
        written.append(part)
        if kind == "close":
            depth -= 1
        elif part == "(" and before.lower() in _LISTS:
            is_in_list = True
        elif part == ")":
            is_in_list = False
        # A word before a bracket is a function; one before `by` aggregates; one before a brace is narrowed there.
        is_word = kind == "word" and depth == 0 and not is_in_list and part.lower() not in _WORDS
        if is_word and following.lower() not in ("(", "{", "by", "without"):
            written.append(f"{{{added}}}")
    return "".join(written)
