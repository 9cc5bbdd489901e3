"""What `rocm-smi --json` prints about AMD GPUs, as rows of gpu_telemetry and inventory.

Here: the names of rocm-smi over its versions. A record is one card. Not here: what hardware tools share (`reading`).
"""

import re
from collections.abc import Mapping
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
    word,
)
from ops_pipelines.lake.quantities import Parsed

_CARD = re.compile(r'^\s*(?:\[\s*)?\{\s*"(?:card\d{1,4}|system)"\s*:')
_CARD_NAME = re.compile(r"card(\d{1,4})")
_NAMES: Mapping[str, tuple[tuple[str, ...], str]] = {
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
_GENERATIONS = {"2.5": 1.0, "5.0": 2.0, "8.0": 3.0, "16.0": 4.0, "32.0": 5.0, "64.0": 6.0}


def is_rocm_smi(text: str) -> bool:
    """Say whether `text` begins as rocm-smi's JSON does."""
    return _CARD.match(text) is not None


def parse(text: str, *, source: str, at: datetime, node: str | None = None) -> Parsed:
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
                _accept(tally, card, index=int(match[1]), driver=driver, at=at, node=node)
            except Unbelievable as why:
                tally.refuse(name, why, text=str(card)[:1000], into="gpu_telemetry")
    return tally.parsed()


def _accept(
    tally: Tally, card: Mapping[str, object], *, index: int, driver: str | None, at: datetime, node: str | None
) -> None:
    values = {name.lower(): value for name, value in card.items()}
    cells = {column: _number(values, names, unit=unit, name=column) for column, (names, unit) in _NAMES.items()}
    link = _LINK.fullmatch(str(values.get("pcie clock level", "")))
    if link:
        cells |= {"pcie_link_generation": _GENERATIONS.get(link["speed"]), "pcie_link_width": float(link["width"])}
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
        raise Unbelievable("duplicate_gpu", f"{device} stands in this file twice")
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


def _number(values: Mapping[str, object], names: tuple[str, ...], *, unit: str, name: str) -> float | None:
    for each in names:
        value = values.get(each)
        shown = value.strip("()") if isinstance(value, str) else value
        found = number(shown, unit=unit, name=name)
        if found is not None:
            return found
    return None
