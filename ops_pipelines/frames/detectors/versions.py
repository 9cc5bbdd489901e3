"""Versions of drivers and firmware against the declared release; where none is declared, against nearly all others.

A roll-out under way is no drift: without a declared release only few parts may stand apart from their model.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import GAP_SECONDS, carried, layer_of, told
from ops_pipelines.frames.panels.detection import Detection
from ops_pipelines.frames.panels.panel import Layer, Panel, Part

_Key = TypeVar("_Key")
DRIVER = "driver"
"""Key of the release under which the driver's version stands; firmware stands under the name of its model."""
LEAST_PEERS = 4
"""Assumption: of fewer nodes (or parts) nobody knows what is usual."""
FEW_RATIO = 0.1
"""Assumption: who stands apart is one alone, or a tenth of its model at most; more are a roll-out."""


def detect_versions(panel: Panel, *, release: Mapping[str, str]) -> Iterator[Detection]:
    """Yield VERSION_DRIFT: for the driver of a node, for the firmware of a GPU or port, while it reports.

    `release` says what is declared: the driver under DRIVER, firmware under the part's model. Firmware of disks is
    compared with the release only: one model is sold with many.
    """
    yield from _detect_drivers(panel, release)
    for layer in (panel.gpus, panel.ports):
        yield from _detect_firmware(panel, layer, release, by_majority=True)
    yield from _detect_firmware(panel, panel.disks, release, by_majority=False)


def _detect_drivers(panel: Panel, release: Mapping[str, str]) -> Iterator[Detection]:
    gpus = panel.gpus
    if not gpus.parts or not gpus.values:
        return
    by_node: dict[str, list[int]] = {}
    for column, part in enumerate(gpus.parts):
        if part.driver:
            by_node.setdefault(part.node, []).append(column)
    first = {node: gpus.parts[columns[0]] for node, columns in by_node.items()}
    wanted = _wanted({node: (part.model, part.driver) for node, part in first.items()}, release.get(DRIVER))
    apart = [node for node, part in first.items() if wanted[node] not in (None, part.driver)]
    if not apart:
        return
    present = np.stack([gpus.present[:, by_node[node]].any(axis=1) for node in apart], axis=1)
    yield from told(
        panel,
        layer_of(panel, (Part(node=first[node].node) for node in apart)),
        carried(present, present, panel.rows_in(GAP_SECONDS)),
        columns=np.arange(len(apart)),
        signal=Signal.VERSION_DRIFT,
        describe=lambda _, place: (
            f"runs driver {first[apart[place]].driver}; {_where(release, DRIVER)} {wanted[apart[place]]}",
            None,
        ),
    )


def _detect_firmware(
    panel: Panel, layer: Layer, release: Mapping[str, str], *, by_majority: bool
) -> Iterator[Detection]:
    if not layer.values:
        return
    versions = {column: (part.model, part.firmware) for column, part in enumerate(layer.parts) if part.firmware}
    usual = _wanted(versions, None) if by_majority else {}
    wanted = {column: release.get(model, usual.get(column)) for column, (model, _) in versions.items()}
    columns = np.array(
        [column for column, (_, version) in versions.items() if wanted[column] not in (None, version)], dtype=np.intp
    )
    if not len(columns):
        return
    present = layer.present[:, columns]

    def describe(_: int, place: int) -> tuple[str, None]:
        model, version = versions[int(columns[place])]
        return f"has firmware {version}; {_where(release, model)} {wanted[int(columns[place])]}", None

    yield from told(
        panel,
        layer,
        carried(present, present, panel.rows_in(GAP_SECONDS)),
        columns=columns,
        signal=Signal.VERSION_DRIFT,
        describe=describe,
    )


def _where(release: Mapping[str, str], key: str) -> str:
    return "the release has" if key in release else "nearly all of its model have"


def _wanted(versions: Mapping[_Key, tuple[str, str]], declared: str | None) -> dict[_Key, str | None]:
    """Return what each (model, version) should be; None where nobody knows."""
    if declared is not None:
        return dict.fromkeys(versions, declared)
    by_model: dict[str, Counter[str]] = {}
    for model, version in versions.values():
        by_model.setdefault(model, Counter())[version] += 1
    usual: dict[str, str | None] = {}
    for model, counts in by_model.items():
        version, most = counts.most_common(1)[0]
        apart = counts.total() - most
        few = apart <= max(1, FEW_RATIO * counts.total())
        usual[model] = version if counts.total() >= LEAST_PEERS and few else None
    return {key: usual[model] for key, (model, _) in versions.items()}
