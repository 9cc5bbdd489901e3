"""The first page: what is open, what ended lately, and words of others that stay text."""

from dataclasses import replace
from datetime import timedelta

from ops_pipelines.core.health import Health, HealthWord
from ops_pipelines.core.identity import NodeName
from ops_pipelines.core.incident import Incident, IncidentState
from ops_pipelines.report.document import Number
from ops_pipelines.report.html import page_of
from ops_pipelines.terminal.served_pages import Listed, index_document
from tests.ports.ledger_samples import incident
from tests.simulator.fake_clock import BEGINNING as AT

EVIL = '"><script>alert(1)</script>'
WELL = Health(word=HealthWord.ACTING, reasons=())


def ended(number: int, *, state: IncidentState = IncidentState.RESOLVED) -> Incident:
    closed_at = AT + timedelta(minutes=number)
    return replace(incident(number, state=state, at=AT), closed_at=closed_at)


def said_by_others(known: Incident) -> Incident:
    return replace(known, findings=tuple(replace(each, explanation=EVIL) for each in known.findings))


def index(*incidents: Incident, lately: tuple[Incident, ...] = ()) -> str:
    return page_of(
        index_document(
            cluster="small",
            health=WELL,
            incidents=incidents,
            lately=lately,
            listed=[Listed(path="weekly", title="Weekly review", about="of the last week")],
            has_reports=True,
            now=AT + timedelta(hours=1),
        )
    )


def test_what_ended_lately_is_listed_the_newest_first_with_its_report() -> None:
    page = index(lately=(ended(1), ended(3), ended(2)))

    links = [page.index(f'href="incidents/INC-000{number}"') for number in (3, 2, 1)]
    assert links == sorted(links)


def test_what_is_open_or_was_merged_is_not_among_what_ended() -> None:
    still_open = replace(ended(1), state=IncidentState.OPEN, closed_at=None)

    page = index(lately=(still_open, ended(2, state=IncidentState.MERGED)))

    assert "Ended lately" not in page
    assert "INC-0002" not in page


def test_twenty_that_ended_are_shown_and_not_one_more() -> None:
    page = index(lately=tuple(ended(number) for number in range(1, 22)))

    assert page.count('href="incidents/') == 20
    assert "INC-0001" not in page


def test_a_quiet_cluster_has_no_list_of_what_ended() -> None:
    assert "Ended lately" not in index()


def test_of_many_nodes_the_first_are_named_and_the_others_counted() -> None:
    many = replace(incident(1), nodes=frozenset(NodeName(f"gpu{number:03}") for number in range(1, 10)))

    page = index(many)

    assert "gpu008 and 1 more" in page
    assert "gpu009" not in page


def test_words_of_others_stay_text() -> None:
    page = index(said_by_others(incident(1)), lately=(said_by_others(ended(2)),))

    assert "<script>" not in page
    assert page.count("&lt;script&gt;") == 2


def test_headline_numbers_lead_to_their_pages_and_stay_text() -> None:
    page = page_of(
        index_document(
            cluster="small",
            health=WELL,
            incidents=(),
            numbers=[Number(link="quotas", title="Quotas", value="8", about=EVIL + "x" * 1_000)],
            listed=[],
            has_reports=True,
            now=AT,
        )
    )

    assert '<a href="quotas">Quotas</a><b>8</b>' in page
    assert "<script>" not in page
    assert "x" * 200 not in page
