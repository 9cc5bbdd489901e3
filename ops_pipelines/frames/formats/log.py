"""Logs of kernels, drivers, fabric managers, BMCs, Slurm, containers and jobs -> kernel_events and job_logs.

A record is one physical line; a blank line is ignored. A line is refused only if it is no text, or a broken record of a
log in JSON; whatever else stands there was written by somebody and is kept, cut at 1000 characters. Progress bars that
draw over themselves with carriage returns are one line: the last picture is kept. A time that a line does not state is
`at`; a clock that counts from boot becomes a time once the kernel has said when it set the clock.
"""

from datetime import datetime

from ops_pipelines.frames.log_kinds import decode_log, refuse_other_kinds
from ops_pipelines.frames.log_tables import RawLine, Writer, tabulate, tabulate_lines
from ops_pipelines.frames.parsed import Parsed, WrongKind

__all__ = ["Writer", "parse", "tabulate_lines"]


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the lines of one log file; raises WrongKind if it is a document, a table or binary."""
    text = decode_log(body)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    refuse_other_kinds(lines, text=text)
    width = max(9, len(str(len(lines))))
    # Line numbers of one width, so that the rows of a file, which are sorted by position, stay in its order.
    raw = (RawLine(text=line, position=f"{number:0{width}d}") for number, line in enumerate(lines, start=1))
    parsed = tabulate(raw, source=source, at=at, writer=Writer.TOLD_BY_LINE, node=node)
    refused = parsed.reasons
    if parsed.refused and not parsed.accepted:
        raise WrongKind(f"no line is a line of a log ({', '.join(f'{n} {why}' for why, n in refused.items())})")
    if refused.get("binary_line", 0) > parsed.accepted:
        raise WrongKind(f"binary data: {refused['binary_line']} of {parsed.read} lines; expected a log in plain text")
    return parsed
