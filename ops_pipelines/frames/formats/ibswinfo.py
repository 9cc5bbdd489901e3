"""What `ibswinfo` prints about a switch, as rows of facility_telemetry and inventory.

A record is the switch itself, its temperature, one power supply or one fan. Not here: ports (`infiniband`).
"""

import re
from collections.abc import Mapping
from datetime import datetime

from ops_pipelines.frames.formats.reading import Cell, Unbelievable, in_bounds, number, word
from ops_pipelines.frames.formats.tally import Tally

_MARK = re.compile(r"^(?:part number|serial number|PSID|GUID)\s*\|", re.MULTILINE)
_RULE = re.compile(r"[=-]{5,}")
_SUPPLY = re.compile(r"PSU(?P<number>\d{1,2}) status", re.ASCII)
_FAN = re.compile(r"fan#(?P<number>\d{1,3}) \(rpm\)", re.ASCII)
_HEALTH = {"ok": 1.0, "error": 0.0, "err": 0.0, "fail": 0.0, "failed": 0.0, "absent": None, "fatal": 0.0}


def is_ibswinfo(text: str) -> bool:
    """Say whether `text` is a report of ibswinfo."""
    return len(_MARK.findall(text)) >= 2


def add(tally: Tally, text: str, *, at: datetime, node: str | None, place: str = "") -> None:
    """Add the components of one switch to `tally`; `place` goes before each record's name."""
    about, components, title = _sections(text)
    guid = word(about.get("GUID", "")) or word(about.get("serial number", ""))
    switch = guid or "switch"
    key: dict[str, Cell] = {"node": node or "", "device": switch, "time": at}
    tally.put(
        "inventory",
        {
            **key,
            "kind": "switch",
            "model": word(about.get("product name", "")) or title,
            "vendor": "Mellanox" if title and "Mellanox" in title else None,
            "part_number": word(about.get("part number", "")),
            "serial": word(about.get("serial number", "")),
            "uuid": word(about.get("GUID", "")),
            "firmware_version": word(about.get("firmware version", "")),
            "source": tally.source,
        },
    )
    tally.accepted += 1
    for name, values in components.items():
        try:
            _component(tally, name, values, switch=key)
        except Unbelievable as why:
            shown = " ".join(f"{each}={value}" for each, value in values.items())
            tally.refuse(f"{place}{name}", why, text=shown, into="facility_telemetry")


def _sections(text: str) -> tuple[dict[str, str], dict[str, dict[str, str]], str | None]:
    about: dict[str, str] = {}
    components: dict[str, dict[str, str]] = {}
    title, current = None, about
    for line in text.split("\n"):
        if _RULE.fullmatch(line.strip()):
            current = about
            continue
        name, bar, value = (part.strip() for part in line.partition("|"))
        if not bar:
            title = title or word(line)
            continue
        supply, fan = _SUPPLY.fullmatch(name), _FAN.fullmatch(name)
        if supply:
            current = components.setdefault(f"PSU{supply['number']}", {"status": value})
        elif fan:
            current = components.setdefault(f"fan{fan['number']}", {"rpm": value})
        elif name == "temperature (C)":
            components.setdefault("temperature", {"celsius": value})
        else:
            current.setdefault(name, value)
    return about, components, title


def _component(tally: Tally, name: str, values: Mapping[str, str], *, switch: Mapping[str, Cell]) -> None:
    key = {**switch, "device": f"{switch['device']}/{name}"}
    cells = in_bounds(
        "facility_telemetry",
        {
            "temperature_celsius": number(values.get("celsius"), name="temperature"),
            "fan_revolutions_per_minute": number(values.get("rpm"), name="fan"),
            "power_watts": number(values.get("power (W)"), name="power"),
            "healthy": _healthy(values),
        },
    )
    is_supply = name.startswith("PSU")
    serial, part = word(values.get("S/N", "")), word(values.get("P/N", ""))
    if not cells and not serial:
        tally.ignored += 1
        return
    if cells:
        tally.put("facility_telemetry", {**key, **cells})
    if is_supply:
        state = word(values.get("status", ""))
        tally.put(
            "inventory",
            {**key, "kind": "psu", "part_number": part, "serial": serial, "state": state, "source": tally.source},
        )
    tally.accepted += 1


def _healthy(values: Mapping[str, str]) -> float | None:
    """Return 1 if every status of the component is OK, 0 if one is not, None if it states none."""
    found: list[float] = []
    for name in ("status", "DC power", "fan status"):
        shown = values.get(name, "").lower()
        if shown and shown not in _HEALTH:
            raise Unbelievable("bad_value", f"{name}: found {shown[:60]!r}, expected OK or ERROR")
        health = _HEALTH.get(shown)
        if health is not None:
            found.append(health)
    return min(found) if found else None
