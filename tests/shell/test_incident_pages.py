"""The page of the incidents asset: a picture, a table, and paragraphs that the UI shows in place and that stay text."""

import re
from dataclasses import replace

import dagster as dg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.assets.incident_pages import EXPLAINED_AT_MOST, count_by_rule, describe_incidents, paragraph
from ops_pipelines.core.fault import (
    Alternative,
    AtFault,
    Component,
    ComponentKind,
    Family,
    FirstAction,
    Hypothesis,
    node_component,
)
from ops_pipelines.core.identity import Digest
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.core.record import SavedBundle
from tests.domain.builders import INCIDENT, NODE, NOW, after, attempt, incident, unreachable, xid


def hypothesis(statement: str = "GPU fell off the bus", *, count: int = 1) -> Hypothesis:
    return Hypothesis(
        statement=statement,
        culprits=(Component(kind=ComponentKind.GPU, name="0000:1b:00", node=NODE), node_component(NODE)),
        at_fault=AtFault.GPU,
        family=Family.GPU,
        first_action=FirstAction.REBOOT_NODE,
        confidence=0.87,
        affected_nodes=frozenset(),
        evidence_for=(statement,) * count,
        evidence_against=(statement,) * count,
        alternatives=(Alternative(statement=statement, confidence=0.1, why_less_likely=statement),) * count,
        settled_by=statement,
    )


def bundle(place: str = "/var/lib/ops_pipelines/evidence/INC-0001/opened") -> SavedBundle:
    return SavedBundle(
        incident=INCIDENT, reason="opened", saved_at=NOW, place=place, digest=Digest("0" * 64), manifest="", files=(),
        missing=(),
    )  # fmt: skip


def rows_of(value: dg.MetadataValue) -> list[dict[str, object]]:
    assert isinstance(value, dg.TableMetadataValue)
    return [dict(record.data) for record in value.records]


def test_page_shows_the_picture_then_each_open_incident_then_the_table() -> None:
    closed = incident(name="INC-0002", state=IncidentState.RESOLVED, closed_at=after(10))
    shown = describe_incidents([incident(hypothesis=hypothesis()), closed], bundles={INCIDENT: bundle()}, now=after(60))

    assert list(shown) == ["timeline", "INC_0001", "incidents", "timeline_large"]
    assert str(shown["timeline"].value).startswith("![timeline](data:image/svg+xml;base64,")
    assert str(shown["timeline_large"].value).startswith("![timeline](data:image/png;base64,")


def test_table_says_what_broke_who_suffers_and_what_is_next() -> None:
    known = incident(hypothesis=hypothesis(), victims=frozenset({attempt("42")}))

    (row,) = rows_of(describe_incidents([known], bundles={INCIDENT: bundle()}, now=NOW)["incidents"])

    assert row["what_broke"] == "GPU fell off the bus"
    assert row["culprit"] == "gpu 0000:1b:00 of gpu001"
    assert (row["sure"], row["victims"]) == ("87%", "job 42")
    assert str(row["next_step"]).startswith("reboot node: ")


def test_incident_of_an_older_version_is_shown_by_its_findings() -> None:
    (row,) = rows_of(describe_incidents([incident()], bundles={}, now=NOW)["incidents"])

    assert str(row["what_broke"]).startswith("Xid 79")
    assert (row["culprit"], row["sure"]) == ("gpu001", "")
    assert "because 07:30:00 Xid 79" in paragraph(incident(), bundle=None, now=NOW)


def test_only_the_newest_open_incidents_get_a_paragraph() -> None:
    many = [
        incident(xid(79, seconds_ago=100 - number), name=f"INC-{number:04d}") for number in range(EXPLAINED_AT_MOST + 2)
    ]

    shown = describe_incidents(many, bundles={}, now=NOW)

    assert [name for name in shown if name.startswith("INC")] == [
        "INC_0006",
        "INC_0005",
        "INC_0004",
        "INC_0003",
        "INC_0002",
    ]
    assert len(rows_of(shown["incidents"])) == EXPLAINED_AT_MOST + 2


def test_no_incident_is_said() -> None:
    shown = describe_incidents([], bundles={}, now=NOW)

    assert [each.value for each in shown.values()] == ["No incidents.", "none"]


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=400), st.integers(0, 5), st.sampled_from(IncidentState), st.text(max_size=300))
def test_any_paragraph_is_shown_in_place(statement: str, count: int, state: IncidentState, note: str) -> None:
    known = incident(hypothesis=hypothesis(statement, count=count), state=state, note=note)

    assert len(paragraph(known, bundle=bundle("/x" * 80), now=NOW)) <= 890


@pytest.mark.parametrize(
    "hostile",
    [
        "![x](http://evil/x.png)",
        "[click](http://evil)",
        "<img src=x>",
        "# head",
        "`code`",
        "__loud__",
        "a\n\n- zzz",
        "\x1b[2J",
    ],
)
def test_no_markdown_of_others_is_left_as_such(hostile: str) -> None:
    text = paragraph(incident(hypothesis=hypothesis(hostile), note=hostile), bundle=None, now=NOW)

    for sign in ("![x]", "[click]", "<img", " # head", "`code`", "__loud__", "\n- zzz", "\x1b"):
        assert sign not in re.sub(r"\\.", "", text)  # what a backslash is before is only a letter


def test_a_reason_too_long_to_show_does_not_repeat_the_cause() -> None:
    detail = "8 ranks of gpu016 differ from all others"
    long_cause = "job 42 hangs: " + "nothing moves any more " * 6
    told = replace(hypothesis(long_cause), evidence_for=(f"07:00:00: {long_cause}; {detail}",))

    words = paragraph(incident(hypothesis=told), bundle=None, now=NOW)

    assert f"because 07:00:00: {detail}" in words


def test_paragraph_keeps_the_cause_and_the_next_step_when_there_is_little_room() -> None:
    text = paragraph(incident(hypothesis=hypothesis("a long sentence " * 12, count=9)), bundle=bundle(), now=NOW)

    assert text.startswith("**a long sentence")
    assert "**Next**: reboot node" in text


def test_rules_are_counted_the_most_frequent_first() -> None:
    storm = replace(xid(79, node="gpu002", seconds_ago=-5), count=511)

    rows = list(count_by_rule([unreachable(), xid(79), storm, xid(48)]))

    assert [(row["rule"], row["count"], row["nodes"]) for row in rows] == [
        ("xid_79", 512, 2),
        ("node_unreachable", 1, 1),
        ("xid_48", 1, 1),
    ]
    assert rows[0]["calls_for"] == "reboot_node"
    assert str(rows[0]["newest"]).startswith("07:30:05 Xid 79")


def test_merged_incidents_are_neither_in_the_table_nor_in_the_picture() -> None:
    merged: Incident = replace(incident(name="INC-0002"), state=IncidentState.MERGED, note="part of INC-0001")

    shown = describe_incidents([merged, incident()], bundles={}, now=NOW)

    assert describe_incidents([merged], bundles={}, now=NOW)["timeline"].value == "No incidents."
    assert [row["incident"] for row in rows_of(shown["incidents"])] == ["INC-0001"]
