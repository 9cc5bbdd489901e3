"""The page of one incident: it says what a reader asks for, fetches nothing, and words of others stay text."""

import re
from base64 import b64decode
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ops_pipelines.core.action import Action, ActionRecord, Outcome, OutcomeKind, Verb
from ops_pipelines.core.entries import Approval, Begun
from ops_pipelines.core.fault import Alternative, AtFault, Component, ComponentKind, Family, FirstAction, Hypothesis
from ops_pipelines.core.finding import Response
from ops_pipelines.core.identity import JobAttempt, JobId, PlanId
from ops_pipelines.core.incident import Incident, IncidentState, Recovery
from ops_pipelines.core.plan import IncidentPlan
from ops_pipelines.report.html import page_of
from ops_pipelines.review.incident_document import incident_document
from ops_pipelines.review.incident_report import IncidentReport, report_on
from ops_pipelines.review.timeline import EventKind
from tests.domain.builders import NODE, NOW, after, attempt, incident, xid
from tests.ports.ledger_samples import allow, refusing
from tests.ports.proved_plans import passed
from tests.scenarios.small_autopilot import SmallAutopilot

EVIL = (
    '"><script>alert(1)</script><img src=x onerror=alert(1)> </style><style>*{display:none}</style> '
    "' style='background:url(//evil.example)' javascript:alert(1) {{7*7}} {% raw %} </svg> ]]> "
    "\x1b]0;owned\x07 \u202etxt.exe \x00 &#x3c;b&#x3e; <a href=//evil.example>"
)
_PARTS = "html head meta title style body main h1 h2 h3 p div b bdi span ul ol li code figure picture source img"
_TABLES = "table thead tbody tr th td details summary footer"
OWN_TAGS = frozenset(f"{_PARTS} {_TABLES}".split())
OWN_ATTRIBUTES = {"lang", "charset", "name", "content", "http-equiv", "class", "data-name", "media", "srcset"}
OWN_ATTRIBUTES |= {"src", "alt", "scope"}


class Markup(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: dict[str, set[str]] = {}
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, set()).add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def page_on(report: IncidentReport) -> str:
    return page_of(incident_document(report))


def story(directory: Path, text: str) -> tuple[SmallAutopilot, Incident]:
    """Return an incident in whose every field that others may fill is `text`, with acts of every outcome."""
    autopilot = SmallAutopilot(directory, node_count=1)
    ledger = autopilot.cluster.ledger
    job = JobAttempt(job=JobId("42"), started_at=after(-3600))
    line = replace(xid(79).evidence[0], text=text)
    finding = replace(
        xid(79),
        explanation=text,
        evidence=(line,),
        rule=text,
        source=text,
        last_at=after(5),
    )
    seen = incident(
        finding,
        note=text,
        victims=frozenset({job, attempt("43")}),
        recoveries=(
            Recovery(
                attempt=job, gpu_count=8, held_at=after(30), checkpointed_at=after(-600), resumed_at=after(90),
                ended_as=text,
            ),
        ),
        hypothesis=Hypothesis(
            statement=text,
            culprits=(Component(kind=ComponentKind.GPU, name=text, node=NODE),),
            at_fault=AtFault.GPU,
            family=Family.GPU,
            first_action=FirstAction.RMA,
            confidence=0.9,
            affected_nodes=frozenset(),
            evidence_for=(text,),
            evidence_against=(text,),
            alternatives=(Alternative(statement=text, confidence=0.1, why_less_likely=text),),
            settled_by=text,
        ),
    )  # fmt: skip
    acts = (
        Action(verb=Verb.DRAIN, incident=seen.incident, node=NODE, text=text),
        Action(verb=Verb.HOLD, incident=seen.incident, attempt=job),
        Action(verb=Verb.REBOOT, incident=seen.incident, node=NODE),
        Action(verb=Verb.NOTIFY_OWNER, incident=seen.incident, attempt=job, text=text),
    )
    plan = IncidentPlan(
        plan=PlanId("PLAN-0123456789ab"), incident=seen.incident, response=Response.REBOOT_NODE, actions=acts,
        reason=text, effects=(text,), rejected_alternatives=(text,),
    )  # fmt: skip
    ledger.record_decision(
        inputs=ledger.store("{}"), decided_through=0, expected_head=None, incidents=[seen], plans=[plan], now=NOW,
        proofs=[passed(plan, ledger, at=NOW)],
    )  # fmt: skip
    ledger.approve(Approval(plan=plan.plan, actor=text, given_at=after(10), expires_at=after(999)))
    outcomes = (OutcomeKind.DONE, OutcomeKind.DONE, OutcomeKind.FAILED, OutcomeKind.UNKNOWN)
    for act, kind in zip(acts, outcomes, strict=True):
        record = ActionRecord(action=act, plan=plan.plan, begun_at=after(20), gpu_count=8)
        assert isinstance(ledger.begin(record, guard=allow, lease_token=None, actor=text, now=after(20)), Begun)
        ledger.finish(act.key, Outcome(kind=kind, witness=text, finished_at=after(25)), actor=text)
    refused = Action(verb=Verb.RESUME, incident=seen.incident, node=NODE)
    ledger.begin(
        ActionRecord(action=refused, plan=None, begun_at=after(26)), guard=refusing(text), lease_token=None,
        actor=text, now=after(26),
    )  # fmt: skip
    autopilot.let_pass((after(3600) - autopilot.clock.now()).total_seconds())
    return autopilot, seen


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> str:
    autopilot, seen = story(tmp_path_factory.mktemp("evil"), EVIL)
    return page_on(report_on(seen, autopilot.cluster))


def test_hostile_words_stay_text_wherever_they_stand(evil: str) -> None:
    markup = Markup(evil)

    assert markup.tags <= OWN_TAGS
    assert set(markup.attributes) <= OWN_ATTRIBUTES
    assert all(
        "alert" not in value and "evil" not in value for values in markup.attributes.values() for value in values
    )
    assert "alert(1)" in markup.text
    assert "{{7*7}}" in markup.text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", evil)


def test_page_fetches_nothing_and_runs_nothing(evil: str) -> None:
    markup = Markup(evil)
    addresses = markup.attributes["src"] | markup.attributes["srcset"]

    assert all(each.startswith("data:image/svg+xml;base64,") for each in addresses)
    assert not {"href", "action", "onerror", "onload"} & set(markup.attributes)
    assert "default-src 'none'" in " ".join(markup.attributes["content"])
    assert not re.search(r"url\(|@import", "".join(re.findall("<style>(.*?)</style>", evil, re.S)))


def test_pictures_of_hostile_words_are_whole_xml_without_scripts(evil: str) -> None:
    for address in Markup(evil).attributes["src"] | Markup(evil).attributes["srcset"]:
        picture = b64decode(address.partition(",")[2]).decode()
        drawn = ElementTree.fromstring(picture)
        assert {each.tag.rpartition("}")[2] for each in drawn.iter()} <= {"svg", "rect", "path", "text"}


def test_page_says_what_a_reader_asks_for_in_this_order(evil: str) -> None:
    titles = re.findall("<h2>(.*?)</h2>", evil)

    assert titles == [
        "What is left to do",
        "Timeline",
        "What happened",
        "Evidence",
        "Why this decision",
        "Alternatives rejected",
        "Blast radius",
        "Who waited for whom",
        "Cost",
        "Who approved",
        "Not known",
        "The ledger, line by line",
    ]


def test_same_report_gives_the_same_page(tmp_path: Path) -> None:
    autopilot, seen = story(tmp_path, "a bad row")
    report = report_on(seen, autopilot.cluster)

    assert page_on(report) == page_on(report_on(seen, autopilot.cluster))


def test_mass_event_tells_a_few_signs_and_counts_the_rest(tmp_path: Path) -> None:
    autopilot, seen = story(tmp_path, "a bad row")
    report = report_on(seen, autopilot.cluster)
    sign = next(each for each in report.events if each.kind is EventKind.SEEN)
    signs = tuple(replace(sign, what=f"gpu{number:03d} is silent") for number in range(40))

    page = page_on(replace(report, events=(*signs, *report.events[1:])))
    story_told = page.partition("<h2>What happened</h2>")[2].partition("<details>")[0]

    assert "gpu004 is silent" in story_told
    assert "gpu005 is silent" not in story_told
    assert "35 more signs" in story_told


@pytest.mark.parametrize(
    "known",
    [
        incident(xid(79)),
        incident(xid(79), state=IncidentState.ESCALATED, note="a person was paged: look"),
        incident(xid(79), state=IncidentState.IN_REPAIR, response=Response.RETURN_TO_VENDOR),
        incident(xid(79), state=IncidentState.MERGED, note="part of INC-0009", closed_at=after(60)),
        incident(xid(79), state=IncidentState.RESOLVED, note="cleared by itself", closed_at=NOW),
        incident(xid(79), response=Response.PAGE_MASS_EVENT, nodes=frozenset(f"gpu{each:03d}" for each in range(200))),
        replace(incident(nodes=frozenset(), gpus=frozenset(), note=""), findings=()),
    ],
    ids=["open", "escalated", "in repair", "merged", "resolved at once", "mass", "bare"],
)
def test_every_kind_of_incident_has_a_page(tmp_path: Path, known: Incident) -> None:
    autopilot = SmallAutopilot(tmp_path, node_count=1)
    autopilot.let_pass((after(600) - autopilot.clock.now()).total_seconds())

    page = page_on(report_on(known, autopilot.cluster))

    assert known.incident in page
    assert "None" not in Markup(page).text.replace("None is recorded", "")
    assert len(page) < 60_000


def test_storm_of_events_is_told_by_its_ends(tmp_path: Path) -> None:
    autopilot, seen = story(tmp_path, "a bad row")
    report = report_on(seen, autopilot.cluster)
    event = next(each for each in report.events if each.kind is EventKind.REFUSED)
    many: IncidentReport = replace(
        report,
        events=tuple(replace(event, at=NOW + timedelta(seconds=each), what=f"event {each}.") for each in range(2_000)),
        lines=report.lines * 300,
    )

    page = page_on(many)

    assert "event 0." in page
    assert "event 1999." in page
    assert "event 1000." not in page
    assert "1976 more in between" in page
    assert len(page) < 1_500_000
