"""What the driver itself says of a GPU: what it asks for, and how many uncorrectable errors it has counted.

The live path reads the same from single samples (`lake.telemetry`); this is for panels. Each number is a condition of
its own: "reset me" that becomes "reboot the node" is another one.
"""

from collections.abc import Iterator

import numpy as np

from ops_pipelines.core.observation import Signal
from ops_pipelines.frames.detectors.windows import state_holds, told
from ops_pipelines.frames.panels.detection import Detection
from ops_pipelines.frames.panels.panel import Flags, Numbers, Panel


def detect_driver(panel: Panel) -> Iterator[Detection]:
    """Yield RECOVERY_ACTION and ECC_UNCORRECTABLE at their first sample: the driver's own word."""
    yield from _detect_numbers(
        panel, "recovery_action", Signal.RECOVERY_ACTION, "asks for recovery action {0} (DCGM field 1523)"
    )
    yield from _detect_numbers(
        panel,
        "ecc_uncorrectable_volatile_count",
        Signal.ECC_UNCORRECTABLE,
        "counts {0} uncorrectable ECC error(s) since its driver was loaded",
    )


def _detect_numbers(panel: Panel, column: str, signal: Signal, words: str) -> Iterator[Detection]:
    samples = panel.gpus.values.get(column)
    if samples is None:
        return
    for number in np.unique(samples[samples > 0]).tolist():

        def holds(values: Numbers, number: float = number) -> Flags:
            return np.equal(values, np.float32(number))

        said, columns = state_holds(panel, panel.gpus, column, holds)
        text = words.format(int(number))
        yield from told(
            panel,
            panel.gpus,
            said,
            columns=columns,
            signal=signal,
            describe=lambda *_, text=text: (text, None),
            code=int(number),
        )
