"""Accounting in the dialects of sacct: what is accepted, what is refused and why, and that nothing is lost."""

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.formats import sacct
from ops_pipelines.lake.quantities import Parsed, WrongKind
from ops_pipelines.lake.schema import TABLES

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
DATA = Path("../shared/data")
RECORDED = Path("tests/data/slurm/sacct-22.05-requeued-twice-arrays-and-broken-names.txt")
HEADER = "JobID|JobName|State|ExitCode|Submit|Start|End|Elapsed|Timelimit|ReqMem|NNodes|NCPUS|AllocTRES|NodeList"
GOOD = {
    "JobID": "7",
    "JobName": "train",
    "State": "COMPLETED",
    "ExitCode": "0:0",
    "Submit": "2026-11-21T05:00:00",
    "Start": "2026-11-21T05:01:00",
    "End": "2026-11-21T06:01:00",
    "Elapsed": "01:00:00",
    "Timelimit": "1-00:00:00",
    "ReqMem": "4000Mn",
    "NNodes": "2",
    "NCPUS": "16",
    "AllocTRES": "billing=16,cpu=16,gres/gpu:a100=8,mem=8000M,node=2",
    "NodeList": "gpu[001-002]",
}
Row = dict[str, object]


def line(**cells: str) -> str:
    return "|".join({**GOOD, **cells}.values())


def parse(*lines: str, header: str = HEADER) -> Parsed:
    return sacct.parse("\n".join([header, *lines, ""]).encode(), source="test", at=AT)


def rows(parsed: Parsed, table: str = "job_accounting") -> list[Row]:
    return parsed.tables[table].to_pylist() if table in parsed.tables else []


def one(**cells: str) -> Row:
    parsed = parse(line(**cells))
    assert parsed.reasons == {}
    (row,) = rows(parsed)
    return row


def time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_a_row_becomes_an_attempt_in_base_units() -> None:
    row = one()

    assert row["attempt"] == "2026-11-21T05:01:00Z"
    assert row["time"] == row["ended_at"] == time("2026-11-21T06:01:00")
    assert row["elapsed_seconds"] == 3600
    assert row["time_limit_seconds"] == 86_400
    assert (row["exit_code"], row["exit_signal"]) == (0, 0)
    assert (row["node_count"], row["cpu_count"], row["gpu_count"]) == (2, 16, 8)
    assert row["memory_bytes"] == 2 * 4000 * 2**20
    assert row["nodes"] == "gpu[001-002]"


@pytest.mark.parametrize(
    ("written", "state", "by"),
    [
        ("CANCELLED by 1234", "CANCELLED", "1234"),
        ("cancelled by 0", "CANCELLED", "0"),
        ("CANCELLED", "CANCELLED", None),
        ("OUT_OF_ME+", "OUT_OF_MEMORY", None),
        ("CANCELLED+", "CANCELLED", None),
        ("NF", "NODE_FAIL", None),
        ("Completed", "COMPLETED", None),
        ("3", "COMPLETED", None),
        ("WARPED", "WARPED", None),
    ],
)
def test_states_become_capitals_of_slurm(written: str, state: str, by: str | None) -> None:
    row = one(State=written)

    assert (row["state"], row["cancelled_by"]) == (state, by)


@pytest.mark.parametrize(
    ("written", "job"),
    [("30_7", "30_7"), ("30_[3-15%3]", "30_[3-15%3]"), ("40+1", "40+1"), ("30_[1,3-5]", "30_[1,3-5]")],
)
def test_array_and_heterogeneous_jobs_keep_their_ids(written: str, job: str) -> None:
    assert one(JobID=written)["job"] == job


@pytest.mark.parametrize(
    ("column", "written", "name", "value"),
    [
        ("Elapsed", "02:03.456", "elapsed_seconds", 123.456),
        ("Elapsed", "1-02:03:04", "elapsed_seconds", 93_784),
        ("Timelimit", "UNLIMITED", "time_limit_seconds", None),
        ("Timelimit", "Partition_Limit", "time_limit_seconds", None),
        ("Timelimit", "INVALID", "time_limit_seconds", None),
        ("ReqMem", "64Gc", "memory_bytes", 16 * 64 * 2**30),
        ("ReqMem", "0n", "memory_bytes", None),
        ("ReqMem", "2147486648Mn", "memory_bytes", 16 * 3000 * 2**20),
        ("ReqMem", "1T", "memory_bytes", 2**40),
        ("ReqMem", "62.50G", "memory_bytes", 62.5 * 2**30),
        ("NodeList", "None assigned", "nodes", None),
        ("ExitCode", "0:9", "exit_signal", 9),
        ("AllocTRES", "cpu=8,mem=2G,node=1", "gpu_count", 0),
        ("AllocTRES", "", "gpu_count", None),
        ("AllocTRES", "cpu=1,gres/gpu=4,gres/gpu:a100=4", "gpu_count", 4),
        ("Start", "2026-11-21T06:01:00+0100", "attempt", "2026-11-21T05:01:00Z"),
        ("Start", "2026-11-21T05:01:00Z", "attempt", "2026-11-21T05:01:00Z"),
        ("Start", "1795237260", "attempt", "2026-11-21T05:01:00Z"),
        ("Start", "Unknown", "attempt", "unstarted"),
    ],
)
def test_cells_are_read_in_every_dialect(column: str, written: str, name: str, value: object) -> None:
    assert one(**{column: written})[name] == value


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"JobID": ""}, "no_job_id"),
        ({"JobID": "seven"}, "bad_job_id"),
        ({"State": ""}, "no_state"),
        ({"State": "\x1b[31m"}, "bad_state"),
        ({"Start": "yesterday"}, "bad_time"),
        ({"End": "2026-13-41T05:00:00"}, "bad_time"),
        ({"Elapsed": "-5"}, "bad_duration"),
        ({"ReqMem": "much"}, "bad_memory"),
        ({"ExitCode": "zero"}, "bad_exit_code"),
        ({"NNodes": "-1"}, "bad_number"),
        ({"NCPUS": "nan%"}, "bad_number"),
        ({"End": "2026-11-21T05:00:59"}, "ends_before_it_starts"),
        ({"Submit": "2026-11-21T05:01:01"}, "starts_before_submit"),
    ],
)
def test_what_cannot_be_is_refused_with_its_line_and_reason(cells: dict[str, str], reason: str) -> None:
    parsed = parse(line(JobID="1"), line(**cells))

    assert parsed.reasons == {reason: 1}
    assert parsed.refused[0].record == "line 3"
    assert (parsed.read, parsed.accepted) == (2, 1)


@pytest.mark.parametrize("end", ["2026-11-21T05:01:00", "2026-11-21T05:01:01"])
def test_an_attempt_may_end_in_the_second_in_which_it_started(end: str) -> None:
    assert parse(line(End=end)).accepted == 1


def test_attempts_of_one_job_are_told_apart_by_their_starts() -> None:
    first = line(State="REQUEUED", End="2026-11-21T05:31:00")
    second = line(Submit="2026-11-21T05:31:00", Start="2026-11-21T05:37:00")

    parsed = parse(first, second)

    assert [row["attempt"] for row in rows(parsed)] == ["2026-11-21T05:01:00Z", "2026-11-21T05:37:00Z"]


def test_one_id_used_twice_is_told_apart_by_the_submit_time() -> None:
    cells = {"Start": "Unknown", "State": "CANCELLED"}

    parsed = parse(line(**cells), line(**cells, Submit="2026-11-21T04:00:00"))

    attempts = [row["attempt"] for row in rows(parsed)]
    assert attempts == ["unstarted", "unstarted, submitted 2026-11-21T04:00:00Z"]


def test_the_same_row_again_is_a_duplicate_and_another_of_the_same_attempt_a_conflict() -> None:
    parsed = parse(line(), line(), line(State="FAILED"))

    assert parsed.reasons == {"conflicting_row": 1, "duplicate_row": 1}
    assert parsed.accepted == 1


def test_a_header_in_the_middle_is_ignored_and_blank_lines_are_no_records() -> None:
    parsed = parse(line(JobID="1"), "", HEADER, line(JobID="2"), "   ")

    assert (parsed.read, parsed.accepted, parsed.ignored) == (3, 2, 1)


def test_what_stands_as_the_end_of_a_running_attempt_is_no_end() -> None:
    row = one(State="RUNNING", End="2026-11-21T06:01:00")

    assert row["ended_at"] is None
    assert row["time"] == row["started_at"]


def test_a_job_cancelled_while_it_waited_never_started() -> None:
    moment = "2026-11-21T06:00:00"

    row = one(State="CANCELLED by 0", Start=moment, End=moment, NodeList="None assigned", AllocTRES="")

    assert (row["attempt"], row["started_at"]) == ("unstarted", None)


def test_steps_go_to_their_own_table() -> None:
    parsed = parse(line(), line(JobID="7.batch", State="FAILED"), line(JobID="7.0"), line(JobID="30_1.extern"))

    steps = rows(parsed, "job_steps")
    assert sorted((str(row["job"]), str(row["step"])) for row in steps) == [
        ("30_1", "extern"),
        ("7", "0"),
        ("7", "batch"),
    ]
    assert len(rows(parsed)) == 1


# -- how rows are written --


@pytest.mark.parametrize("delimiter", ["|", "^", ";", "\t", "\x1f", "|#", "~"])
def test_any_delimiter_is_found_in_the_header(delimiter: str) -> None:
    body = "\n".join(text.replace("|", delimiter) for text in (HEADER, line(), line(JobID="8")))

    parsed = sacct.parse(body.encode(), source="test", at=AT)

    assert (parsed.accepted, parsed.reasons) == (2, {})


def test_commas_part_columns_whose_lists_hold_commas() -> None:
    text = line(NodeList="gpu[001,003]").replace("|", ",")

    parsed = parse(text, header=HEADER.replace("|", ","))

    assert parsed.reasons == {}
    assert rows(parsed)[0]["nodes"] == "gpu[001,003]"
    assert rows(parsed)[0]["gpu_count"] == 8


def test_a_delimiter_behind_the_last_column_adds_none() -> None:
    assert parse(line() + "|", header=HEADER + "|").accepted == 1
    assert parse(line() + "|").accepted == 1


@pytest.mark.parametrize("name", ["a|b", "a|b|c", "two\nlines", "two\nlines|and more", "|", "x\n\n\ny"])
def test_a_name_that_holds_delimiters_or_line_breaks_is_put_together_again(name: str) -> None:
    parsed = parse(line(JobID="1"), line(JobName=name), line(JobID="9"))

    assert parsed.reasons == {}
    assert parsed.accepted == 3


def test_a_torn_row_is_refused_and_harms_no_other() -> None:
    parsed = parse(line(JobID="1"), line()[40:], line(JobID="2"), line()[:60], line(JobID="3"))

    assert parsed.reasons == {"field_count": 2}
    assert [refused.record for refused in parsed.refused] == ["line 3", "line 5"]
    assert parsed.accepted == 3


def test_fixed_width_columns_are_cut_by_their_rule() -> None:
    text = (
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n"
        "------------ ---------- ---------- ---------- ---------- ---------- -------- \n"
        "12           train one       batch   research         16 CANCELLED+      0:0 \n"
        "12.batch          batch              research         16  CANCELLED     0:15 \n"
        "13           eval                                      1 OUT_OF_ME+    0:125 \n"
    )

    parsed = sacct.parse(text.encode(), source="test", at=AT)

    assert parsed.reasons == {}
    assert [(row["job"], row["name"], row["state"]) for row in rows(parsed)] == [
        ("12", "train one", "CANCELLED"),
        ("13", "eval", "OUT_OF_MEMORY"),
    ]


def test_invalid_utf8_in_a_name_does_not_refuse_the_row() -> None:
    body = f"{HEADER}\n{line(JobName='n')}\n".encode().replace(b"|n|", b"|caf\xe9 \xff|")

    parsed = sacct.parse(body, source="test", at=AT)

    assert rows(parsed)[0]["name"] == "caf\N{REPLACEMENT CHARACTER} \N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_endings_of_other_systems_are_line_ends(ending: str) -> None:
    assert sacct.parse(ending.join([HEADER, line()]).encode(), source="test", at=AT).accepted == 1


# -- recorded and public files --


def test_a_job_that_a_real_slurm_requeued_twice_has_three_attempts() -> None:
    parsed = sacct.parse(RECORDED.read_bytes(), source="recorded", at=AT)

    attempts = [row for row in rows(parsed) if row["job"] == "1"]
    assert parsed.reasons == {}
    assert [row["state"] for row in attempts] == ["REQUEUED", "REQUEUED", "CANCELLED"]
    assert {row["name"] for row in rows(parsed)} >= {"re|queued", "two\\x0alines|x"}
    assert {row["job"] for row in rows(parsed)} >= {"4_1", "9+0", "9+1"}


def public(name: str) -> bytes:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    body = path.read_bytes()
    return gzip.decompress(body) if path.suffix == ".gz" else body


GCM = "slurm_outputs/facebookresearch__gcm"


@pytest.mark.parametrize(
    ("name", "read", "accepted", "reasons"),
    [
        ("ub_sacct_xdmod/phillips.sacct.parsable.txt.gz", 4285, 4285, {}),
        ("mit_supercloud/slurm_log.csv.gz", 4814, 4814, {}),
        ("ub_sacct_xdmod/jobs_normalised.csv.gz", 4285, 4285, {}),
        (f"{GCM}/sample-sacct-one-multiline.txt", 4, 4, {}),
        (f"{GCM}/sample-sacct-fake-line-break.txt", 4, 4, {}),
        (f"{GCM}/sample-sacct-multiple-multiline.txt", 6, 4, {"duplicate_row": 2}),
        (f"{GCM}/sample-sacct-output-with-invalid-lines.txt", 1, 0, {"field_count": 1}),
        (f"{GCM}/sample-sacct-output-invalid-utf8.txt", 11, 10, {"conflicting_row": 1}),
        (f"{GCM}/sample-sacct-output-midnight-edge-case.txt", 1186, 1186, {}),
        (f"{GCM}/sample-sacct-running-output-large.txt", 5040, 1, {"duplicate_row": 5039}),
        ("slurm_outputs/SckyzO__slurm_exporter/sacct_efficiency.txt", 12, 12, {}),
    ],
)
def test_public_files_close_their_counts(name: str, read: int, accepted: int, reasons: dict[str, int]) -> None:
    parsed = sacct.parse(public(name), source=name, at=AT)

    assert (parsed.read, parsed.accepted, parsed.reasons) == (read, accepted, reasons)


def test_states_and_gpus_of_a_database_dump_are_read() -> None:
    parsed = sacct.parse(public("mit_supercloud/slurm_log.csv.gz"), source="mit", at=AT)

    found = rows(parsed)
    states = {str(row["state"]) for row in found}
    assert states == {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
    assert any(row["gpu_count"] for row in found)
    assert next(row for row in found if row["job"] == "74939900000000_2625")["cpu_count"] == 20


@pytest.mark.parametrize("name", ["mit_supercloud/one_job_cpu_timeseries.csv.gz", f"{GCM}/sample-sacctmgr-qos.txt"])
def test_a_file_of_another_kind_is_refused_whole(name: str) -> None:
    with pytest.raises(WrongKind, match="expected sacct"):
        sacct.parse(public(name), source=name, at=AT)


XDMOD_FIELDS = (
    "JobID|JobIDRaw|Cluster|Partition|QOS|Account|Group|GID|User|UID|Submit|Eligible|Start|End|Elapsed|ExitCode|State|"
    "NNodes|NCPUS|ReqCPUS|ReqMem|ReqTRES|AllocTRES|Timelimit|NodeList|JobName"
)
XDMOD_ROW = (
    "163485|163485|c|batch|normal|chaff|chaff|45789|noror|380693|2016-12-22T07:15:12|2016-12-22T07:15:12|"
    "2016-12-22T07:15:13|2017-01-01T20:42:19|10-13:27:06|0:0|CANCELLED by 380693|1|12|12|31000Mn|cpu=12,node=1|"
    "cpu=12,gres/gpu=2,mem=31000M,node=1|37-14:00:00|cpn-f11-31|290d"
)


@pytest.mark.parametrize("out", [(), ("ReqCPUS",), ("QOS",), ("QOS", "ReqCPUS")])
def test_the_columns_of_xdmod_are_known_without_a_header_whichever_are_left_out(out: tuple[str, ...]) -> None:
    fields, cells = XDMOD_FIELDS.split("|"), XDMOD_ROW.split("|")
    body = "|".join(cell for name, cell in zip(fields, cells, strict=True) if name not in out)

    parsed = sacct.parse(body.encode(), source="test", at=AT)

    (row,) = rows(parsed)
    assert (row["account"], row["user"], row["gpu_count"], row["name"]) == ("chaff", "noror", 2, "290d")


# -- JSON --

JSON_JOB = {
    "job_id": 35,
    "array": {"job_id": 30, "task_id": {"set": True, "infinite": False, "number": 1}, "task": ""},
    "het": {"job_id": 0, "job_offset": {"set": False, "number": 0}},
    "name": "eval",
    "user": "u",
    "state": {"current": ["FAILED"], "reason": "NonZeroExitCode"},
    "time": {
        "submission": 1795238652,
        "start": 1795238653,
        "end": 1795238655,
        "elapsed": 2,
        "limit": {"set": True, "infinite": False, "number": 60},
    },
    "exit_code": {
        "status": ["ERROR"],
        "return_code": {"set": True, "infinite": False, "number": 3},
        "signal": {"id": {"set": False, "infinite": False, "number": 0}, "name": ""},
    },
    "tres": {"allocated": [{"type": "gres", "name": "gpu", "id": 1001, "count": 16}], "requested": []},
    "nodes": "gpu001",
}


def json_body(*jobs: object, release: str = "24.05.4") -> bytes:
    return json.dumps({"meta": {"slurm": {"release": release}}, "errors": [], "jobs": list(jobs)}).encode()


def test_json_of_later_versions_is_read() -> None:
    (row,) = rows(sacct.parse(json_body(JSON_JOB), source="test", at=AT))

    assert (row["job"], row["job_raw"], row["state"], row["exit_code"], row["gpu_count"]) == (
        "30_1",
        "35",
        "FAILED",
        3,
        16,
    )
    assert row["time_limit_seconds"] == 3600


def test_an_exit_code_that_22_05_calls_a_success_is_not_believed_of_a_failed_job() -> None:
    job = JSON_JOB | {"state": {"current": "FAILED"}, "exit_code": {"status": "SUCCESS", "return_code": 0}}

    (row,) = rows(sacct.parse(json_body(job, release="22.05.8"), source="test", at=AT))

    assert row["exit_code"] is None


def test_json_that_was_cut_keeps_the_jobs_that_are_whole() -> None:
    body = json_body(JSON_JOB, JSON_JOB | {"job_id": 36, "array": {}}, JSON_JOB)

    parsed = sacct.parse(body[:-150], source="test", at=AT)

    assert (parsed.read, parsed.accepted, parsed.reasons) == (3, 2, {"broken_json": 1})
    assert parsed.refused[0].record == "jobs[2]"


def test_jobs_of_json_that_cannot_be_are_refused_each() -> None:
    late = {**JSON_JOB, "time": {"start": 20, "end": 10}}

    parsed = sacct.parse(json_body(JSON_JOB, 5, {"time": {}}, late), source="test", at=AT)

    assert parsed.reasons == {"ends_before_it_starts": 1, "no_job_id": 1, "not_an_object": 1}


@pytest.mark.parametrize(
    "body", [b"", b"   \n", b"{}", b"[]", b"hello\n", b'{"nodes": []}', b"\x00\x01\x02", b"JobID\n1\n"]
)
def test_what_is_no_accounting_is_wrong_kind(body: bytes) -> None:
    with pytest.raises(WrongKind):
        sacct.parse(body, source="test", at=AT)


# -- any bytes --


def check(body: bytes) -> None:
    try:
        parsed = sacct.parse(body, source="fuzz", at=AT)
    except WrongKind:
        return
    assert parsed.read == parsed.accepted + parsed.ignored + len(parsed.refused)
    assert len({refused.record for refused in parsed.refused}) == len(parsed.refused)
    assert all(refused.reason.isascii() and refused.reason.islower() for refused in parsed.refused)
    for name, table in parsed.tables.items():
        assert table.schema.equals(TABLES[name].arrow())
        table.validate(full=True)
        keys = list(zip(*(table[key].to_pylist() for key in TABLES[name].sort_order), strict=True))
        assert len(set(keys)) == len(keys)
        assert all(None not in key for key in keys)


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_wrong_kind(body: bytes) -> None:
    check(body)


@given(st.lists(st.text(max_size=40), max_size=20), st.sampled_from(["|", ",", "\t", "\x1f"]))
def test_any_rows_under_a_header_close_their_counts(cells: list[str], delimiter: str) -> None:
    text = HEADER.replace("|", delimiter) + "\n" + "\n".join(cells) + "\n" + delimiter.join(cells)
    check(text.encode("utf-8", errors="replace"))


SEEDS = [
    RECORDED.read_bytes(),
    f"{HEADER}\n{line()}\n{line(JobID='8.batch')}\n".encode(),
    json_body(JSON_JOB, JSON_JOB),
]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_files_that_were_damaged_close_their_counts(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        match data.draw(st.sampled_from(["cut", "swap", "drop", "double"])):
            case "cut":
                del body[at:]
            case "swap" if body:
                body[at] = data.draw(st.integers(0, 255))
            case "drop":
                del body[at : at + data.draw(st.integers(1, 30))]
            case _:
                body[at:at] = body[at : at + 50]
    check(bytes(body))


@pytest.mark.parametrize(
    ("identity", "job"),
    [("mitsc-00001", "mitsc-00001"), ("application_15_2", "application_15_2"), ("12", "12"), ("a b", None)],
)
def test_a_published_trace_names_jobs_in_its_own_way(identity: str, job: str | None) -> None:
    body = f"job_id,user,submit_ts,start_ts,end_ts,state\n{identity},u,100,200,300,COMPLETED\n"

    parsed = sacct.parse(body.encode(), source="test", at=datetime(2026, 1, 1, tzinfo=UTC))

    assert [row["job"] for row in rows(parsed)] == ([] if job is None else [job])
    assert parsed.reasons == ({"bad_job_id": 1} if job is None else {})
