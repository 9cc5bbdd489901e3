"""One report of each subject as it is printed, kept in tests/data/reports: `python -m tests.pages.golden` renews them.

Read the difference before it is committed: it is what operators will see.
"""

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from ops_pipelines.capacity.report import capacity_document
from ops_pipelines.core.periods import parse_week
from ops_pipelines.core.rollout import NodeStage, RolloutState
from ops_pipelines.costs.report import cost_document
from ops_pipelines.efficiency.placement.day import placement_report
from ops_pipelines.efficiency.placement.document import placement_document
from ops_pipelines.efficiency.week import advice_document
from ops_pipelines.quotas.report import quota_document
from ops_pipelines.report.document import Document
from ops_pipelines.report.terminal import print_document
from ops_pipelines.review.incident_document import incident_document
from ops_pipelines.review.incident_report import report_on
from ops_pipelines.review.replay_document import replay_document
from ops_pipelines.review.replay_result import Difference
from ops_pipelines.review.week_document import week_document
from ops_pipelines.rollouts.report import rollout_document
from tests.flow.placement_stage import DAY, END, GANG, SMALL, desk_of
from tests.pages import (
    test_advice_page,
    test_chargeback_page,
    test_incident_page,
    test_policy_comparison,
    test_quotas_page,
    test_rollout_pages,
)
from tests.pages.capacity_sample import whole_report
from tests.pages.quota_samples import days, line, record
from tests.ports.rollout_samples import node
from tests.shell import test_weekly_review_shell

FOLDER = Path(__file__).parents[1] / "data" / "reports"


def costs() -> Document:
    charge = test_chargeback_page.charged("alpha", "beta")
    spent = test_chargeback_page.standing(800, 1_000, 1_100)
    return cost_document(replace(charge, standings=(spent,)), cluster="small", month="2026-11", months={})


def advice() -> Document:
    rows = [
        test_advice_page.row("large", gain=500, followed="followed", saved_gpu_hours=99.0),
        test_advice_page.row("small", gain=10),
        test_advice_page.row("quiet", withheld_because="the gain is below 20 GPU-hours"),
    ]
    week = parse_week("2026-W47")
    return advice_document(rows, cluster="small", week=week, currency="EUR", now=test_advice_page.END)


def placement() -> Document:
    return placement_document(placement_report(DAY, END, desk_of(SMALL, GANG)), cluster="small", day=DAY.date())


def quotas() -> Document:
    shown = record([line(), line("nlp", before=20, after=12, wanted=9), line("bio", before=30, after=30)])
    return quota_document(test_quotas_page.matter(shown, *days(4)[1:]))


def rollouts() -> Document:
    nodes = [node(1, "gpu001", stage=NodeStage.SOAKING), node(1, "gpu002", stage=NodeStage.INSTALLING, wave=2)]
    shown = test_rollout_pages.in_state(RolloutState.SOAKING)
    return rollout_document(test_rollout_pages.matter(shown, [*nodes, node(1, "gpu003", wave=2)]))


def capacity() -> Document:
    return capacity_document(whole_report(), cluster="small", quarter="2026Q4")


def incident() -> Document:
    with TemporaryDirectory() as directory:
        autopilot, seen = test_incident_page.story(Path(directory), "a bad row")
        return incident_document(report_on(seen, autopilot.cluster))


def week() -> Document:
    return week_document(test_weekly_review_shell.review())


def replay() -> Document:
    moved = test_policy_comparison.act(Difference.ONLY_THEN, incident="INC-0002")
    found = test_policy_comparison.replay_of(test_policy_comparison.act(), moved)
    return replay_document(found, now=test_policy_comparison.AT)


REPORTS: Mapping[str, Callable[[], Document]] = {
    each.__name__: each for each in (costs, advice, placement, quotas, rollouts, capacity, incident, week, replay)
}


def printed(document: Document, *, columns: int = 110) -> str:
    """Return what a terminal of this width shows, without blanks at the ends of lines."""
    out = Console(file=io.StringIO(), width=columns, markup=False, emoji=False, highlight=False)
    print_document(out, document)
    assert isinstance(out.file, io.StringIO)
    return "".join(f"{each.rstrip()}\n" for each in out.file.getvalue().splitlines())


if __name__ == "__main__":
    for name, make in REPORTS.items():
        (FOLDER / f"{name}.txt").write_text(printed(make()), encoding="utf-8")
