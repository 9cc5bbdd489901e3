"""The changes of a proposal as a short Markdown list: who goes from what to what, and why. Words only.

For who reads one line: the largest change first. Names and reasons hold words of the scheduler, so they are escaped.
"""

from collections.abc import Sequence

from ops_pipelines.core.proposal import ProposedQuota
from ops_pipelines.report.markdown import escape_markdown

_REASON_CHARS = (400, 240, 160, 120)
"""How long a reason may be: the longest that lets every change stand there."""
_NAME_CHARS = 40


def list_changes(lines: Sequence[ProposedQuota], *, most_chars: int) -> str:
    """Return a line for each quota that changes, within so many characters; what does not fit is counted, never lost.

    The reason is cut before a change is left out; the first change is always named.
    """
    changed = sorted(
        (each for each in lines if _moves(each)),
        key=lambda each: (-abs(each.after - each.before), each.team, each.gpu_type),
    )
    if not changed:
        return "no quota changes"
    for reason_chars in _REASON_CHARS:
        words = [_line(each, reason_chars=reason_chars) for each in changed]
        if len(text := "\n".join(words)) < most_chars:
            return text
    count = len(words)
    while count > 1 and len(text := "\n".join((*words[:count], _rest(len(words) - count)))) >= most_chars:
        count -= 1
    return text if count > 1 else "\n".join((words[0], *([_rest(len(words) - 1)] if words[1:] else [])))


def _moves(line: ProposedQuota) -> bool:
    return line.changes_anything or round(line.before) != line.after


def _line(line: ProposedQuota, *, reason_chars: int) -> str:
    kind = f" {escape_markdown(line.gpu_type, at_most=_NAME_CHARS)}" if line.gpu_type else ""
    name = escape_markdown(line.team, at_most=_NAME_CHARS)
    return f"- **{name}**{kind} {line.before:g} → {line.after}: {escape_markdown(line.reason, at_most=reason_chars)}"


def _rest(count: int) -> str:
    return f"- and {count} more: see `why`"
