"""Draws what `ops-pipelines simulate --json` printed, for docs/EFFECTIVE_TRAINING_TIME.md: where the time goes.

ops-pipelines simulate --policy deploy/policy-large-training.yaml --json > runs.json
python -m bench.whatif_picture runs.json docs/images/effective_training_time.png
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops_pipelines.report.document import Shade
from ops_pipelines.report.pictures.bars import BarRow, Sheet, rows_png

_CAUSES: Mapping[Shade, tuple[str, tuple[str, ...]]] = {
    Shade.ORANGE: ("waits for people", ("human",)),
    Shade.YELLOW: ("notice and find", ("detect", "localise")),
    Shade.SKY: ("schedule", ("schedule", "spare_wait")),
    Shade.BLUE: ("start", ("start",)),
    Shade.PINK: ("lost work", ("lost_work", "slow")),
    Shade.GREY: ("checkpoints", ("checkpoint",)),
}


def rows_of(document: Mapping[str, object]) -> list[BarRow]:
    """Return one row a policy, the best first: shares of the time that are lost, by what they are lost to."""
    peers = document["peers"]
    assert isinstance(peers, dict)  # as `simulate` writes it
    policies = {"this policy": document, **peers}
    rows = []
    for name, each in sorted(policies.items(), key=lambda item: -float(item[1]["ettr_mean"])):
        minutes = float(str(document["days"])) * 1440
        lost = each["lost_minutes_by_cause"]
        parts = tuple(
            (sum(lost.get(cause, 0.0) for cause in causes) / minutes, shade) for shade, (_, causes) in _CAUSES.items()
        )
        rows.append(
            BarRow(
                label=name,
                parts=parts,
                number=f"{each['ettr_mean']:.1%}, {each['interruptions_per_day']:.1f} stops a day",
            )
        )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the picture."""
    parser = argparse.ArgumentParser(description="Where each policy's time goes, as a picture.")
    parser.add_argument("document", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args(arguments)
    sheet = Sheet(title="time lost of 54 days (simulated)", key={shade: words for shade, (words, _) in _CAUSES.items()})
    options.picture.write_bytes(rows_png(rows_of(json.loads(options.document.read_text())), sheet=sheet))
    return 0


if __name__ == "__main__":
    sys.exit(main())
