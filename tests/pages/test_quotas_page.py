"""The page of quotas: what changes comes first, what happens next is reported, and words of others stay text."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest

from ops_pipelines.core.policy import ActionClass, Consent, Mode, Policy
from ops_pipelines.core.proposal import GpuType, ProposalRecord, ProposalState
from ops_pipelines.quotas.report import QuotaMatter, quota_document
from ops_pipelines.report.html import page_of
from tests.pages.quota_samples import DAY, NOW, days, line, record

EVIL = '"><script>alert(1)</script> [x](javascript:y) \u202e'


def policy(mode: Mode = Mode.APPROVE, **consents: Consent) -> Policy:
    return Policy(mode=mode, consents={ActionClass(name): each for name, each in consents.items()})


def matter(shown: ProposalRecord | None, *earlier: ProposalRecord) -> QuotaMatter:
    records = [each for each in (shown, *earlier) if each is not None]
    used = {(each.team, each.gpu_type): 30.0 for record in records[:1] for each in record.proposal.lines}
    return QuotaMatter(
        cluster="small", record=shown, records=records, used=used, policy=policy(), has_limits=True, has_teams=True,
        paused_because=None, now=NOW,
    )  # fmt: skip


def cell(column: str, words: str) -> str:
    return f'<td class="number" data-name="{column}"><bdi>{words}</bdi></td>'


def page_for(shown: QuotaMatter) -> str:
    return page_of(quota_document(shown))


def test_what_changes_most_comes_first_then_the_largest() -> None:
    page = page_for(matter(record([
        line("large", before=60, after=60), line("small", before=8, after=8), line("down", before=20, after=12),
        line("up", before=10, after=13),
    ])))  # fmt: skip

    places = [page.index(f"<bdi>{team}</bdi>") for team in ("down", "up", "large", "small")]
    assert places == sorted(places)


def test_changes_carry_their_sign() -> None:
    page = page_for(matter(record([line("up", before=30, after=34), line("down", before=34, after=30)])))

    assert '<span class="good"><bdi>+4</bdi></span>' in page
    assert '<span class="bad"><bdi>\u22124</bdi></span>' in page


@pytest.mark.parametrize(("team_count", "folded"), [(29, None), (30, None), (31, 1), (200, 170)])
def test_of_many_teams_the_others_are_folded(team_count: int, folded: int | None) -> None:
    page = page_for(matter(record([line(f"team{number:03}") for number in range(team_count)])))

    assert page.count('<tr class="plain noted">') >= team_count
    assert ("<details>" in page) is (folded is not None)
    if folded is not None:
        assert f"{folded} more teams" in page


def test_each_type_of_gpu_has_a_section() -> None:
    page = page_for(matter(record([line(kind=GpuType("h100")), line(kind=GpuType("b200"))])))

    assert re.findall(r"<h2>(\w+)</h2>", page)[:2] == ["b200", "h100"]


def test_a_proposal_that_waits_names_the_command() -> None:
    shown = record()

    page = page_for(matter(shown))

    assert "It waits for approval." in page
    assert f"ops-pipelines quota apply {shown.name}" in page


@pytest.mark.parametrize(
    ("rules", "said", "has_command"),
    [
        (policy(Mode.OBSERVE), "mode: observe", False),
        (policy(quotas=Consent.FORBID), "consents.quotas: forbid", False),
        (policy(Mode.AUTO), "sets it by itself", True),
    ],
)
def test_the_policy_says_what_happens_next(rules: Policy, said: str, *, has_command: bool) -> None:
    page = page_for(replace(matter(record()), policy=rules))

    assert said in page
    assert ("quota apply" in page) is has_command


@pytest.mark.parametrize("state", list(ProposalState))
def test_every_state_has_a_word_and_a_next_step(state: ProposalState) -> None:
    page = page_for(matter(record(state=state)))

    assert state.value.replace("_", " ") in page


def test_what_is_applied_can_be_undone_and_not_applied_again() -> None:
    shown = record(state=ProposalState.APPLIED)

    page = page_for(matter(shown))

    assert f"quota undo {shown.name}" in page
    assert "quota apply" not in page


def test_half_way_nobody_says_what_is_in_force() -> None:
    assert cell("In force", "half-way") in page_for(matter(record(state=ProposalState.HALF_APPLIED)))


def test_a_team_without_a_limit_is_said_to_have_none() -> None:
    assert cell("In force", "no limit") in page_for(matter(record([line(limit=None)])))


def test_a_freeze_is_a_banner() -> None:
    frozen = page_for(matter(record(frozen_because="a storm of faults")))

    assert "Quotas stand still." in frozen
    assert "Quotas stand still." not in page_for(matter(record()))


@pytest.mark.parametrize(("count", "shown"), [(1, None), (2, 2), (13, 13), (14, 14), (15, 14)])
def test_the_curve_reaches_fourteen_proposals_back(count: int, shown: int | None) -> None:
    page = page_for(matter(*days(count)))

    said = re.search(r"in (\d+) proposals", page)
    assert (said and int(said[1])) == shown
    assert ("curve: the last" in page) is (shown is not None)


def test_refused_proposals_are_listed_and_no_past_of_a_curve() -> None:
    refused = record([line(after=1)], state=ProposalState.REFUSED, day=DAY - timedelta(days=1))

    page = page_for(matter(record(), refused, *days(3)[2:]))

    assert "from 36 to 40 in 2 proposals" in page
    assert refused.name in page


def test_wishes_beyond_the_scale_keep_the_other_bars_long() -> None:
    page = page_for(matter(record([line("calm"), line("greedy", wanted=100_000)])))

    widths = [
        float(each) for each in re.findall(r'x="0%" y="7" width="([\d.]+)%" height="12" fill="#35a57f"', page)[1:]
    ]
    assert min(widths) > 30
    assert page.count("&#8250;</text>") == 1


def test_what_was_used_is_not_known_where_the_lake_does_not_say() -> None:
    assert cell("Used", "not known") in page_for(replace(matter(record()), used={}))


def test_what_a_person_proposed_is_not_said_to_be_set_by_itself() -> None:
    shown = replace(record(), actor="alice")

    page = page_for(replace(matter(shown), policy=policy(Mode.AUTO)))

    assert "It came from alice: a person sets it." in page
    assert f"ops-pipelines quota apply {shown.name}" in page


@pytest.mark.parametrize(("has_teams", "said"), [(True, "rebalance_quotas"), (False, "names no file of teams")])
def test_a_fresh_installation_says_what_fills_the_page(said: str, *, has_teams: bool) -> None:
    page = page_for(replace(matter(None), has_teams=has_teams))

    assert "Nothing was proposed yet." in page
    assert said in page


def test_words_of_others_stay_short_text() -> None:
    evil = replace(
        record([line(EVIL + "x" * 10_000, reason=EVIL * 500, kind=GpuType(EVIL))], frozen_because=EVIL * 500),
        actor=EVIL, reason=EVIL * 500,
    )  # fmt: skip

    page = page_for(matter(evil))

    assert "<script>" not in page
    assert "\u202e" not in page
    assert len(page) < 40_000


def test_numbers_without_an_end_are_drawn_within_the_picture() -> None:
    page = page_for(matter(record([line(wanted=float("inf"), guarantee=0, before=0, after=0, limit=0)])))

    assert max(float(each) for each in re.findall(r'="([\d.]+)%"', page)) <= 100
