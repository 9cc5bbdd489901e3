"""docs/REMEDIATION.md says of the ladder and of the guardrails what the code says."""

import re
from datetime import UTC, datetime
from pathlib import Path

from ops_pipelines.core.policy import Policy
from ops_pipelines.remediate.guardrails.judge import read_rulebook
from ops_pipelines.remediate.ladder import RUNGS
from ops_pipelines.resources.fleet.documents import read_inspection

PAGE = (Path(__file__).parents[2] / "docs" / "REMEDIATION.md").read_text()


def rows_between(begin: str, end: str) -> list[str]:
    """Return the rows of the table between two marks, without its heading."""
    return [line for line in PAGE.split(begin)[1].split(end)[0].splitlines() if line.startswith("| ")][2:]


def test_the_page_has_the_ladder_as_it_is() -> None:
    assert rows_between("<!-- begin ladder -->", "<!-- end ladder -->") == [
        f"| {rung.name.lower().replace('_', ' ')} | {rule.precondition} | {rule.witness} | {rule.compensation} | "
        f"{f'{rule.limit}_seconds' if rule.limit else 'none'} |"
        for rung, rule in RUNGS.items()
    ]


def test_the_page_has_every_guardrail_with_its_default() -> None:
    assert rows_between("<!-- begin guardrails -->", "<!-- end guardrails -->") == [
        f"| {each.guardrail} | {each.judged_on} | {each.limit or 'yes or no'} |" for each in read_rulebook(Policy())
    ]


def test_the_page_shows_an_answer_of_inspect_that_is_read() -> None:
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)

    inspection = read_inspection(shown, inspected_at=datetime(2026, 11, 21, tzinfo=UTC))

    assert (inspection.node, inspection.failures) == ("gpu003", ("/scratch is read-only",))
    assert [each.gpu for each in inspection.gpus] == ["0000:1b:00"]
