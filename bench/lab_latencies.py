"""How long each act took on the real lab, from its before-entry to its witness, read back from the lab's own ledger.

Run `make lab ONCE=1` on a quiet machine first, then `python -m bench.lab_latencies --state .lab --write`: the recorded
durations are what the what-if simulation draws from. A drill breaks things on purpose; acts that failed are left out.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from ops_pipelines.domain.action import OutcomeKind
from ops_pipelines.drills.postgres_server import PostgresServer
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger

LATENCIES_FILE = Path(__file__).parent.parent / "ops_pipelines" / "catalogue" / "lab_latencies.csv"


def read_latencies(url: str) -> dict[str, list[float]]:
    """Return the seconds of every act that was needed and done, by verb, shortest first."""
    ledger = SqlLedger(url)
    found: dict[str, list[float]] = {}
    for incident in ledger.incidents_since(datetime.min.replace(tzinfo=UTC)):
        for record in ledger.records(incident.incident):
            outcome = record.outcome
            if outcome is None or outcome.kind is not OutcomeKind.DONE or not outcome.was_needed:
                continue
            seconds = (outcome.finished_at - record.begun_at).total_seconds()
            found.setdefault(record.action.verb.value, []).append(seconds)
    ledger.close()
    return {verb: sorted(seconds) for verb, seconds in sorted(found.items())}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the distributions, and store them if asked."""
    parser = argparse.ArgumentParser(description="How long each act took on the lab.")
    parser.add_argument("--state", type=Path, default=Path(".lab"), help="the state directory of a lab that has ended")
    parser.add_argument("--write", action="store_true", help="store them for the what-if simulation")
    options = parser.parse_args(arguments)
    url = (options.state / "ledger.url").read_text(encoding="utf-8").strip()
    port = urlsplit(url).port
    assert port is not None  # the lab's ledger is on a PostgreSQL of its own
    server = PostgresServer(options.state / "postgres", port=port)
    server.start()
    try:
        found = read_latencies(url)
    finally:
        server.stop()
    table = Table(title="seconds from the before-entry to the witness")
    for heading in ("act", "times", "P50", "P95", "max"):
        table.add_column(heading, justify="left" if heading == "act" else "right")
    for verb, seconds in found.items():
        fifty, ninety_five = np.percentile(seconds, [50, 95])
        table.add_row(verb, str(len(seconds)), f"{fifty:.2f}", f"{ninety_five:.2f}", f"{max(seconds):.2f}")
    Console().print(table)
    if options.write:
        with LATENCIES_FILE.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("act", "seconds"))
            writer.writerows((verb, f"{each:.3f}") for verb, seconds in found.items() for each in seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
