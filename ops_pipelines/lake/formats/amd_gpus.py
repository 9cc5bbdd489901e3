"""What `amd-smi` and the older `rocm-smi` print about AMD GPUs as JSON, as rows of gpu_telemetry and inventory.

Here: the names of both tools over their versions. A record is one GPU. Not here: what hardware tools share (`reading`).
"""

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from ops_pipelines.core.identity import parse_pci_address
from ops_pipelines.lake.formats.reading import (
    BrokenJson,
    Cell,
    Tally,
    Unbelievable,
    in_bounds,
    json_documents,
    number,
    whole,
    word,
)
from ops_pipelines.lake.quantities import Parsed

_START = re.compile(r'\s*(?:\{\s*"(?:gpu_data|system)"\s*:|(?:\[\s*)?\{\s*"gpu"\s*:\s*"?\d)')
_NAMES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "utilisation_ratio": (("usage/gfx_activity", "gfx", "gfx_util"), "%"),
    "memory_copy_ratio": (("usage/umc_activity", "mem", "mem_util"), "%"),
    "memory_used_bytes": (("mem_usage/used_vram", "vram_used"), "mb"),
    "memory_free_bytes": (("mem_usage/free_vram", "vram_free"), "mb"),
    "memory_total_bytes": (("mem_usage/total_vram", "vram_total", "vram/size", "vram/vram_size"), "mb"),
    "temperature_celsius": (("temperature/hotspot", "hotspot_temperature", "temperature/edge"), ""),
    "memory_temperature_celsius": (("temperature/mem", "memory_temperature"), ""),
    "power_watts": (
        ("power/socket_power", "power/current_power", "power/average_socket_power", "power_usage"),
        "",
    ),
    "power_limit_watts": (("limit/max_power", "limit/socket_power"), ""),
    "sm_clock_hertz": (("clock/gfx_0/clk", "clock/gfx/clk", "clock/gfx/cur_clk", "gfx_clock", "gfx_clk"), "mhz"),
    "memory_clock_hertz": (("clock/mem_0/clk", "clock/mem/clk", "clock/mem/cur_clk", "mem_clock"), "mhz"),
    "ecc_correctable_volatile_count": (("ecc/total_correctable_count", "ecc/total_correctable"), ""),
    "ecc_uncorrectable_volatile_count": (("ecc/total_uncorrectable_count", "ecc/total_uncorrectable"), ""),
    "pcie_replay_count": (("pcie/replay_count", "pcie/pcie_replay_count"), ""),
    "pcie_link_width": (("pcie/width", "pcie/current_lanes"), ""),
    "fan_ratio": (("fan/usage",), "%"),
}
_GENERATIONS = {2.5: 1.0, 5.0: 2.0, 8.0: 3.0, 16.0: 4.0, 32.0: 5.0, 64.0: 6.0}
"""GT/s of a lane -> generation of PCIe."""


def is_amd_smi(text: str) -> bool:
    """Say whether `text` begins as amd-smi's JSON does."""
    return _START.match(text) is not None


def parse_amd_smi(text: str, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the GPUs of amd-smi's JSON. The caller knows that it is (`is_amd_smi`)."""
    tally = Tally(source=source)
    number_of = 0
    for document in json_documents(text):
        if isinstance(document, BrokenJson):
            why = Unbelievable("malformed_json", document.detail)
            tally.refuse(f"line {document.line}", why, text=document.text, into="gpu_telemetry")
            continue
        for entry in _entries(document):
            number_of += 1
            try:
                if not isinstance(entry, dict):
                    raise Unbelievable("bad_value", f"found {type(entry).__name__}, expected an object")
                _accept(tally, entry, at=at, node=node)
            except Unbelievable as why:
                tally.refuse(f"gpu {number_of}", why, text=str(entry)[:1000], into="gpu_telemetry")
    return tally.parsed()


def _entries(document: object) -> Iterator[object]:
    held = document.get("gpu_data", document) if isinstance(document, dict) else document
    yield from held if isinstance(held, list) else [held]


def _accept(tally: Tally, entry: Mapping[str, object], *, at: datetime, node: str | None) -> None:
    values = dict(_paths(entry))
    cells = {column: _number(values, names, unit=unit, name=column) for column, (names, unit) in _NAMES.items()}
    speed = values.get("pcie/speed", "").upper().removesuffix("GT/S").strip()
    cells["pcie_link_generation"] = _GENERATIONS.get(number(speed, name="pcie/speed") or 0.0)
    bounded = in_bounds("gpu_telemetry", cells)
    index = whole(values.get("gpu"), name="gpu")
    uuid, pci = word(values.get("uuid")), _pci(_text(values, "bus/bdf", "bdf"))
    device = uuid or pci or (None if index is None else str(index))
    if device is None:
        raise Unbelievable("no_gpu_named", "found no gpu, UUID or BDF; expected at least one")
    key: dict[str, Cell] = {"node": node or "", "device": device, "time": at}
    if tally.has("inventory", key):
        raise Unbelievable("duplicate_gpu", f"{device} is in this file twice")
    serial = _text(values, "asic/asic_serial", "board/product_serial")
    model = _text(values, "asic/market_name", "board/product_name")
    shared: dict[str, Cell] = {**key, "pci_address": pci, "gpu_index": index}
    shared["driver_version"] = _text(values, "driver/version", "driver/driver_version")
    if bounded:
        labels = {"gpu_uuid": uuid, "gpu_serial": serial, "gpu_model": model}
        tally.put("gpu_telemetry", {**shared, **labels, **bounded})
    inventory: dict[str, Cell] = {
        "kind": "gpu",
        "vendor": "AMD",
        "model": model,
        "part_number": _text(values, "board/model_number"),
        "serial": serial,
        "uuid": uuid,
        "vbios_version": _text(values, "vbios/version", "vbios/part_number"),
        "memory_bytes": bounded.get("memory_total_bytes"),
        "source": tally.source,
    }
    tally.put("inventory", {**shared, **inventory})
    tally.accepted += 1


def _paths(entry: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the paths of what an object states; `{"value": 50, "unit": "%"}` is one value."""
    for name, value in entry.items():
        path = f"{above}{name.lower()}"
        if isinstance(value, dict) and "value" in value:
            yield path, f"{value['value']} {value.get('unit') or ''}".strip()
        elif isinstance(value, dict):
            if path.count("/") < 4:
                yield from _paths(value, f"{path}/")
        elif isinstance(value, str | int | float):
            yield path, str(value)


def _number(values: Mapping[str, str], names: tuple[str, ...], *, unit: str, name: str) -> float | None:
    found = (number(values.get(each), unit=unit, name=name) for each in names)
    return next((value for value in found if value is not None), None)


def _text(values: Mapping[str, str], *names: str) -> str | None:
    return next((found for name in names if (found := word(values.get(name)))), None)


def _pci(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return parse_pci_address(text)
    except ValueError as exc:
        raise Unbelievable("bad_pci_address", str(exc)) from exc


_CARD = re.compile(r'^\s*(?:\[\s*)?\{\s*"(?:card\d{1,4}|system)"\s*:')
_CARD_NAME = re.compile(r"card(\d{1,4})")
_CARD_COLUMNS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "utilisation_ratio": (("gpu use (%)",), "%"),
    "memory_copy_ratio": (("gpu memory read/write activity (%)", "gpu memory use (%)"), "%"),
    "memory_used_bytes": (("vram total used memory (b)",), ""),
    "memory_total_bytes": (("vram total memory (b)",), ""),
    "temperature_celsius": (
        ("temperature (sensor junction) (c)", "temperature (sensor edge) (c)", "temperature (sensor #1) (c)"),
        "",
    ),
    "memory_temperature_celsius": (("temperature (sensor memory) (c)",), ""),
    "power_watts": (
        (
            "average graphics package power (w)",
            "current socket graphics package power (w)",
            "current graphics package power (w)",
        ),
        "",
    ),
    "power_limit_watts": (("max graphics package power (w)",), ""),
    "sm_clock_hertz": (("sclk clock speed:",), "mhz"),
    "memory_clock_hertz": (("mclk clock speed:",), "mhz"),
    "pcie_replay_count": (("pcie replay count",), ""),
    "fan_ratio": (("fan speed (%)",), "%"),
}
_LINK = re.compile(r".*\((?P<speed>\d{1,2}(?:\.\d)?)GT/s x(?P<width>\d{1,2})\).*", re.ASCII)
_CARD_GENERATIONS = {"2.5": 1.0, "5.0": 2.0, "8.0": 3.0, "16.0": 4.0, "32.0": 5.0, "64.0": 6.0}


def is_rocm_smi(text: str) -> bool:
    """Say whether `text` begins as rocm-smi's JSON does."""
    return _CARD.match(text) is not None


def parse_rocm_smi(text: str, *, source: str, at: datetime, node: str | None = None) -> Parsed:
    """Return the cards of rocm-smi's JSON. The caller knows that it is (`is_rocm_smi`)."""
    tally = Tally(source=source)
    for document in json_documents(text):
        if isinstance(document, BrokenJson):
            why = Unbelievable("malformed_json", document.detail)
            tally.refuse(f"line {document.line}", why, text=document.text, into="gpu_telemetry")
            continue
        cards = document if isinstance(document, dict) else {}
        system = cards.get("system")
        driver = word(system.get("Driver version")) if isinstance(system, dict) else None
        for name, card in cards.items():
            match = _CARD_NAME.fullmatch(name)
            if match is None:
                continue
            try:
                if not isinstance(card, dict):
                    raise Unbelievable("bad_value", f"found {type(card).__name__}, expected an object")
                _accept_card(tally, card, index=int(match[1]), driver=driver, at=at, node=node)
            except Unbelievable as why:
                tally.refuse(name, why, text=str(card)[:1000], into="gpu_telemetry")
    return tally.parsed()


def _accept_card(
    tally: Tally, card: Mapping[str, object], *, index: int, driver: str | None, at: datetime, node: str | None
) -> None:
    values = {name.lower(): value for name, value in card.items()}
    cells = {
        column: _card_number(values, names, unit=unit, name=column) for column, (names, unit) in _CARD_COLUMNS.items()
    }
    link = _LINK.fullmatch(str(values.get("pcie clock level", "")))
    if link:
        cells |= {"pcie_link_generation": _CARD_GENERATIONS.get(link["speed"]), "pcie_link_width": float(link["width"])}
    bounded = in_bounds("gpu_telemetry", cells)
    pci = word(values.get("pci bus"))
    try:
        pci = None if pci is None else parse_pci_address(pci)
    except ValueError as exc:
        raise Unbelievable("bad_pci_address", str(exc)) from exc
    uuid = word(values.get("unique id"))
    device = uuid or pci or str(index)
    model = next(
        (found for name in ("card series", "device name", "card model") if (found := word(values.get(name)))), None
    )
    key: dict[str, Cell] = {"node": node or "", "device": device, "time": at}
    if tally.has("inventory", key):
        raise Unbelievable("duplicate_gpu", f"{device} is in this file twice")
    serial = word(values.get("serial number"))
    shared: dict[str, Cell] = {**key, "pci_address": pci, "gpu_index": index, "driver_version": driver}
    if bounded:
        labels = {"gpu_uuid": uuid, "gpu_serial": serial, "gpu_model": model}
        tally.put("gpu_telemetry", {**shared, **labels, **bounded})
    inventory = {
        "kind": "gpu",
        "vendor": word(values.get("card vendor")) or "AMD",
        "model": model,
        "part_number": word(values.get("card sku")),
        "serial": serial,
        "uuid": uuid,
        "vbios_version": word(values.get("vbios version")),
        "memory_bytes": bounded.get("memory_total_bytes"),
        "source": tally.source,
    }
    tally.put("inventory", {**shared, **inventory})
    tally.accepted += 1


def _card_number(values: Mapping[str, object], names: tuple[str, ...], *, unit: str, name: str) -> float | None:
    for each in names:
        value = values.get(each)
        shown = value.strip("()") if isinstance(value, str) else value
        found = number(shown, unit=unit, name=name)
        if found is not None:
            return found
    return None
