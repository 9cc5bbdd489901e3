"""What every ledger holds of an approval: who, where, until when, and one for each link."""

from dataclasses import replace

import pytest

from ops_pipelines.core.entries import Approval, ApprovalWay, EntryKind, LinkUsed
from ops_pipelines.core.identity import PlanId
from ops_pipelines.core.ledger import Ledger
from tests.ports.ledger_samples import NOW, SECOND, decide, drain, incident, kinds, plan

BY_LINK = Approval(
    plan=PlanId("PLAN-1"),
    actor="ada",
    given_at=NOW,
    expires_at=NOW + 10 * SECOND,
    via=ApprovalWay.LINK,
    link="a" * 64,
)


class LedgerApprovalContract:
    """A ledger with two plans that wait."""

    @pytest.fixture
    def asked(self, ledger: Ledger) -> Ledger:
        decide(ledger, incident(1), incident(2), plans=(plan(1, drain(1)), plan(2, drain(2, node="gpu004"))))
        return ledger

    @pytest.mark.parametrize("via", ApprovalWay)
    def test_yes_is_one_record_wherever_it_was_given(self, asked: Ledger, via: ApprovalWay) -> None:
        yes = replace(BY_LINK, via=via, link="" if via in (ApprovalWay.TERMINAL, ApprovalWay.UI) else BY_LINK.link)

        asked.approve(yes)

        assert asked.read_state(NOW).approvals == (yes,)
        assert kinds(asked)[-1] is EntryKind.APPROVAL
        assert asked.entries(after=0, limit=99)[-1].actor == "ada"

    def test_link_gives_one_yes_even_after_that_has_expired(self, asked: Ledger) -> None:
        asked.approve(BY_LINK)
        head = asked.read_state(NOW).head_seq

        for given_at in (NOW, NOW + 9 * SECOND, NOW + 11 * SECOND, NOW + 99 * 3600 * SECOND):
            with pytest.raises(LinkUsed, match="its one yes already"):
                asked.approve(replace(BY_LINK, given_at=given_at, expires_at=given_at + SECOND))

        assert asked.read_state(NOW).head_seq == head

    def test_other_links_and_yeses_without_one_are_counted_apart(self, asked: Ledger) -> None:
        asked.approve(BY_LINK)
        asked.approve(replace(BY_LINK, link="b" * 64))
        asked.approve(replace(BY_LINK, plan=PlanId("PLAN-2"), link="c" * 64))
        asked.approve(replace(BY_LINK, link=""))
        asked.approve(replace(BY_LINK, link=""))

        assert len(asked.read_state(NOW).approvals) == 5
        assert asked.verify_chain().problem == ""

    def test_expired_yes_is_remembered_for_a_day(self, asked: Ledger) -> None:
        asked.approve(BY_LINK)
        day = 86_400 * SECOND

        seen = [
            (len(state.approvals), len(state.past_approvals))
            for state in map(
                asked.read_state,
                (BY_LINK.expires_at - SECOND, BY_LINK.expires_at, BY_LINK.expires_at + day - SECOND, NOW + 2 * day),
            )
        ]

        assert seen == [(1, 0), (0, 1), (0, 1), (0, 0)]
