"""The part of the ledger's contract on rollouts: opened, changed by the tables alone, owning what they have in hand."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ops_pipelines.core.entries import AUTOPILOT, Approval, EntryKind, LedgerConflict, LedgerError, LinkUsed
from ops_pipelines.core.identity import Digest, PlanId, RolloutId, cause_of
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.rollout import (
    FINAL,
    IN_HAND,
    OF_PEOPLE,
    Direction,
    NodeEvent,
    NodeStage,
    Rollout,
    RolloutEvent,
    RolloutNode,
    RolloutState,
)
from ops_pipelines.resources.documents import decode
from ops_pipelines.resources.ledger.chain import RolloutChange
from ops_pipelines.rollouts.course import ROLLOUT_TABLE, IllegalRolloutTransitionError, next_direction, next_stage
from tests.ports.ledger_samples import HOSTILE, NO_LIMIT, NOW, SECOND, begin, kinds, outcome
from tests.ports.rollout_samples import (
    HOUR,
    NODES,
    RELEASE,
    RELEASE_DIGEST,
    back,
    begun,
    change,
    drain_for,
    node,
    open_rollout,
    rollout,
    rollout_plan,
)

DAY = timedelta(hours=24)
_ADVANCING = (RolloutEvent.WAVE_GOOD, RolloutEvent.ONE_WAY_NEXT)


def head(ledger: Ledger) -> int:
    return ledger.read_state(NOW).head_seq


def last_change(ledger: Ledger) -> RolloutChange:
    return decode(RolloutChange, ledger.entries(after=head(ledger) - 1, limit=1)[0].body)


class LedgerRolloutContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    # -- opened --

    def test_opened_rollout_is_there_with_its_nodes_plan_and_release(self, ledger: Ledger) -> None:
        opened, nodes = open_rollout(ledger, 1, names=("gpu003", "gpu001", "gpu002"))

        state = ledger.read_state(NOW)
        assert (ledger.rollout(opened.rollout), ledger.rollout_count()) == (opened, 1)
        assert ledger.rollout_nodes(opened.rollout) == tuple(sorted(nodes, key=lambda each: each.node))
        assert ledger.rollout_plan(opened.plan) == rollout_plan(opened)
        assert ledger.release(opened.release_digest) == RELEASE
        assert (state.rollouts, state.owned) == ((opened,), {})
        assert kinds(ledger) == [EntryKind.ROLLOUT]
        assert ledger.entries_about(cause_of(opened.rollout)) == ledger.entries(after=0, limit=NO_LIMIT)

    def test_fresh_ledger_has_no_rollout(self, ledger: Ledger) -> None:
        assert (ledger.rollouts(final_since=NOW - DAY), ledger.rollout_count()) == ((), 0)
        assert ledger.rollout(RolloutId("ROLL-0001")) is None
        assert ledger.rollout_plan(PlanId("PLAN-R1")) is None
        assert ledger.rollout_nodes(RolloutId("ROLL-0001")) == ()
        with pytest.raises(LedgerError, match="never stored"):
            ledger.release(RELEASE_DIGEST)

    def test_release_is_kept_under_the_digest_that_a_rollout_names(self, ledger: Ledger) -> None:
        digest = ledger.store_release(RELEASE)

        assert (digest, ledger.release(digest)) == (RELEASE_DIGEST, RELEASE)
        assert kinds(ledger) == []

    def test_second_rollout_under_one_id_conflicts(self, ledger: Ledger) -> None:
        open_rollout(ledger, 1, names=("gpu001",))

        with pytest.raises(LedgerConflict, match="there is a rollout ROLL-0001"):
            open_rollout(ledger, 1, names=("gpu002",))

        assert (ledger.rollout_count(), len(ledger.rollout_nodes(RolloutId("ROLL-0001")))) == (1, 1)

    @pytest.mark.parametrize("stage", NodeStage)
    def test_node_is_in_one_rollout_that_is_not_final_unless_it_was_skipped_there(
        self, ledger: Ledger, stage: NodeStage
    ) -> None:
        open_rollout(ledger, 1, names=("gpu001",), stage=stage)

        if stage is NodeStage.SKIPPED:
            open_rollout(ledger, 2, names=("gpu001", "gpu002"))
        else:
            with pytest.raises(LedgerConflict, match=rf"gpu001 is in ROLL-0001 \({stage.value}\)"):
                open_rollout(ledger, 2, names=("gpu001", "gpu002"))

        assert ledger.rollout_count() == (2 if stage is NodeStage.SKIPPED else 1)

    def test_node_that_the_new_rollout_skips_may_be_in_another(self, ledger: Ledger) -> None:
        _, (taken,) = open_rollout(ledger, 1, names=("gpu001",))
        _, (skipped,) = open_rollout(ledger, 2, names=("gpu001",), stage=NodeStage.SKIPPED)

        change(ledger, None, begun(taken))
        with pytest.raises(LedgerConflict, match="gpu001 is skipped"):
            change(ledger, None, begun(skipped))

        assert ledger.read_state(NOW).owned == {"gpu001": "ROLL-0001"}

    @pytest.mark.parametrize("state", RolloutState)
    def test_only_a_final_rollout_lets_its_nodes_go(self, ledger: Ledger, state: RolloutState) -> None:
        open_rollout(ledger, 1, names=("gpu001",), state=state)

        if state in FINAL:
            open_rollout(ledger, 2, names=("gpu001",))
        else:
            with pytest.raises(LedgerConflict, match="gpu001"):
                open_rollout(ledger, 2, names=("gpu001",))

        assert len(ledger.read_state(NOW).rollouts) == 1

    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            pytest.param({"release_digest": Digest("0" * 64)}, "kept under", id="another release"),
            pytest.param({"plan": PlanId("PLAN-other")}, "names the plan", id="another plan"),
            pytest.param({"rollout": RolloutId("INC-0001")}, "no name of a rollout", id="an incident's name"),
            pytest.param({"rollout": RolloutId("ROLL-0002")}, "is of ROLL-0001", id="another rollout's nodes"),
        ],
    )
    def test_rollout_that_does_not_fit_what_comes_with_it_is_refused(
        self, ledger: Ledger, wrong: dict[str, str], words: str
    ) -> None:
        fitting = rollout(1)
        odd = replace(fitting, **wrong)  # type: ignore[arg-type]  # fields by name

        with pytest.raises(LedgerError, match=words):
            ledger.open_rollout(
                odd, (node(1, "gpu001"),), plan=rollout_plan(fitting), release=RELEASE, actor="ada", now=NOW
            )

        assert (ledger.rollout_count(), head(ledger)) == (0, 0)

    def test_of_two_plans_with_one_id_the_newer_counts(self, ledger: Ledger) -> None:
        first = rollout(1, state=RolloutState.ABORTED)
        second = replace(rollout(2), plan=first.plan)
        later = rollout_plan(second, made_at=NOW + HOUR)

        ledger.open_rollout(first, (), plan=rollout_plan(first), release=RELEASE, actor="ada", now=NOW)
        ledger.open_rollout(second, (), plan=later, release=RELEASE, actor="ada", now=NOW)

        assert ledger.rollout_plan(first.plan) == later

    # -- changed --

    def test_change_is_one_line_with_what_is_new_and_no_more(self, ledger: Ledger) -> None:
        opened, (one, two, three) = open_rollout(ledger, 1)
        after = replace(opened, state=RolloutState.PAUSED, owner="ada", paused_from=RolloutState.RUNNING)
        skipped = replace(two, stage=NodeStage.SKIPPED, reason="left out")

        change(ledger, after, one, skipped, three, actor="ada")

        assert kinds(ledger) == [EntryKind.ROLLOUT, EntryKind.ROLLOUT]
        assert last_change(ledger) == RolloutChange(rollout=after, nodes=(skipped,))
        assert ledger.rollout(opened.rollout) == after
        assert ledger.rollout_nodes(opened.rollout) == (one, skipped, three)
        assert ledger.verify_chain().problem == ""

    def test_what_is_so_already_is_not_written(self, ledger: Ledger) -> None:
        opened, nodes = open_rollout(ledger, 1)

        change(ledger, opened, *nodes)
        change(ledger, None, *nodes)
        change(ledger, None)

        assert head(ledger) == 1

    def test_same_stay_may_be_told_in_other_words_and_reads(self, ledger: Ledger) -> None:
        opened, (one, *_) = open_rollout(ledger, 1, stage=NodeStage.VERIFYING)
        read = replace(one, good_reads=2, read_at=NOW + HOUR, reason="2 of 3 good reads")
        prolonged = replace(opened, deadline=NOW + DAY, reason="waits")

        change(ledger, prolonged, read)

        assert (ledger.rollout(opened.rollout), ledger.rollout_nodes(opened.rollout)[0]) == (prolonged, read)

    def test_change_is_all_or_none(self, ledger: Ledger) -> None:
        opened, (one, two, _) = open_rollout(ledger, 1)
        after = replace(opened, state=RolloutState.SOAKING)

        with pytest.raises(LedgerConflict, match="gpu002 is pending"):
            change(ledger, after, replace(one, stage=NodeStage.SKIPPED), replace(two, stage=NodeStage.UPDATED))

        assert (ledger.rollout(opened.rollout), head(ledger)) == (opened, 1)
        assert ledger.rollout_nodes(opened.rollout)[0] == one

    def test_thousand_nodes_change_in_one_line(self, ledger: Ledger) -> None:
        names = tuple(f"gpu{number:04d}" for number in range(1000))
        opened, nodes = open_rollout(ledger, 1, names=names)

        change(ledger, None, *(begun(each) for each in nodes))

        assert head(ledger) == 2
        assert ledger.rollout_nodes(opened.rollout) == tuple(begun(each) for each in nodes)
        assert len(ledger.read_state(NOW).owned) == 1000
        assert ledger.verify_chain().problem == ""

    @pytest.mark.parametrize(
        ("nodes", "words"),
        [
            pytest.param((node(1, "gpu009"),), "gpu009 is not in ROLL-0001", id="unknown node"),
            pytest.param((node(7, "gpu001"),), "no rollout ROLL-0007", id="unknown rollout"),
            pytest.param((node(1, "gpu001"), node(7, "gpu001")), "of one rollout", id="of two rollouts"),
            pytest.param((node(1, "gpu001"), node(1, "gpu001")), "given twice", id="one twice"),
        ],
    )
    def test_change_of_what_is_not_there_is_an_error(
        self, ledger: Ledger, nodes: tuple[RolloutNode, ...], words: str
    ) -> None:
        open_rollout(ledger, 1)

        with pytest.raises(LedgerError, match=words):
            change(ledger, None, *nodes)

        assert head(ledger) == 1

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param({"plan": PlanId("PLAN-other")}, id="plan"),
            pytest.param({"release_digest": Digest("0" * 64)}, id="release"),
            pytest.param({"waves": ()}, id="waves"),
            pytest.param({"created_at": NOW + SECOND}, id="its beginning"),
        ],
    )
    def test_what_a_yes_covers_never_changes(self, ledger: Ledger, other: dict[str, object]) -> None:
        opened, _ = open_rollout(ledger, 1)

        with pytest.raises(LedgerConflict, match="is another rollout"):
            change(ledger, replace(opened, **other))  # type: ignore[arg-type]  # fields by name

        assert ledger.rollout(opened.rollout) == opened

    # -- overtaken --

    def test_writer_who_was_overtaken_by_a_whole_wave_conflicts(self, ledger: Ledger) -> None:
        opened, _ = open_rollout(ledger, 1)
        soaking = replace(opened, state=RolloutState.SOAKING, since=NOW + HOUR)
        change(ledger, soaking)
        change(ledger, replace(soaking, state=RolloutState.RUNNING, wave=2, since=NOW + 2 * HOUR))

        with pytest.raises(LedgerConflict, match="wave 2 by now"):
            change(ledger, soaking)

    def test_writer_who_was_overtaken_by_a_pause_and_its_end_conflicts(self, ledger: Ledger) -> None:
        opened, _ = open_rollout(ledger, 1)
        paused = replace(opened, state=RolloutState.PAUSED, since=NOW + SECOND)
        change(ledger, paused)
        change(ledger, replace(opened, since=NOW + 2 * SECOND))

        with pytest.raises(LedgerConflict):
            change(ledger, replace(opened, reason="still at it"))

    @pytest.mark.parametrize("state", sorted(OF_PEOPLE, key=lambda each: each.value))
    @pytest.mark.parametrize("later", [-1, 0, 1])
    def test_pass_that_was_under_way_when_a_person_spoke_does_not_undo_their_word(
        self, ledger: Ledger, state: RolloutState, later: int
    ) -> None:
        opened, _ = open_rollout(ledger, 1, state=state)
        since = opened.since + later * SECOND

        for stale in (RolloutState.RUNNING, RolloutState.SOAKING, RolloutState.ENDING):
            with pytest.raises(LedgerConflict):
                change(ledger, replace(opened, state=stale, since=since), actor=AUTOPILOT)

        assert ledger.rollout(opened.rollout) == opened

    @pytest.mark.parametrize(("later", "is_taken"), [(-1, False), (0, True), (1, True)])
    def test_the_gate_stops_what_people_paused_unless_it_judged_before_their_word(
        self, ledger: Ledger, later: int, is_taken: bool
    ) -> None:
        opened, _ = open_rollout(ledger, 1)
        paused = replace(opened, state=RolloutState.PAUSED, since=NOW + 2 * SECOND)
        change(ledger, paused)
        stopped = replace(opened, state=RolloutState.GOING_BACK, since=paused.since + later * SECOND)

        if is_taken:
            change(ledger, stopped, actor=AUTOPILOT)
        else:
            with pytest.raises(LedgerConflict):
                change(ledger, stopped, actor=AUTOPILOT)

        assert ledger.rollout(opened.rollout) == (stopped if is_taken else paused)

    def test_a_pass_tells_a_pause_in_other_words(self, ledger: Ledger) -> None:
        opened, _ = open_rollout(ledger, 1)
        paused = replace(opened, state=RolloutState.PAUSED, since=NOW + SECOND)
        change(ledger, paused)

        change(ledger, replace(paused, reason="reported again"), actor=AUTOPILOT)

        assert ledger.rollout(opened.rollout) == replace(paused, reason="reported again")

    @pytest.mark.parametrize(
        ("try_number", "step", "is_taken"),
        [(2, 1, True), (2, 2, True), (3, 0, True), (2, 0, False), (1, 1, False), (1, 2, False)],
    )
    def test_node_goes_back_to_no_earlier_try_or_step(
        self, ledger: Ledger, try_number: int, step: int, is_taken: bool
    ) -> None:
        opened = rollout(1)
        present = replace(node(1, "gpu001", stage=NodeStage.INSTALLING), try_number=2, step=1)
        ledger.open_rollout(opened, (present,), plan=rollout_plan(opened), release=RELEASE, actor="ada", now=NOW)
        after = replace(present, stage=NodeStage.ACTIVATING, try_number=try_number, step=step)

        if is_taken:
            change(ledger, None, after)
        else:
            with pytest.raises(LedgerConflict, match="try 2, step 1"):
                change(ledger, None, after)

        assert ledger.rollout_nodes(opened.rollout) == (after if is_taken else present,)

    @pytest.mark.parametrize("state", RolloutState)
    def test_nobody_is_begun_but_while_the_rollout_runs(self, ledger: Ledger, state: RolloutState) -> None:
        opened, (one, *_) = open_rollout(ledger, 1, state=state)

        if state is RolloutState.RUNNING:
            change(ledger, None, begun(one))
        else:
            with pytest.raises(LedgerConflict, match=f"ROLL-0001 is {state.value} by now: gpu001 is not started"):
                change(ledger, None, begun(one))

        assert (ledger.rollout_nodes(opened.rollout)[0] == begun(one)) is (state is RolloutState.RUNNING)

    def test_node_begins_in_the_change_that_lets_the_rollout_run(self, ledger: Ledger) -> None:
        opened, (one, *_) = open_rollout(ledger, 1, state=RolloutState.AWAITING_YES)

        change(ledger, replace(opened, state=RolloutState.RUNNING), begun(one))

        assert set(ledger.read_state(NOW).owned) == {"gpu001"}

    @pytest.mark.parametrize("state", RolloutState)
    def test_updated_node_turns_round_in_every_rollout_that_is_not_final(
        self, ledger: Ledger, state: RolloutState
    ) -> None:
        opened, (one, *_) = open_rollout(ledger, 1, state=state, stage=NodeStage.UPDATED)

        if state in FINAL:
            with pytest.raises(LedgerConflict):
                change(ledger, None, back(1, "gpu001", stage=NodeStage.DRAINING))
        else:
            change(ledger, None, back(1, "gpu001", stage=NodeStage.DRAINING))

        assert (ledger.rollout_nodes(opened.rollout)[0] == one) is (state in FINAL)

    @pytest.mark.parametrize(("wave", "is_taken"), [(1, False), (2, True), (3, True)])
    def test_waiting_node_may_be_put_off_but_not_brought_forward(
        self, ledger: Ledger, wave: int, is_taken: bool
    ) -> None:
        opened = rollout(1)
        present = node(1, "gpu002", wave=2)
        ledger.open_rollout(opened, (present,), plan=rollout_plan(opened), release=RELEASE, actor="ada", now=NOW)
        after = replace(present, wave=wave, since=NOW if wave == 2 else NOW + HOUR, reason="postponed")

        if is_taken:
            change(ledger, None, after)
        else:
            with pytest.raises(LedgerConflict):
                change(ledger, None, after)

        assert ledger.rollout_nodes(opened.rollout) == (after if is_taken else present,)

    def test_node_on_its_way_stays_in_its_wave(self, ledger: Ledger) -> None:
        _, (one, *_) = open_rollout(ledger, 1)

        with pytest.raises(LedgerConflict):
            change(ledger, None, replace(begun(one), wave=2))

    # -- the tables --

    @settings(
        max_examples=20,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(data=st.data())
    def test_what_the_tables_allow_is_stored_and_read_back_and_nothing_else_changes_anything(
        self, ledger: Ledger, data: st.DataObject
    ) -> None:
        number = ledger.rollout_count() + 1
        present, (one, two) = open_rollout(ledger, number, names=(f"a{number}", f"b{number}"))
        nodes = {each.node: each for each in (one, two)}

        for tick in range(1, data.draw(st.integers(1, 16)) + 1):
            at = NOW + tick * SECOND
            before = head(ledger)
            wants_legal = data.draw(st.booleans())
            if data.draw(st.integers(0, 3)) == 0:
                afters = [
                    replace(present, state=state, since=at, wave=_next_wave(present, state)) for state in RolloutState
                ]
                leading = [each for each in afters if _leads(present, each)]
                after = data.draw(st.sampled_from(leading if leading and wants_legal else afters))
                is_legal = after in leading
                _expect(ledger, after, None, is_legal=is_legal)
                present = after if is_legal else present
            else:
                known = nodes[data.draw(st.sampled_from(sorted(nodes)))]
                askeds = [
                    replace(known, stage=stage, direction=direction, since=at, try_number=tick + 1)
                    for stage in NodeStage
                    for direction in Direction
                ]
                legal = [each for each in askeds if _is_legal(known, each, present)]
                asked = data.draw(st.sampled_from(legal if legal and wants_legal else askeds))
                is_legal = asked in legal
                _expect(ledger, None, asked, is_legal=is_legal)
                nodes |= {asked.node: asked} if is_legal else {}
            assert (head(ledger) > before) is is_legal
            assert ledger.rollout(present.rollout) == present
            assert {each.node: each for each in ledger.rollout_nodes(present.rollout)} == nodes
            assert _owned_of(ledger, present) == {
                name for name, each in nodes.items() if each.stage in IN_HAND and present.state not in FINAL
            }
        assert ledger.verify_chain().problem == ""

    # -- read --

    @pytest.mark.parametrize("stage", NodeStage)
    def test_node_is_owned_while_it_is_in_hand(self, ledger: Ledger, stage: NodeStage) -> None:
        open_rollout(ledger, 1, names=("gpu001",), stage=stage)

        assert ledger.read_state(NOW).owned == ({"gpu001": "ROLL-0001"} if stage in IN_HAND else {})

    def test_final_rollouts_are_listed_from_when_they_became_so(self, ledger: Ledger) -> None:
        running, _ = open_rollout(ledger, 1, names=("gpu001",))
        done, _ = open_rollout(ledger, 2, names=("gpu002",), state=RolloutState.DONE)

        listed = {
            since: ledger.rollouts(final_since=since) for since in (NOW - SECOND, NOW, NOW + timedelta(microseconds=1))
        }

        assert ledger.rollouts(final_since=None) == (running,)
        assert list(listed.values()) == [(running, done), (running, done), (running,)]

    def test_older_acts_on_nodes_that_are_out_are_not_forgotten(self, ledger: Ledger) -> None:
        stages = (NodeStage.DRAINING, NodeStage.LOST, NodeStage.PULLED, NodeStage.SOAKING, NodeStage.BACK)
        opened = rollout(1, nodes=[f"gpu{number}" for number in range(5)])
        nodes = [node(1, f"gpu{number}", stage=stage) for number, stage in enumerate(stages)]
        ledger.open_rollout(opened, nodes, plan=rollout_plan(opened), release=RELEASE, actor="ada", now=NOW)
        for each in nodes:
            begin(ledger, drain_for(each))
            ledger.finish(drain_for(each).key, outcome(), actor="autopilot")

        seen = [
            [record.action.node for record in ledger.read_state(at).records]
            for at in (NOW + DAY - SECOND, NOW + DAY, NOW + 99 * DAY)
        ]

        assert seen == [["gpu0", "gpu1", "gpu2", "gpu3", "gpu4"], ["gpu0", "gpu1", "gpu2"], ["gpu0", "gpu1", "gpu2"]]

    def test_acts_of_a_final_rollout_are_shown_for_a_day(self, ledger: Ledger) -> None:
        _, (one,) = open_rollout(ledger, 1, names=("gpu001",), state=RolloutState.ENDING, stage=NodeStage.LOST)
        begin(ledger, drain_for(one))
        ledger.finish(drain_for(one).key, outcome(), actor="autopilot")

        before = ledger.read_state(NOW + DAY).records
        change(ledger, replace(rollout(1, nodes=("gpu001",)), state=RolloutState.ABORTED))

        assert (len(before), len(ledger.read_state(NOW + DAY).records)) == (1, 0)

    def test_acts_are_found_by_cause_and_node(self, ledger: Ledger) -> None:
        _, (one, two, _) = open_rollout(ledger, 1)
        again = replace(one, try_number=2)
        for each in (one, two, again):
            begin(ledger, drain_for(each))

        on_one = ledger.records_on(cause_of(one.rollout), one.node)

        assert [record.action for record in on_one] == [drain_for(one), drain_for(again)]
        assert ledger.records_on(cause_of(RolloutId("ROLL-0002")), one.node) == ()
        assert len(ledger.records(cause_of(one.rollout))) == 3

    # -- people --

    def test_yes_to_the_plan_of_a_rollout_is_kept_under_the_rollout(self, ledger: Ledger) -> None:
        opened, _ = open_rollout(ledger, 1, state=RolloutState.AWAITING_YES)
        yes = Approval(plan=opened.plan, actor="ada", given_at=NOW, expires_at=NOW + HOUR, link="a" * 64)

        ledger.approve(yes)

        assert ledger.read_state(NOW).approvals == (yes,)
        assert ledger.entries_about(cause_of(opened.rollout))[-1].kind is EntryKind.APPROVAL
        with pytest.raises(LinkUsed):
            ledger.approve(yes)
        with pytest.raises(LedgerError, match="no plan PLAN-R2"):
            ledger.approve(replace(yes, plan=PlanId("PLAN-R2")))

    def test_hostile_text_about_a_rollout_is_kept_as_text(self, ledger: Ledger) -> None:
        opened, (one, *_) = open_rollout(ledger, 1)

        change(ledger, replace(opened, reason=HOSTILE, owner=HOSTILE), replace(one, reason=HOSTILE, failure=HOSTILE))

        kept = ledger.rollout(opened.rollout)
        assert kept is not None
        assert "DROP TABLE" in kept.reason
        assert "größer" in ledger.rollout_nodes(opened.rollout)[0].failure
        assert ledger.verify_chain().problem == ""

    def test_rollouts_are_no_incidents(self, ledger: Ledger) -> None:
        open_rollout(ledger, 1)

        state = ledger.read_state(NOW)
        assert (state.incidents, state.incident_count, state.last_change_seq) == ((), 0, {})
        assert {str(name) for each in state.rollouts for wave in each.waves for name in wave.nodes} == set(NODES)


def _leads(present: Rollout, after: Rollout) -> bool:
    return any(ROLLOUT_TABLE.get((present.state, event)) is after.state for event in RolloutEvent)


def _next_wave(present: Rollout, state: RolloutState) -> int:
    """Return the wave that a rollout is in after the event that leads to `state`."""
    advances = any(ROLLOUT_TABLE.get((present.state, event)) is state for event in _ADVANCING)
    return present.wave + 1 if advances else present.wave


def _is_legal(known: RolloutNode, asked: RolloutNode, owner: Rollout) -> bool:
    for event in NodeEvent:
        try:
            stage = next_stage(known.stage, event, direction=known.direction)
        except IllegalRolloutTransitionError:
            continue
        turned = next_direction(event, known.direction)
        is_allowed = owner.state is RolloutState.RUNNING if event is NodeEvent.BEGIN else True
        is_taken = stage in IN_HAND and known.stage not in IN_HAND
        if (stage, turned) == (asked.stage, asked.direction) and is_allowed:
            return not (is_taken and owner.state in FINAL)
    return False


def _expect(ledger: Ledger, after: Rollout | None, asked: RolloutNode | None, *, is_legal: bool) -> None:
    nodes = () if asked is None else (asked,)
    if is_legal:
        ledger.change_rollout(after, nodes, actor="ada", now=NOW)
        return
    with pytest.raises(LedgerConflict):
        ledger.change_rollout(after, nodes, actor="ada", now=NOW)


def _owned_of(ledger: Ledger, owner: Rollout) -> set[str]:
    return {name for name, rollout in ledger.read_state(NOW).owned.items() if rollout == owner.rollout}
