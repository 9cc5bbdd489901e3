"""docs/ROLLOUTS.md says what the code says: every state and stage, every key with its default, the gate's figures."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from ops_pipelines import cli
from ops_pipelines.core.policy import RolloutLimits
from ops_pipelines.core.release import Claims
from ops_pipelines.core.rollout import FINAL, IN_HAND, OF_PEOPLE, NodeStage, RolloutEvent, RolloutState
from ops_pipelines.resources.config.policy_file import ROLLOUTS
from ops_pipelines.rollouts.course import ROLLOUT_TABLE
from ops_pipelines.rollouts.gate.judge_wave import soak_of, stopped_for
from tests.domain.gate_power import false_stop_bound, power_of_events, power_of_slowdown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ROLLOUTS.md").read_text()
ORDERS = {
    RolloutEvent.YES: "approve",
    RolloutEvent.PAUSE: "pause",
    RolloutEvent.RESUME_UPDATING: "resume",
    RolloutEvent.RESUME_SOAKING: "resume",
    RolloutEvent.RESUME_GOING_BACK: "resume",
    RolloutEvent.ABORT: "abort",
    RolloutEvent.GO_BACK: "back",
}
USUAL_PER_NODE_DAY = 0.0065


def rows(name: str) -> dict[str, list[str]]:
    """Return the rows of the table between two marks by their first cell, without its heading."""
    table = PAGE.split(f"<!-- begin {name} -->")[1].split(f"<!-- end {name} -->")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    return {first.strip("`"): rest for first, *rest in cells}


def whose(state: RolloutState) -> str:
    return "nobody" if state in FINAL else "people" if state in OF_PEOPLE else "autopilot"


def test_the_page_has_every_state_with_who_must_act() -> None:
    assert {state: cells[0] for state, cells in rows("states").items()} == {
        each.value: whose(each) for each in RolloutState
    }


def test_who_waits_for_people_is_told_again_and_nobody_else() -> None:
    told_again = {state for state, cells in rows("states").items() if cells[2]}

    assert told_again == {each.value for each in OF_PEOPLE}


@pytest.mark.parametrize("state", list(RolloutState), ids=lambda state: state.value)
def test_the_page_has_the_orders_that_a_state_takes(state: RolloutState) -> None:
    orders = {ORDERS[event] for known, event in ROLLOUT_TABLE if known is state and event in ORDERS}

    assert set(rows("states")[state.value][3].split(", ")) == (orders or {"nothing"})


def test_the_page_has_every_stage_and_which_of_them_end() -> None:
    stages = rows("stages")

    assert set(stages) == {each.value for each in NodeStage}
    assert {stage for stage, cells in stages.items() if cells[2]} == {each.value for each in IN_HAND}
    assert {stage for stage, cells in stages.items() if cells[0] == "rollout"} == {
        each.value for each in IN_HAND | {NodeStage.PULLED}
    }


def test_the_page_has_every_key_with_its_default() -> None:
    told = {key: yaml.safe_load(cells[0]) for key, cells in rows("keys").items()}

    assert told.keys() == ROLLOUTS.keys.keys()
    assert ROLLOUTS.adapter.validate_python(told) == RolloutLimits()


def test_every_rollout_command_of_the_page_exists() -> None:
    shown = set(re.findall(r"ops-pipelines rollout (\w+)", PAGE))

    said = CliRunner().invoke(cli.app, ["rollout", "--help"], terminal_width=200).output
    assert shown == set(re.findall(r"^  (\w+) {2,}", said.split("Commands:")[1], re.MULTILINE))


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^):#]+)\)", PAGE))))
def test_every_file_that_the_page_links_to_exists(link: str) -> None:
    assert (ROOT / "docs" / link).exists()


def test_the_page_has_how_often_a_good_release_is_stopped() -> None:
    bounds = [1_000 * false_stop_bound(model_count=count) for count in (1, 2, 3)]

    said = "{:.2f} good releases of 1,000 with one model, {:.2f} with two, {:.2f} with three".format(*bounds)
    assert said in PAGE


def test_the_page_has_how_often_more_events_are_found() -> None:
    claims, limits = Claims(), RolloutLimits()
    five, one, usual = (
        power_of_events(
            times * USUAL_PER_NODE_DAY,
            usual_per_node_day=USUAL_PER_NODE_DAY,
            node_count=sum(limits.canary_counts),
            claims=claims,
            soak=soak_of(claims, limits),
            soak_limit=limits.soak_limit,
            kind_count=kind_count,
            stops_for=stopped_for(claims, limits),
            last_look_share=0.5,
        )
        for times, kind_count in ((10, 5), (10, 1), (1, 1))
    )

    assert f"| {int(100 * five.stopped)} % with five kinds of events, {int(100 * one.stopped)} % with one: " in PAGE
    assert f"in {five.mean_days:.1f} and {one.mean_days:.1f} days on average" in PAGE
    assert f"found good after {usual.mean_days:.1f} days on average" in PAGE


def test_the_page_has_how_often_a_slow_release_is_held() -> None:
    found = power_of_slowdown(node_count=4, before_count=8, after_count=2, run_spread_ratio=0.03, claims=Claims())

    assert f"{int(100 * found)} % by 4 canaries with two runs each, 8 runs before and 3 % between runs" in PAGE
