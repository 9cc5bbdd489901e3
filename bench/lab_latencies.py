"""How long each act took on the real lab, from its before-entry to its witness, read back from the lab's own ledger.

Run `make lab ONCE=1` on a quiet machine first, then `python -m bench.lab_latencies --state .lab --write`: the recorded
durations are what the what-if simulation draws from. A drill breaks things on purpose; acts that failed are left out.
What lies between the acts of a plan that moves a job is recorded, too: it is more than the acts themselves.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from rich.console import Console
from rich.table import Table

from ops_pipelines.core.action import ActionRecord, OutcomeKind, Verb
from ops_pipelines.core.identity import PlanId
from ops_pipelines.resources.ledger.sql_ledger import SqlLedger
from ops_pipelines_lab.drills.postgres_server import PostgresServer
from ops_pipelines_lab.whatif.measured import BETWEEN_ACTS, FIRST_ACT, RUN_START

LATENCIES_FILE = Path(__file__).parent.parent / "ops_pipelines" / "catalogue" / "lab_latencies.csv"


def read_latencies(url: str) -> dict[str, list[float]]:
    """Return the seconds of every act that was needed and done, by verb, and of what lay between; shortest first."""
    ledger = SqlLedger(url)
    found: dict[str, list[float]] = {}
    for incident in ledger.incidents_since(datetime.min.replace(tzinfo=UTC)):
        plans: dict[PlanId | None, list[ActionRecord]] = {}
        for record in sorted(ledger.records(incident.incident), key=lambda each: each.begun_at):
            outcome = record.outcome
            if outcome is None or outcome.kind is not OutcomeKind.DONE or not outcome.was_needed:
                continue
            seconds = (outcome.finished_at - record.begun_at).total_seconds()
            found.setdefault(record.action.verb.value, []).append(seconds)
            plans.setdefault(record.plan, []).append(record)
        for records in plans.values():
            for name, between in pauses_of(records, opened_at=incident.opened_at).items():
                found.setdefault(name, []).extend(between)
    ledger.close()
    return {verb: sorted(seconds) for verb, seconds in sorted(found.items())}


def pauses_of(records: Sequence[ActionRecord], *, opened_at: datetime) -> Mapping[str, Sequence[float]]:
    """Return the seconds before and between the acts of one plan that drained a node and moved its jobs, else none.

    `records` are in the order of their begin. A wait for the moment at which a job is interrupted counts as a pause.
    """
    verbs = [record.action.verb for record in records]
    if verbs[:1] != [Verb.DRAIN] or Verb.RELEASE not in verbs:
        return {}
    path = records[: len(verbs) - verbs[::-1].index(Verb.RELEASE)]
    gaps = [
        max(0.0, (later.begun_at - earlier.outcome.finished_at).total_seconds())
        for earlier, later in pairwise(path)
        if earlier.outcome is not None
    ]
    first = max(0.0, (path[0].begun_at - opened_at).total_seconds())
    return {FIRST_ACT: [first], RUN_START: gaps[:1], BETWEEN_ACTS: gaps[1:]}


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
    table = Table(title="seconds from the before-entry to the witness, and between acts")
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
