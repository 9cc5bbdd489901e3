"""catalogue/fault_hazards.csv: every fault has a row, every row a source, and a table that says nonsense is refused."""

import pytest

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, Family, FirstAction
from ops_pipelines.core.finding import AT_ONCE, UNKNOWN_HAZARD
from ops_pipelines.resources.catalogue_files import parse_hazards, read_catalogue, read_hazards

HAZARDS = read_hazards()
RATES = {(row.family, row.first_action): row.ends_job_per_hour for row in HAZARDS}
HEAD = "family,first_action,ends_job_per_hour,slowdown_ratio,source,checked_on\n"
ANY = ",,0.5,0,Assumption: any,2026-11-21\n"


def test_the_catalogue_carries_them() -> None:
    assert read_catalogue().hazards == HAZARDS


def test_the_row_for_any_fault_is_the_default_of_the_program() -> None:
    assert RATES[None, None] == UNKNOWN_HAZARD.ends_job_per_hour


def test_every_rate_is_sourced_or_called_an_assumption() -> None:
    assert all(len(row.source) > 40 for row in HAZARDS)
    assert all("Assumption" in row.source for row in HAZARDS if not row.has_ended_job)


@pytest.mark.parametrize(
    ("family", "action"),
    [
        (Family.GPU, FirstAction.RESET_GPU),
        (Family.GPU, FirstAction.REBOOT_NODE),
        (Family.MEMORY, FirstAction.RESET_GPU),
        (Family.NVLINK, FirstAction.RESET_GPU),
        (Family.SILENCE, FirstAction.REBOOT_NODE),
    ],
)
def test_what_stands_still_has_no_future(family: Family, action: FirstAction) -> None:
    assert RATES[family, action] == AT_ONCE


@pytest.mark.parametrize("family", [None, Family.GPU, Family.MEMORY])
def test_what_may_wait_for_the_end_of_the_job_has_a_low_rate(family: Family | None) -> None:
    assert RATES[family, FirstAction.RESET_GPU_AT_JOB_END] <= 0.05


def test_only_what_ends_or_restarts_something_is_called_infinite() -> None:
    endless = {row.first_action for row in HAZARDS if row.has_ended_job}

    assert endless <= {*DESTRUCTIVE_ACTIONS, FirstAction.RESTART_JOB} - {FirstAction.RESET_GPU_AT_JOB_END}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("", "no row with empty family"),
        (ANY + ANY, "more than one row for any family"),
        (ANY + "gpo,,1,0,x,\n", "'gpo' is no Family"),
        (ANY + "gpu,KICK,1,0,x,\n", "'KICK' is no FirstAction"),
        (ANY + "gpu,,soon,0,x,\n", "ends_job_per_hour is 'soon'"),
        (ANY + "gpu,,nan,0,x,\n", "expected a number"),
        (ANY + "gpu,,-0.1,0,x,\n", "expected 0 or more"),
        (ANY + "gpu,,1,-0.1,x,\n", "expected 0 to 1"),
        (ANY + "gpu,,1,1.1,x,\n", "expected 0 to 1"),
        (ANY + "gpu,,1,0,,\n", "no source"),
    ],
)
def test_nonsense_is_refused_with_its_row(rows: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_hazards(HEAD + rows)


@pytest.mark.parametrize(("rate", "slowdown"), [("0", "0"), ("inf", "1"), ("0.1", "0.5")])
def test_the_ends_of_the_ranges_are_accepted(rate: str, slowdown: str) -> None:
    found = parse_hazards(HEAD + ANY + f"gpu,,{rate},{slowdown},somebody,\n")[1]

    assert (found.ends_job_per_hour, found.slowdown_ratio) == (min(float(rate), AT_ONCE), float(slowdown))
