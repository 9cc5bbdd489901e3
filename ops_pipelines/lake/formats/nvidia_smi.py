"""What `nvidia-smi` prints, as rows: XML, text, CSV, dmon, the table.

Here: that layout, in blanks and CSV, with and without the time (`-o DT`). Not here: pmon, whose rows are processes.

A record is one GPU in one output. It is refused if it names no GPU, if the tool could not read the GPU, or if one value
is no number or cannot be. MIG devices are rows of their GPU's record. Times that the tool prints state no zone and are
taken as UTC. Where a file holds several outputs, as captures do, the table and the list only repeat, rounded: their
GPUs are ignored beside `-q` or CSV.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from ops_pipelines.core.identity import parse_pci_address
from ops_pipelines.lake.formats import amd_gpus as amd_smi
from ops_pipelines.lake.formats import amd_gpus as rocm_smi
from ops_pipelines.lake.formats.nvidia_smi_layouts import (
    IDENTITY,
    LISTED_GPU,
    TABLE_HEADING,
    TEXT_HEADING,
    Report,
    cells_of,
    csv_reports,
    first_of,
    list_reports,
    says_broken,
    table_reports,
    text_reports,
    xml_reports,
)
from ops_pipelines.lake.formats.reading import Cell, Tally, Unbelievable, decode, in_bounds, whole, word, written_time
from ops_pipelines.lake.quantities import Parsed, WrongKind

# -- the rows of `nvidia-smi dmon`, one report per GPU and row --


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


# -- what `nvidia-smi` prints --


_CSV_HEADER = re.compile(
    r"^(?=[^\n]*,)[a-z][\w.@]*(?: \[[^\]\n]{1,10}\])?(?:,[ \t]*[A-Za-z][\w.]*(?: \[[^\]\n]{1,10}\])?)*[ \t]*$",
    re.MULTILINE,
)
_SECTION_END = re.compile(r"^(?:#{10,}|={5,}NVSMI|\+-{5,}|\$ )", re.MULTILINE)
_LINKS = re.compile(r"^\s+Link \d{1,2}: ", re.MULTILINE)
"""Of `nvidia-smi nvlink -s`, whose headings are those of `-L`."""
_NOTHING = re.compile(r"[0\-\s]*")


def parse(body: bytes, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the GPUs of `body`: gpu_telemetry and inventory. Raises WrongKind if it is no output of nvidia-smi."""
    text = decode(body)
    if rocm_smi.is_rocm_smi(text):
        return rocm_smi.parse_rocm_smi(text, source=source, at=at, node=node)
    if amd_smi.is_amd_smi(text):
        return amd_smi.parse_amd_smi(text, source=source, at=at, node=node)
    tally = Tally(source=source)
    full = list(_full_reports(text))
    short = list(_short_reports(text)) or ([] if full else list(dmon_reports(text)))
    if not full and not short and not _is_empty_log(text):
        raise WrongKind(_what_it_is(text))
    for report in full or short:
        try:
            _accept(tally, report, at=at, node=node)
        except Unbelievable as why:
            tally.refuse(report.record, why, text=report.text, into="gpu_telemetry")
    tally.ignored += len(short) if full else 0
    return tally.parsed()


def _full_reports(text: str) -> Iterator[Report]:
    yield from xml_reports(text)
    for match in TEXT_HEADING.finditer(text):
        yield from text_reports(text[match.start() :])
    for match in _CSV_HEADER.finditer(text):
        names = {name.split(" [")[0].strip() for name in match[0].split(",")}
        if names & {"pid", "retired_pages.address", "retired_pages.cause"} or not _names_gpus(names):
            continue
        end = _SECTION_END.search(text, match.end())
        rows = text[match.start() : end.start() if end else len(text)]
        yield from csv_reports(rows, first_line=text.count("\n", 0, match.start()) + 1)


def _names_gpus(names: set[str]) -> bool:
    known = {each for each in names if "." in each}
    identities = {name for names_of in IDENTITY.values() for name in names_of}
    return bool(names & identities) and (bool(known) or len(names & identities) > 1)


def _short_reports(text: str) -> Iterator[Report]:
    for match in TABLE_HEADING.finditer(text):
        end = re.compile(r"^\| *Processes|^#{10,}", re.MULTILINE).search(text, match.end())
        yield from table_reports(text[match.start() : end.start() if end else len(text)], before=text[: match.start()])
    if not _LINKS.search(text) or TABLE_HEADING.search(text):
        yield from list_reports(text)


def _is_empty_log(text: str) -> bool:
    return "<nvidia_smi_log" in text or bool(TEXT_HEADING.search(text)) or "No devices were found" in text


def _what_it_is(text: str) -> str:
    start = text.lstrip()[:400]
    if not start:
        return "the file is empty; expected output of nvidia-smi"
    if start.startswith(("# HELP", "# TYPE")):
        return "found exposition text of an exporter; ingest it as kind metrics"
    if re.search(r"^#\s*gpu\s+pid", start, re.MULTILINE):
        return "found the processes of pmon, expected GPUs; use nvidia-smi -q -x"
    if "," in start.split("\n")[0] and re.search(r"GPU-[0-9a-f-]{8}|\bMiB\b|\bNVIDIA\b|\[N/A\]", start):
        return "found CSV without a header that names the GPUs' columns; use --format=csv, without noheader"
    if LISTED_GPU.search(text):
        return "found links of GPUs, expected measurements; use nvidia-smi -q -x"
    return f"found {start.splitlines()[0][:60]!r}, expected XML, text, CSV, the table or the list of nvidia-smi"


def _accept(tally: Tally, report: Report, *, at: datetime, node: str | None) -> None:
    if report.broken is not None:
        raise report.broken
    values = report.values
    identity = {name: word(first_of(values, names)) for name, names in IDENTITY.items()}
    uuid, serial = (_unmasked(identity[name]) for name in ("uuid", "serial"))
    pci = _pci(identity["pci_address"])
    index = whole(identity["gpu_index"], name="gpu_index")
    device = uuid or pci or (None if index is None else str(index))
    if device is None:
        raise Unbelievable("no_gpu_named", "found no UUID, PCI address or index; expected at least one")
    cells = in_bounds("gpu_telemetry", cells_of(values))
    if not cells and says_broken(values):
        raise Unbelievable("gpu_unreadable", "the tool could read no value of this GPU")
    key: dict[str, Cell] = {
        "node": identity["hostname"] or node or "",
        "device": device,
        "time": written_time(identity["timestamp"] or "") or at,
    }
    if tally.has("inventory", key):
        raise Unbelievable("duplicate_gpu", f"{device} is in this file twice with the same time")
    instances = _instances(report, key, driver=identity["driver_version"])
    shared: dict[str, Cell] = {
        **key,
        "pci_address": pci,
        "gpu_index": index,
        "driver_version": identity["driver_version"],
    }
    if cells:
        labels = {"gpu_uuid": uuid, "gpu_serial": serial, "gpu_model": identity["model"]}
        tally.put("gpu_telemetry", {**shared, **labels, **cells})
    tally.put(
        "inventory",
        {
            **shared,
            **{name: identity[name] for name in ("model", "part_number", "vbios_version", "firmware_version", "slot")},
            "cuda_version": identity["cuda_version"],
            "kind": "gpu",
            "vendor": "NVIDIA",
            "serial": serial,
            "uuid": uuid,
            "memory_bytes": cells.get("memory_total_bytes"),
            "state": "unreadable" if says_broken(values) else None,
            "source": tally.source,
        },
    )
    for row, measured in instances:
        tally.put("gpu_telemetry", {**row, "gpu_uuid": uuid, "gpu_serial": serial, "pci_address": pci, **measured})
        tally.put(
            "inventory",
            {
                **{name: row[name] for name in ("node", "device", "time")},
                "kind": "mig",
                "pci_address": pci,
                "uuid": _text(row.get("uuid")),
                "memory_bytes": measured.get("memory_total_bytes"),
                "source": tally.source,
            },
        )
    tally.accepted += 1


def _instances(
    report: Report, key: Mapping[str, Cell], *, driver: str | None
) -> list[tuple[dict[str, Cell], dict[str, Cell]]]:
    """Return key and cells of each GPU instance; compute instances in the same one share its memory."""
    found: dict[int, tuple[dict[str, Cell], dict[str, Cell]]] = {}
    for values in report.instances:
        instance = whole(word(values.get("gpu_instance_id")), name="gpu_instance_id")
        if instance is None or instance in found:
            continue
        cells = cells_of(
            {
                name.replace("ecc_error_count/volatile_count", "ecc_errors/volatile"): value
                for name, value in values.items()
            }
        )
        row: dict[str, Cell] = {
            **key,
            "device": f"{key['device']}/mig{instance}",
            "mig_instance": str(instance),
            "driver_version": driver,
        }
        found[instance] = (row, in_bounds("gpu_telemetry", cells))
    return list(found.values())


def _text(value: Cell) -> str | None:
    return value if isinstance(value, str) else None


def _unmasked(text: str | None) -> str | None:
    """Return what identifies: a UUID or serial of zeros only was masked, and all masked ones are alike."""
    return None if text is None or _NOTHING.fullmatch(text.removeprefix("GPU-")) else text


def _pci(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return parse_pci_address(text)
    except ValueError as exc:
        raise Unbelievable("bad_pci_address", str(exc)) from exc
