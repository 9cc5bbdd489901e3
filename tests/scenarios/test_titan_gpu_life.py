"""Titan, a real case: the alarm names the wave of failing resistors, and where it struck, long before it was
reported."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache

import pytest

from bench.titan import END, FILE, QUARTER, Titan, alarms, columns_of, judge_lemons, read_titan
from ops_pipelines.diagnose.defects import FLEET, DefectAlarm, compare_groups

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="the public files are not beside this checkout")
OPENLY_RISING = datetime(2016, 6, 1, tzinfo=UTC)
"""The paper has the failures rise "about mid 2016"."""
MTBF_BELOW_A_DAY = datetime(2015, 10, 1, tzinfo=UTC)
"""The quarter in which it finds, in hindsight, less than a day between failures."""


@cache
def titan() -> Titan:
    return read_titan()


@cache
def first_alarms() -> Mapping[tuple[str, str], DefectAlarm]:
    return {(alarm.first.kind, alarm.first.group): alarm for alarm in alarms(titan())}


def test_the_file_is_read_as_its_readme_says() -> None:
    service, failures = columns_of(titan())

    assert len(titan().stays) == 20_269 + 798  # rows of stays, and rows that tell a stay with the failure that ended it
    assert len(titan().failures) == 1_463  # 1,469 rows, six of them reported twice
    assert len(set(service.part.tolist())) == 19_041
    assert (failures.stretch >= 0).all()
    assert {str(batch) for batch in service.labels["batch"]} >= {"2012-W36", "2012-W37", "2012-W38"}


def test_the_fleets_rise_is_an_alarm_before_the_quarter_in_which_it_became_bad() -> None:
    alarm = first_alarms()[FLEET, FLEET]

    assert alarm.at < MTBF_BELOW_A_DAY < OPENLY_RISING
    assert alarm.first.ratio_low > 1.5


def test_the_hot_top_cage_is_named_and_the_cool_bottom_one_is_not() -> None:
    assert first_alarms()["cage", "2"].at < MTBF_BELOW_A_DAY
    assert ("cage", "0") not in first_alarms()
    assert ("cage", "1") not in first_alarms()


def test_the_half_of_the_board_that_gets_the_warmer_air_is_named() -> None:
    assert first_alarms()["board half", "n0-n1"].at < OPENLY_RISING
    assert ("board half", "n2-n3") not in first_alarms()


def test_nothing_alarms_while_the_machine_was_well() -> None:
    assert min(alarm.at for alarm in first_alarms().values()) > datetime(2015, 8, 1, tzinfo=UTC)


def test_the_ratio_of_the_top_cage_is_what_counting_by_hand_gives() -> None:
    service, failures = columns_of(titan())
    begin = END.timestamp() - 90 * 86_400
    failed = {
        int(service.part[place]): str(service.labels["cage"][place])
        for at, place in sorted(zip(failures.at, failures.stretch, strict=True), reverse=True)
        if begin <= at < END.timestamp()
    }

    (top,) = (rate for rate in compare_groups(service, failures, at=END) if (rate.kind, rate.group) == ("cage", "2"))

    assert top.failed_count == sum(cage == "2" for cage in failed.values())
    assert top.ratio == pytest.approx(2 * top.failed_count / (len(failed) - top.failed_count), rel=0.03)


def test_lemons_fail_again_far_more_often_and_only_their_serial_follows_them() -> None:
    by_serial = [judge_lemons(titan(), at=END - count * QUARTER, by_place=False) for count in (1, 2)]
    by_place = [judge_lemons(titan(), at=END - count * QUARTER, by_place=True) for count in (1, 2)]

    called, again = sum(each.lemon_count for each in by_serial), sum(each.failed_later for each in by_serial)
    places, again_there = sum(each.lemon_count for each in by_place), sum(each.failed_later for each in by_place)
    others = sum(each.others_failed_later for each in by_serial) / sum(each.other_count for each in by_serial)
    assert again / called > 20 * others
    assert again / called > again_there / places
