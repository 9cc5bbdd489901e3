"""Approval by link over real HTTP: opening a link never approves, and one confirmed form approves exactly once."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops_pipelines import cli
from ops_pipelines.core.entries import ApprovalWay
from ops_pipelines.core.identity import JobId, PlanId
from ops_pipelines.core.incident import IncidentState
from ops_pipelines.people.orders import read_link
from ops_pipelines.resources.web_access import KeyFileSeal
from tests.shell.approval_stage import BASE_URL, Pages, desk_with_links, served
from tests.shell.desk import HOSTILE, Desk

PREVIEWS = {
    "chat preview": {"User_Agent": "Slackbot-LinkExpanding 1.0 (+https://api.slack.com/robots)"},
    "prefetch": {"Sec_Purpose": "prefetch", "Purpose": "prefetch", "Sec_Fetch_Site": "none"},
    "prerender": {"Sec_Purpose": "prefetch;prerender"},
    "mail scanner": {"User_Agent": "Mozilla/5.0 (compatible; SafeLinks)"},
}


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """A plan that waits; no test that uses this approves it."""
    desk = desk_with_links(tmp_path_factory.mktemp("waiting"))
    with served(desk, desk.lose_gpu("gpu002")) as pages:
        yield pages


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    desk = desk_with_links(tmp_path)
    with served(desk, desk.lose_gpu("gpu002")) as pages:
        yield pages


# -- what opening shows, and does not do --


@pytest.mark.parametrize("headers", PREVIEWS.values(), ids=PREVIEWS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_opening_a_link_shows_the_plan_and_never_approves(waiting: Pages, method: str, headers: dict[str, str]) -> None:
    path = waiting.link()

    answers = [waiting.ask(method, path + query, **headers) for query in ("", f"?confirm={waiting.plan}")]

    assert {answer.status_code for answer in answers} == ({405} if method == "OPTIONS" else {200})
    assert waiting.approvals() == ()


def test_get_with_a_form_in_its_body_approves_nothing(waiting: Pages) -> None:
    assert waiting.ask("GET", waiting.link(), confirm=waiting.plan).status_code == 200
    assert waiting.approvals() == ()


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "TRACE"])
def test_other_methods_do_nothing(waiting: Pages, method: str) -> None:
    assert waiting.ask(method, waiting.link(), confirm=waiting.plan).status_code == 405
    assert waiting.approvals() == ()


def test_page_says_what_would_be_done_to_whom_at_what_cost_and_who_asks_whom(waiting: Pages) -> None:
    page = waiting.ask("GET", waiting.link(person="Ada Lovelace")).text
    plan = waiting.desk.cluster.ledger.plan(waiting.plan)
    assert plan is not None

    for said in (
        "Ada Lovelace, may the autopilot do this to gpu002?",
        "drain gpu002",
        "reboot gpu002",
        "hold job 1001",
        "needs your yes",
        "GPU-hours lost, expected",
        "left to answer, until 2026-11-21 08:00:06 UTC",
        "The autopilot of test asks Ada Lovelace",
        'name="confirm"',
    ):
        assert said in page, said
    for alternative in plan.rejected_alternatives:
        assert alternative.replace("'", "&#39;") in page


def test_pages_are_kept_by_nobody_run_nothing_and_tell_no_other_site(waiting: Pages) -> None:
    path = waiting.link()
    for answer in (waiting.ask("GET", path), waiting.ask("POST", path), waiting.ask("GET", "/approve/forged")):
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "form-action 'self'" in answer.headers["Content-Security-Policy"]
        assert "<script" not in answer.text
        assert path not in answer.text


# -- what does not approve --


def other(plan: PlanId) -> str:
    return "PLAN-000000000000" if plan != "PLAN-000000000000" else "PLAN-000000000001"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param({}, 415, id="nothing"),
        pytest.param({"body": ""}, 400, id="an empty form"),
        pytest.param({"body": "confirm="}, 400, id="no confirmation"),
        pytest.param({"body": "confirm=yes"}, 400, id="another confirmation"),
        pytest.param({"body": "confirm=PLAN-000000000000"}, 400, id="another plan"),
        pytest.param({"body": "confirm={plan}&confirm={plan}"}, 400, id="twice in one form"),
        pytest.param({"body": b"\xff\xfe&&==;;"}, 400, id="no form at all"),
        pytest.param({"body": "confirm={plan}" + "&x=y" * 20}, 400, id="many fields"),
        pytest.param({"body": "confirm={plan}&x=" + "y" * 5000}, 413, id="too long"),
        pytest.param({"body": '{{"confirm": "{plan}"}}', "content_type": "application/json"}, 415, id="JSON"),
        pytest.param(
            {"body": "confirm={plan}", "content_type": "text/plain"}, 415, id="plain text, as sent across sites"
        ),
        pytest.param({"body": "confirm={plan}", "content_type": "multipart/form-data"}, 415, id="another kind of form"),
        pytest.param({"body": "confirm={plan}", "Sec_Fetch_Site": "cross-site"}, 403, id="from another site"),
        pytest.param({"body": "confirm={plan}", "Sec_Fetch_Site": "same-site"}, 403, id="from a sister site"),
        pytest.param({"body": "confirm={plan}", "Sec_Fetch_Site": "none"}, 403, id="from no page"),
        pytest.param({"body": "confirm={plan}", "Origin": "https://evil.example"}, 403, id="another origin"),
        pytest.param(
            {"body": "confirm={plan}", "Origin": "https://ops.example.org.evil.example"}, 403, id="a look-alike"
        ),
    ],
)
def test_post_without_the_confirmed_form_of_our_page_approves_nothing(
    waiting: Pages, sent: dict[str, str | bytes], status: int
) -> None:
    filled = {
        name: value.format(plan=waiting.plan) if isinstance(value, str) and name == "body" else value
        for name, value in sent.items()
    }

    answer = waiting.ask("POST", waiting.link(), **filled)  # type: ignore[arg-type] # mixed by name

    assert answer.status_code == status
    assert waiting.approvals() == ()


def test_forged_links_open_nothing_and_tell_nothing(waiting: Pages, tmp_path: Path) -> None:
    cluster = waiting.desk.cluster
    assert cluster.approval_links is not None
    other_key = tmp_path / "key"
    other_key.write_bytes(b"o" * 48)
    other_key.chmod(0o600)
    path = waiting.link()
    stranger = replace(cluster, approval_links=replace(cluster.approval_links, seal=KeyFileSeal(other_key)))
    elsewhere = replace(cluster, name="another")
    forged = [
        path[:-5],
        path + "A",
        path.replace("approve/1", "approve/2"),
        "/approve/" + "A" * 5000,
        "/approve/1.e30.AAAA",
        "/approve/%00",
        *(
            Pages(desk=_with(waiting.desk, each), address="", plan=waiting.plan).link(person="mallory")
            for each in (stranger, elsewhere)
        ),
    ]

    for each in forged:
        shown, sent = waiting.ask("GET", each), waiting.approve(each)
        assert (shown.status_code, sent.status_code) == (404, 404), each
        assert waiting.plan not in shown.text + sent.text
    assert waiting.approvals() == ()


def _with(desk: Desk, cluster: object) -> Desk:
    other = object.__new__(Desk)
    other.__dict__.update(desk.__dict__, cluster=cluster)
    return other


def test_link_is_worth_what_was_sealed_for_its_person_and_no_other(waiting: Pages) -> None:
    """Two people's links share no part that could be swapped."""
    ada, bob = (waiting.link(person=name) for name in ("ada", "bob"))
    body, signature = ada.rsplit(".", 1)[0], bob.rsplit(".", 1)[1]

    assert waiting.approve(f"{body}.{signature}").status_code == 404
    assert waiting.approvals() == ()


# -- what approves --


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec_Fetch_Site": "same-origin", "Origin": "null"},
        {"Sec_Fetch_Site": "same-origin", "Origin": BASE_URL.removesuffix("/gpu")},
        {"Origin": "null"},
    ],
    ids=["plain", "browser", "browser behind the proxy", "browser without TLS"],
)
def test_confirmed_form_approves_once_in_the_name_of_its_person(pages: Pages, headers: dict[str, str]) -> None:
    path = pages.link(person="ada")

    thanks = pages.ask("POST", path, confirm=pages.plan, **headers)
    (approval,) = pages.approvals()
    again = [pages.approve(path), pages.ask("GET", path)]

    assert thanks.status_code == 200
    assert f"{pages.plan} is approved by ada until 2026-11-21 08:00:06 UTC" in thanks.text
    assert (approval.plan, approval.actor, approval.via) == (pages.plan, "ada", ApprovalWay.LINK)
    assert approval.link == read_link(path.removeprefix("/approve/"), pages.desk.cluster).link
    assert [answer.status_code for answer in again] == [410, 410]
    assert "approved by ada" in again[1].text
    assert pages.approvals() == (approval,)


def test_link_expires_to_the_second(pages: Pages) -> None:
    path = pages.link(minutes=5)
    pages.desk.clock.wait(299)
    before = pages.ask("GET", path)
    pages.desk.clock.wait(1)

    after = [pages.ask("GET", path), pages.approve(path)]

    assert before.status_code == 200
    assert [answer.status_code for answer in after] == [410, 410]
    assert "expired" in after[0].text
    assert pages.approvals() == ()


def test_link_to_a_plan_that_was_superseded_says_so_and_approves_nothing(pages: Pages) -> None:
    path = pages.link()
    (job,) = pages.desk.cluster.scheduler.read_jobs()
    pages.desk.cluster.scheduler.hold(JobId(job.job))
    pages.desk.clock.wait(5)

    answers = [pages.ask("GET", path), pages.approve(path)]

    assert [answer.status_code for answer in answers] == [409, 409]
    assert "is outdated" in answers[0].text
    assert pages.approvals() == ()


def test_link_to_an_incident_that_no_longer_waits_approves_nothing(pages: Pages) -> None:
    path = pages.link()
    pages.desk.run("approve", pages.plan, "--yes")
    pages.desk.act(pages.plan)
    (incident,) = pages.desk.cluster.ledger.read_state(pages.desk.clock.now()).incidents

    answers = [pages.ask("GET", path), pages.approve(path)]

    assert incident.state is not IncidentState.OPEN
    assert [answer.status_code for answer in answers] == [409, 409]
    assert "no longer waits" in answers[0].text


def test_where_nobody_can_tell_whether_the_plan_holds_nothing_is_approved(pages: Pages) -> None:
    path = pages.link()
    pages.desk.silence_scheduler()

    answers = [pages.ask("GET", path), pages.approve(path)]

    assert [answer.status_code for answer in answers] == [503, 503]
    assert pages.approvals() == ()


def test_key_that_others_can_read_closes_the_pages_without_telling_where_it_lies(pages: Pages) -> None:
    path = pages.link()
    key = pages.desk.cluster_file.parent / "link.key"
    key.chmod(0o644)

    answer = pages.approve(path)

    assert answer.status_code == 503
    assert str(key) not in answer.text
    assert pages.approvals() == ()


def test_hostile_words_are_shown_as_words(pages: Pages) -> None:
    page = pages.ask("GET", pages.link(person="<script>alert(1)</script>")).text

    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;, may the autopilot" in page


# -- the command line --


def test_command_prints_a_link_for_one_person_and_chat_stands_in_the_record(pages: Pages) -> None:
    answer = pages.desk.run("approval-link", pages.plan, "--person", "Ada Lovelace", "--valid-minutes", "5")

    link = answer.stdout.strip()
    approved = pages.approve(link.removeprefix(BASE_URL))
    (approval,) = pages.approvals()

    assert answer.exit_code == cli.ExitCode.OK
    assert approved.status_code == 200
    assert (approval.actor, approval.via) == ("Ada Lovelace", ApprovalWay.CHAT)
    assert approval.expires_at - pages.desk.clock.now() == timedelta(minutes=5)


@pytest.mark.parametrize("person", ["", "   ", "a\x1b[2J", "x" * 101, HOSTILE[-60:]])
def test_name_by_which_nobody_could_be_told_apart_is_refused(waiting: Pages, person: str) -> None:
    answer = waiting.desk.run("approval-link", waiting.plan, "--person", person)

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "https://" not in answer.stdout


def test_cluster_without_a_key_makes_no_links(tmp_path: Path) -> None:
    desk = Desk(tmp_path)

    answer = desk.run("approval-link", desk.lose_gpu("gpu002"), "--person", "ada")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "serve.link_key_file" in answer.stderr


def test_check_config_refuses_a_key_that_others_can_read(tmp_path: Path) -> None:
    desk = desk_with_links(tmp_path)
    (tmp_path / "link.key").chmod(0o644)

    answer = desk.run("check-config", "--offline")

    assert answer.exit_code == cli.ExitCode.USAGE
    assert "mode 0644" in answer.stderr
