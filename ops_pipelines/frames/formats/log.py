"""Logs of kernels, drivers, fabric managers, BMCs, Slurm, containers and jobs -> kernel_events and job_logs.

A record is one physical line; a blank line is ignored. A line is refused only if it is no text, or a broken record of a
log in JSON; whatever else stands there was written by somebody and is kept, cut at 1000 characters. Progress bars that
draw over themselves with carriage returns are one line: the last picture is kept. A time that a line does not state is
`at`; a clock that counts from boot becomes a time once the kernel has said when it set the clock.
"""

from collections.abc import Sequence
from datetime import datetime

from ops_pipelines.frames.logs.kinds import decode_log, refuse_other_kinds
from ops_pipelines.frames.logs.prefix import PrefixReader
from ops_pipelines.frames.logs.tables import RawLine, Writer, tabulate, tabulate_lines
from ops_pipelines.lake.formats import infiniband, slurm
from ops_pipelines.lake.formats import infiniband as ibswinfo
from ops_pipelines.lake.formats import slurm_tables as slurm_diag
from ops_pipelines.lake.formats.nvidia_smi_layouts import TABLE_HEADING
from ops_pipelines.lake.quantities import Parsed, WrongKind

_SAMPLE_LINES = 200
_COLUMN_BARS = 3
"""As many bars in every line, with nothing around them, are the borders of columns."""
__all__ = ["Writer", "parse", "tabulate_lines"]


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the lines of one log file; raises WrongKind if it is a document, a table or binary."""
    text = decode_log(body)
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    refuse_other_kinds(lines, text=text)
    _refuse_tables(lines, at=at)
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


def _refuse_tables(lines: Sequence[str], *, at: datetime) -> None:
    """Raise WrongKind for rows that a tool printed without a header: no line speaks as a log, and a parser knows them.

    What stands alone in a line is taken for a log, and so is a table that makes only a part of the file.
    """
    sample = [line[:2000] for line in lines[: 4 * _SAMPLE_LINES] if line.strip()][:_SAMPLE_LINES]
    reader = PrefixReader(at=at)
    # Who states a time, a level or a rank in one line of twenty writes a log.
    if len(sample) < 2 or sum(_speaks_as_log(reader, line) for line in sample) * 20 > len(sample):
        return
    bars = {line.count("|") for line in sample}
    if len(bars) == 1 and min(bars) >= _COLUMN_BARS and not any(" | " in line for line in sample):
        raise WrongKind(f"rows of a table without header ({sample[0][:60]!r}); expected a log in plain text")
    text = "\n".join(sample)
    bordered = sum(line.lstrip()[:1] in ("|", "+") for line in sample)
    if ibswinfo.is_ibswinfo(text) or (TABLE_HEADING.search(text) and bordered >= len(sample) - 1):
        raise WrongKind(f"what ibswinfo or nvidia-smi prints ({sample[0][:60]!r}); expected a log in plain text")
    body = text.encode("utf-8", errors="replace")
    for tool, read in (("Slurm's clients", slurm.parse), ("fabric tools", infiniband.parse)):
        try:
            found = read(body, source="", at=at)
        except WrongKind:
            continue
        is_whole = found.accepted + found.ignored > 0.9 * found.read and found.read >= 0.8 * (len(sample) - 1)
        if is_whole or slurm_diag.is_report(text):
            raise WrongKind(f"what {tool} print ({sample[0][:60]!r}); expected a log in plain text")


def _speaks_as_log(reader: PrefixReader, line: str) -> bool:
    said = reader.read(line)
    return said.level is not None or said.microseconds is not None or said.rank is not None
