"""Rows of `monitoring_coverage` for people: what is missing at the end of the hour, one line a cause, not a series."""

from collections import defaultdict
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

_SHOWN = 5
NOT_THERE = "no device of this kind reports"
"""Why a kind's quantities are missing where the devices themselves are: they say it already."""

_Key = tuple[str, str, str]
_Row = dict[str, object]


def list_missing(coverage: pa.Table) -> list[dict[str, object]]:
    """Return what is missing at the end of the hour, longest first.

    A silent node hides its layers, a silent layer its devices; lines that share what, why and the minute are one, with
    `what`, `where` (up to five), `count`, `missing_since` (text, UTC) and `because`. Empty: nothing is missing.
    """
    rows = coverage.filter(pc.is_valid(coverage["missing_since"])).to_pylist()
    keys = {_key(row) for row in rows}
    series: defaultdict[tuple[str, str, str, datetime], list[str]] = defaultdict(list)
    for row in rows:
        node, device, quantity = _key(row)
        if row["because"] != NOT_THERE and not _is_hidden(node, device, quantity, keys):
            since = row["missing_since"].replace(second=0, microsecond=0)
            series[node, device, str(row["because"] or ""), since].append(quantity)
    causes: defaultdict[tuple[str, str, datetime], list[str]] = defaultdict(list)
    for (node, device, because, since), quantities in series.items():
        causes[_what(device, quantities), because, since].append(_where(node, device))
    lines = sorted(causes.items(), key=lambda item: (item[0][2], item[0][0], item[0][1]))
    return [
        {
            "what": what,
            "where": _some(sorted(where)),
            "count": len(where),
            "missing_since": f"{since:%Y-%m-%d %H:%M}Z",
            "because": because,
        }
        for (what, because, since), where in lines
    ]


def _key(row: _Row) -> _Key:
    return str(row["node"]), str(row["device"]), str(row["quantity"])


def _is_hidden(node: str, device: str, quantity: str, keys: set[_Key]) -> bool:
    if not node:
        return bool(device) and not device.startswith("* ") and ("", "", f"{quantity.split('.')[0]}.*") in keys
    if (node, "", "*") in keys:
        return (device, quantity) != ("", "*")
    layer = f"{quantity.split('.')[0]}.*"
    return (node, "", layer) in keys and (device, quantity) != ("", layer)


def _what(device: str, quantities: list[str]) -> str:
    if quantities == ["*"]:
        return "everything"
    names = sorted(quantities)
    table = names[0].split(".")[0]
    if names[0].endswith(".*"):
        return f"{table} of a device" if device else f"all of {table}"
    return f"{table}: {_some([name.split('.', 1)[1] for name in names])}"


def _where(node: str, device: str) -> str:
    if device.startswith("* ") and not node:
        return f"all {device[2:]}"
    return " ".join(part for part in (node, device) if part) or "the cluster"


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
