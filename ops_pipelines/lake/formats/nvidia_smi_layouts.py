"""The layouts of nvidia-smi's outputs, each taken apart into one report per GPU; and what each calls our columns.

Here: XML (`-q -x`), indented text (`-q`), CSV (`--query-gpu`), the table without options, the list (`-L`); names and
units over all driver versions. Not here: what is believed (`nvidia_smi`). An XML document is never handed to a parser
whole: only what is between `<gpu` and `</gpu>`, so no declaration, entity or DTD is ever read. XML and text share one
form of a name: the path in lower case with underscores, as `pci/bus_id`.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from xml.parsers import expat

from ops_pipelines.lake.formats.reading import Unbelievable, is_absent, is_broken
from ops_pipelines.lake.formats.reading import number as read_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Where one column is. The first name with a value counts."""

    column: str
    names: tuple[str, ...]
    unit: str = ""
    """Of a value that states none: CSV with `nounits`."""


def _names(column: str, names: str, unit: str = "") -> Names:
    return Names(column=column, names=tuple(names.split()), unit=unit)


_MEASURED = (
    _names("utilisation_ratio", "utilization/gpu_util utilization/gpu utilization.gpu", "%"),
    _names("memory_copy_ratio", "utilization/memory_util utilization/memory utilization.memory", "%"),
    _names("encoder_ratio", "utilization/encoder_util utilization/encoder utilization.encoder", "%"),
    _names("decoder_ratio", "utilization/decoder_util utilization/decoder utilization.decoder", "%"),
    _names("memory_used_bytes", "fb_memory_usage/used memory_usage/used memory.used", "mib"),
    _names("memory_free_bytes", "fb_memory_usage/free memory_usage/free memory.free", "mib"),
    _names("memory_reserved_bytes", "fb_memory_usage/reserved memory.reserved", "mib"),
    _names("memory_total_bytes", "fb_memory_usage/total memory_usage/total memory.total", "mib"),
    _names("temperature_celsius", "temperature/gpu_temp temperature/gpu_current_temp temperature/gpu temperature.gpu"),
    _names("memory_temperature_celsius", "temperature/memory_temp temperature/memory_current_temp temperature.memory"),
    _names(
        "temperature_margin_celsius",
        "temperature/gpu_temp_tlimit temperature/gpu_t.limit_temp temperature.gpu.tlimit",
    ),
    _names(
        "power_watts",
        "gpu_power_readings/power_draw power_readings/power_draw gpu_power_readings/average_power_draw "
        "power_readings/average_power_draw gpu_power_readings/instant_power_draw "
        "gpu_power_readings/instantaneous_power_draw power.draw power.draw.average power.draw.instant",
    ),
    _names(
        "power_limit_watts",
        "power_readings/power_limit gpu_power_readings/power_limit gpu_power_readings/requested_power_limit "
        "power_readings/requested_power_limit gpu_power_readings/current_power_limit "
        "power_readings/enforced_power_limit power.limit enforced.power.limit",
    ),
    _names("sm_clock_hertz", "clocks/sm_clock clocks/sm clocks.current.sm clocks.sm", "mhz"),
    _names(
        "memory_clock_hertz", "clocks/mem_clock clocks/memory clocks.current.memory clocks.mem clocks.memory", "mhz"
    ),
    _names(
        "power_throttle_seconds",
        "clocks_event_reasons_counters/clocks_event_reasons_counters_sw_power_cap "
        "clocks_event_reasons_counters/sw_power_capping clocks_event_reasons_counters.sw_power_cap",
        "us",
    ),
    _names(
        "thermal_throttle_seconds",
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_therm_slowdown "
        "clocks_event_reasons_counters/clocks_event_reasons_counters_hw_thermal_slowdown "
        "clocks_event_reasons_counters/hw_thermal_slowdown clocks_event_reasons_counters.hw_thermal_slowdown",
        "us",
    ),
    _names(
        "row_remap_correctable_count",
        "remapped_rows/remapped_row_corr remapped_rows/correctable_error remapped_rows.correctable",
    ),
    _names(
        "row_remap_uncorrectable_count",
        "remapped_rows/remapped_row_unc remapped_rows/uncorrectable_error remapped_rows.uncorrectable",
    ),
    _names("row_remap_pending", "remapped_rows/remapped_row_pending remapped_rows/pending remapped_rows.pending"),
    _names(
        "row_remap_failed",
        "remapped_rows/remapped_row_failure remapped_rows/remapping_failure_occurred remapped_rows.failure",
    ),
    _names(
        "retired_pages_correctable_count",
        "retired_pages/multiple_single_bit_retirement/retired_count retired_pages/single_bit_ecc "
        "retired_pages.single_bit_ecc.count retired_pages.sbe",
    ),
    _names(
        "retired_pages_uncorrectable_count",
        "retired_pages/double_bit_retirement/retired_count retired_pages/double_bit_ecc "
        "retired_pages.double_bit.count retired_pages.dbe",
    ),
    _names(
        "retired_pages_pending",
        "retired_pages/pending_retirement retired_pages/pending_page_blacklist retired_pages/pending_blacklist "
        "retired_pages/pending retired_pages.pending",
    ),
    _names("pcie_replay_count", "pci/replay_counter pci/replays_since_reset pci/replay_counter_since_reset"),
    _names("pcie_transmit_bytes_per_second", "pci/tx_util pci/tx_throughput", "kb/s"),
    _names("pcie_receive_bytes_per_second", "pci/rx_util pci/rx_throughput", "kb/s"),
    _names(
        "pcie_link_generation",
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen pci/gpu_link_info/pcie_generation/current "
        "pcie.link.gen.current pcie.link.gen.gpucurrent",
    ),
    _names(
        "pcie_link_width",
        "pci/pci_gpu_link_info/link_widths/current_link_width pci/gpu_link_info/link_width/current "
        "pcie.link.width.current",
    ),
    _names("fan_ratio", "fan_speed fan.speed", "%"),
)

IDENTITY: Mapping[str, tuple[str, ...]] = {
    "uuid": ("uuid", "gpu_uuid"),
    "serial": ("serial", "serial_number", "gpu_serial"),
    "model": ("product_name", "name", "gpu_name"),
    "pci_address": ("pci/pci_bus_id", "pci/bus_id", "pci.bus_id", "gpu_bus_id", "@pci"),
    "vbios_version": ("vbios_version",),
    "firmware_version": ("gsp_firmware_version",),
    "part_number": ("gpu_part_number", "board_part_number"),
    "slot": ("platform_info/slot_number", "platforminfo/slot_number", "platform.slot_number"),
    "gpu_index": ("index", "@index"),
    "driver_version": ("driver_version", "@driver_version"),
    "cuda_version": ("cuda_version", "@cuda_version"),
    "hostname": ("hostname",),
    "timestamp": ("timestamp", "@timestamp"),
}
"""`@` names what is beside the GPU's own report: in its heading, or once for all GPUs."""

_ERROR_COUNTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ecc_correctable_{}_count": (
        ("ecc_errors/{}/sram_correctable", "ecc_errors/{}/dram_correctable"),
        ("ecc_errors/{}/single_bit/total",),
        ("ecc.errors.corrected.{}.total",),
    ),
    "ecc_uncorrectable_{}_count": (
        (
            "ecc_errors/{}/sram_uncorrectable",
            "ecc_errors/{}/sram_uncorrectable_parity",
            "ecc_errors/{}/sram_uncorrectable_secded",
            "ecc_errors/{}/sram_uncorrectable_sec-ded",
            "ecc_errors/{}/dram_uncorrectable",
        ),
        ("ecc_errors/{}/double_bit/total",),
        ("ecc.errors.uncorrected.{}.total",),
    ),
}
"""Column -> ways to count it; the names of one way are added up."""

_REASONS: Mapping[int, tuple[str, ...]] = {
    0x001: ("gpu_idle", "idle"),
    0x002: ("applications_clocks_setting", "user_defined_clocks"),
    0x004: ("sw_power_cap",),
    0x008: ("hw_slowdown",),
    0x010: ("sync_boost",),
    0x020: ("sw_thermal_slowdown",),
    0x040: ("hw_thermal_slowdown",),
    0x080: ("hw_power_brake_slowdown", "hw_power_brake"),
    0x100: ("display_clocks_setting", "display_clock_setting"),
}
"""Bit of nvmlClocksEventReasons -> the names that nvidia-smi has for it."""

_REASON_FORMS = (
    "clocks_event_reasons/clocks_event_reason_{}",
    "clocks_throttle_reasons/clocks_throttle_reason_{}",
    "clocks_event_reasons/{}",
    "clocks_throttle_reasons/{}",
    "clocks_event_reasons/hw_slowdown/{}",
    "clocks_throttle_reasons/hw_slowdown/{}",
    "clocks_event_reasons.{}",
    "clocks_throttle_reasons.{}",
)

_ACTIONS = {
    "none": 0.0,
    "reset": 1.0,
    "gpu reset": 1.0,
    "reboot": 2.0,
    "node reboot": 2.0,
    "drain p2p": 3.0,
    "drain and reset": 4.0,
    "recover imex domain": 5.0,
}
"""What the driver asks for -> nvmlDeviceGpuRecoveryAction_t."""


def first_of(report: Mapping[str, str], names: Sequence[str]) -> str | None:
    """Return the first value under one of `names` that is one, None if there is none."""
    return next((report[name] for name in names if not is_absent(report.get(name, ""))), None)


def cells_of(report: Mapping[str, str]) -> dict[str, float | None]:
    """Return the measured cells of one GPU's report. Raises Unbelievable if a value is no number."""
    cells = {each.column: _number(report, each) for each in _MEASURED}
    for scope in ("volatile", "aggregate"):
        for column, ways in _ERROR_COUNTS.items():
            cells[column.format(scope)] = _added(report, [[name.format(scope) for name in way] for way in ways])
    cells["clock_event_reasons"] = _reasons(report)
    action = report.get("gpu_recovery_action", "").strip().lower()
    cells["recovery_action"] = _ACTIONS.get(action)
    if action and action not in _ACTIONS and not is_absent(action):
        raise Unbelievable("bad_value", f"recovery_action: found {action[:80]!r}, expected {', '.join(_ACTIONS)}")
    return cells


def says_broken(report: Mapping[str, str]) -> bool:
    """Say whether some value could not be read: `ERR!`, `[Unknown Error]`, `[GPU requires reset]`."""
    return any(is_broken(value) for value in report.values())


def _number(report: Mapping[str, str], names: Names) -> float | None:
    found = first_of(report, names.names)
    return None if found is None else read_number(found, unit=names.unit, name=names.column)


def _added(report: Mapping[str, str], ways: Sequence[Sequence[str]]) -> float | None:
    for way in ways:
        counts = [read_number(report[name], name=name) for name in way if name in report]
        known = [count for count in counts if count is not None]
        if known:
            return sum(known)
    return None


def _reasons(report: Mapping[str, str]) -> float | None:
    mask = first_of(report, ("clocks_event_reasons.active", "clocks_throttle_reasons.active"))
    if mask is not None:
        return read_number(mask, name="clock_event_reasons")
    bits: list[int] = []
    for bit, names in _REASONS.items():
        shown = first_of(report, [form.format(name) for form in _REASON_FORMS for name in names])
        if shown is not None:
            bits.append(bit if read_number(shown, name="clock_event_reasons") else 0)
    return float(sum(bits)) if bits else None


_MAX_GPU_CHARACTERS = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one output says about one GPU."""

    record: str
    text: str
    values: Mapping[str, str] = field(default_factory=dict)
    instances: Sequence[Mapping[str, str]] = ()
    """Its MIG devices."""
    broken: Unbelievable | None = None
    """Why it cannot be taken apart."""


_GPU_BLOCK = re.compile(
    r"<gpu(?=[\s>]).*?(?P<end></gpu\s*>|(?=<gpu[\s>])|(?=</nvidia_smi_log)|(?=<nvidia_smi_log)|\Z)", re.DOTALL
)
_LOG = re.compile(r"<nvidia_smi_log(?=[\s>/])")
_HEAD = re.compile(r"<(timestamp|driver_version|cuda_version|attached_gpus)>([^<]{0,200})</")
_LOOSE = re.compile(r"&(?!(?:amp|lt|gt|quot|apos|#\d{1,7}|#x[0-9a-fA-F]{1,6});)")
_UNPRINTABLE = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000)], "\ufffd")


def xml_reports(text: str) -> Iterator[Report]:
    """Yield the GPUs of `nvidia-smi -q -x`, over one or more documents in a row."""
    starts = [match.start() for match in _LOG.finditer(text)]
    number, line, counted = 0, 1, 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=False):
        log = text[start:end]
        blocks = list(_GPU_BLOCK.finditer(log))
        head = {f"@{name}": value for name, value in _HEAD.findall(log[: blocks[0].start()] if blocks else log)}
        is_whole_host = head.get("@attached_gpus", "").strip() == str(len(blocks))
        for index, block in enumerate(blocks):
            number += 1
            line += text.count("\n", counted, start + block.start())
            counted = start + block.start()
            values = {**head, "@index": str(index)} if is_whole_host else head
            yield _xml_report(block, f"gpu {number}, line {line}", values, first_line=line)


def _xml_report(block: re.Match[str], record: str, head: Mapping[str, str], *, first_line: int) -> Report:
    body = block[0]
    try:
        if len(body) > _MAX_GPU_CHARACTERS:
            raise Unbelievable(
                "record_too_long", f"found {len(body)} characters, expected {_MAX_GPU_CHARACTERS} at most"
            )
        if not block["end"]:
            raise Unbelievable("truncated_record", f"found no </gpu> for the <gpu> of line {first_line}")
        values, instances = _Elements(first_line=first_line).read(body)
    except Unbelievable as why:
        return Report(record=record, text=body[:1000], broken=why)
    return Report(record=record, text=body[:1000], values={**head, **values}, instances=instances)


class _Elements:
    """Collects the text of one GPU's elements under their paths; a `mig_device` gets a map of its own."""

    def __init__(self, *, first_line: int) -> None:
        self._first_line = first_line
        self._path: list[str] = []
        self._texts: list[list[str]] = []
        self._values: dict[str, str] = {}
        self._instances: list[dict[str, str]] = []
        self._instance_depth = 0

    def read(self, body: str) -> tuple[dict[str, str], list[dict[str, str]]]:
        """Return the GPU's values and its MIG devices. Raises Unbelievable(`malformed_xml`)."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(_LOOSE.sub("&amp;", body.translate(_UNPRINTABLE)).encode(), True)
        except expat.ExpatError as exc:
            line = self._first_line + exc.lineno - 1
            raise Unbelievable("malformed_xml", f"{expat.ErrorString(exc.code)}, line {line}") from exc
        return self._values, self._instances

    def _start(self, name: str, attributes: Mapping[str, str]) -> None:
        self._path.append(name.lower())
        self._texts.append([])
        if len(self._path) == 1:
            self._values["@pci"] = attributes.get("id", "")
        elif name == "mig_device" and not self._instance_depth:
            self._instance_depth = len(self._path)
            self._instances.append({})

    def _characters(self, text: str) -> None:
        if self._texts:
            self._texts[-1].append(text)

    def _end(self, name: str) -> None:
        text = "".join(self._texts.pop()).strip()
        inside = self._instance_depth
        into, path = (self._instances[-1], self._path[inside:]) if inside else (self._values, self._path[1:])
        if path and text:
            into.setdefault("/".join(path), text)
        if inside == len(self._path):
            self._instance_depth = 0
        self._path.pop()


_GPU_HEADING = re.compile(r"GPU (?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*")
_TEXT_LINE = re.compile(r"(?P<indent>[ \t]*)(?P<name>[^:]*[^:\s])\s*(?::(?: (?P<value>.*))?)?")
TEXT_HEADING = re.compile(r"^=+NVSMI LOG=+\s*$", re.MULTILINE)


def text_reports(text: str) -> Iterator[Report]:
    """Yield the GPUs of `nvidia-smi -q`. `text` begins at a heading `NVSMI LOG`; what follows the log is left out."""
    head: dict[str, str] = {}
    gpus: list[tuple[str, int, list[str]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        heading = _GPU_HEADING.fullmatch(line)
        if heading:
            gpus.append((heading["pci"], number, []))
        elif gpus:
            if line.startswith(("#", "+", "|", "=")):
                break
            gpus[-1][2].append(line)
        elif " : " in line:
            name, value = line.split(" : ", 1)
            head[f"@{_name(name)}"] = value.strip()
    is_whole_host = head.get("@attached_gpus") == str(len(gpus))
    for index, (pci, number, lines) in enumerate(gpus):
        values, instances = _indented(lines)
        place = {"@pci": pci, "@index": str(index)} if is_whole_host else {"@pci": pci}
        yield Report(
            record=f"gpu {pci}, line {number}",
            text=" ".join(" ".join(lines[:40]).split()),
            values={**head, **place, **values},
            instances=instances,
        )


def _name(text: str) -> str:
    name = "_".join(text.lower().split())
    return {"gpu_uuid": "uuid"}.get(name, name)


def _indented(lines: Sequence[str]) -> tuple[dict[str, str], list[dict[str, str]]]:
    values: dict[str, str] = {}
    instances: list[dict[str, str]] = []
    path: list[tuple[int, str]] = []
    for line in lines:
        match = _TEXT_LINE.fullmatch(line.rstrip())
        if match is None:
            continue
        indent = len(match["indent"].expandtabs(4))
        while path and path[-1][0] >= indent:
            path.pop()
        name = _name(match["name"])
        if name == "mig_device" and match["value"] is None:
            instances.append({})
        names = [*(each for _, each in path), name]
        if match["value"] is not None:
            into, names = (instances[-1], names[1:]) if names[0] == "mig_device" and instances else (values, names)
            into.setdefault("/".join(names), match["value"].strip())
        path.append((indent, name))
    return values, instances


def csv_reports(text: str, *, first_line: int) -> Iterator[Report]:
    """Yield the rows of `--query-gpu` CSV; its first line is the header. A row may end at a line break only."""
    header, *lines = text.split("\n")
    columns = [column.split(" [")[0].strip() for column in next(csv.reader([header], skipinitialspace=True))]
    for number, line in enumerate(lines, start=first_line + 1):
        if not line.strip():
            continue
        record = f"line {number}"
        try:
            cells = next(csv.reader([line], skipinitialspace=True, strict=True))
        except (csv.Error, StopIteration) as exc:
            yield Report(record=record, text=line, broken=Unbelievable("malformed_row", f"found no CSV ({exc})"))
            continue
        if [cell.split(" [")[0].strip() for cell in cells] == columns:
            continue
        if len(cells) != len(columns):
            why = Unbelievable("wrong_number_of_fields", f"found {len(cells)} fields, expected {len(columns)}")
            yield Report(record=record, text=line, broken=why)
            continue
        values = {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
        yield Report(record=record, text=line, values={"@time_in_row": "", **values})


_TABLE_FIRST = re.compile(
    r"\|\s+(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*"
    r"\|\s+(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s+\S+\s*\|\s*(?P<ecc>\S+)\s*\|"
)
_TABLE_SECOND = re.compile(
    r"\|\s*(?P<fan>\S+)\s+(?P<temperature>\S+)\s+(?P<state>\S+)\s+(?P<draw>\S+(?: Error\])?)\s*/\s*(?P<cap>\S+)\s*"
    r"\|\s*(?P<used>\S+)\s*/\s*(?P<total>\S+)\s*\|\s*(?P<busy>\S+)\s+(?P<mode>\S.*?)\s*\|"
)
TABLE_HEADING = re.compile(
    r"^\|\s+NVIDIA-SMI\s+(?P<version>\S+)\s+Driver Version:\s*(?P<driver>\S+)(?:\s+CUDA Version:\s*(?P<cuda>\S+))?",
    re.MULTILINE,
)
_TABLE_TIME = re.compile(r"^[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}\s*$", re.MULTILINE)


def table_reports(text: str, *, before: str) -> Iterator[Report]:
    """Yield the GPUs of the table, `text` beginning at its heading; `before` is what is above it, with the time."""
    heading = TABLE_HEADING.search(text)
    times = _TABLE_TIME.findall(before[-300:])
    head = {"@driver_version": heading["driver"], "@cuda_version": heading["cuda"] or ""} if heading else {}
    if times:
        head["@timestamp"] = times[-1]
    lines = text.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        first = _TABLE_FIRST.match(line)
        if first is None:
            continue
        record, shown = f"gpu {first['index']}", f"{line} {below}"
        second = _TABLE_SECOND.match(below)
        if second is None:
            why = Unbelievable("malformed_row", "found no second line with temperature, power and memory")
            yield Report(record=record, text=shown, broken=why)
            continue
        yield Report(
            record=record,
            text=shown,
            values={
                **head,
                "@index": first["index"],
                "@pci": first["pci"],
                "name": first["name"],
                "ecc_errors/volatile/double_bit/total": first["ecc"],
                "fan.speed": second["fan"],
                "temperature.gpu": second["temperature"],
                "power.draw": second["draw"],
                "power.limit": second["cap"],
                "memory.used": second["used"],
                "memory.total": second["total"],
                "utilization.gpu": second["busy"],
            },
        )


LISTED_GPU = re.compile(
    r"^GPU (?P<index>\d{1,4}): (?P<name>.{1,200}?) \(UUID: (?P<uuid>[^)]{1,80})\)\s*$", re.MULTILINE
)


def list_reports(text: str) -> Iterator[Report]:
    """Yield the GPUs of `nvidia-smi -L`. It names MIG devices without their instance ids: they are left out."""
    for match in LISTED_GPU.finditer(text):
        values = {"@index": match["index"], "name": match["name"], "uuid": match["uuid"]}
        yield Report(record=f"gpu {match['index']}", text=match[0], values=values)
