"""The rows of `nvidia-smi dmon`, one report per GPU and row: names as `--query-gpu` has them, to texts with units.

Here: that layout, in blanks and CSV, with and without the time (`-o DT`). Not here: pmon, whose rows are processes.
"""

import re
from collections.abc import Iterator

from ops_pipelines.frames.formats.nvidia_smi_layouts import Report
from ops_pipelines.frames.formats.reading import Unbelievable

HEADING = re.compile(
    r"^#[ \t]*(?:date,?[ \t]+time,?[ \t]+)?gpu,?[ \t]+"
    r"(?=(?:pwr|gtemp|temp|mtemp|sm|mem|fb|mclk|pclk|pviol|sbecc|rxpci)\b)"
    r"[a-z0-9_]{1,20}(?:,?[ \t]+[a-z0-9_]{1,20}){0,60}[ \t]*$",
    re.MULTILINE | re.IGNORECASE,
)
_QUERY = {
    "gpu": ("index", ""),
    "pwr": ("power.draw", " W"),
    "gtemp": ("temperature.gpu", " C"),
    "temp": ("temperature.gpu", " C"),
    "mtemp": ("temperature.memory", " C"),
    "sm": ("utilization.gpu", " %"),
    "mem": ("utilization.memory", " %"),
    "enc": ("utilization.encoder", " %"),
    "dec": ("utilization.decoder", " %"),
    "mclk": ("clocks.mem", " MHz"),
    "pclk": ("clocks.sm", " MHz"),
    "fb": ("memory.used", " MiB"),
    "rxpci": ("pci/rx_util", " MB/s"),
    "txpci": ("pci/tx_util", " MB/s"),
}
"""Column of dmon -> name of `--query-gpu` or of `-q`, and the unit that the second line of the heading states."""
_DAY = re.compile(r"(\d{4})(\d\d)(\d\d)", re.ASCII)


def dmon_reports(text: str) -> Iterator[Report]:
    """Yield the rows that follow a heading of dmon; none if the text does not begin with one."""
    columns: list[str] = []
    if not HEADING.match(text.lstrip()):
        return
    for line_number, line in enumerate(text.split("\n"), start=1):
        if HEADING.fullmatch(line.strip()):
            columns = _cells(line.strip().lstrip("#").lower())
            continue
        if not columns or not line.strip() or line.lstrip().startswith("#"):
            continue
        cells = _cells(line)
        record = f"line {line_number}"
        if len(cells) != len(columns):
            detail = f"found {len(cells)} fields, expected {len(columns)}"
            yield Report(record=record, text=line, broken=Unbelievable("wrong_number_of_fields", detail))
            continue
        named = dict(zip(columns, cells, strict=True))
        values = {
            name: f"{named[column]}{unit if named[column] != '-' else ''}"
            for column, (name, unit) in _QUERY.items()
            if column in named
        }
        day = _DAY.fullmatch(named.get("date", ""))
        if day:
            values["timestamp"] = f"{day[1]}/{day[2]}/{day[3]} {named.get('time', '')}"
        yield Report(record=record, text=line, values=values)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")] if "," in line else line.split()
