"""Texts of Slurm's clients: what each becomes, and that every public file is read or refused with its counts closed."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops_pipelines.lake.formats import slurm
from ops_pipelines.lake.quantities import Parsed, WrongKind
from ops_pipelines.lake.schema import TABLES

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
PUBLIC = Path("../shared/data/slurm_outputs")
RECORDED = Path("tests/data/slurm")
Row = dict[str, object]

EXPECTED: dict[str, tuple[int, int, int, dict[str, int], dict[str, int]] | None] = {
    # read, accepted, ignored, reasons, rows of tables; None: another kind
    "OSC__ood_core/non_utf8_job_name.txt": (1, 1, 0, {}, {"job_accounting": 1}),
    "OSC__ood_core/null_submit_time.txt": (4, 4, 0, {}, {"job_accounting": 4}),
    "OSC__ood_core/owens_nodes.txt": (816, 816, 0, {}, {"inventory": 816}),
    "OSC__ood_core/owens_partitions.txt": (15, 0, 15, {}, {}),
    "OSC__ood_core/sacctmgr_show_accts_owens.txt": None,
    "OSC__ood_core/sinfo_fc.txt": (1, 1, 0, {}, {"platform_telemetry": 1}),
    "SckyzO__slurm_exporter/fairshare.txt": (10, 0, 10, {}, {}),
    "SckyzO__slurm_exporter/gpus_snapshot.txt": (12, 12, 0, {}, {"platform_telemetry": 1}),
    "SckyzO__slurm_exporter/licenses.txt": (2, 0, 2, {}, {}),
    "SckyzO__slurm_exporter/queue_all_states.txt": (55, 28, 27, {}, {"platform_telemetry": 4}),
    "SckyzO__slurm_exporter/readme.md": None,
    "SckyzO__slurm_exporter/reservations_empty.txt": (0, 0, 0, {}, {}),
    "SckyzO__slurm_exporter/slurm-20.11.8/sinfo_gpus_allocated.txt": (3, 0, 3, {}, {}),
    "SckyzO__slurm_exporter/slurm-21.08.5/sinfo_gpus_allocated.txt": None,
    "SckyzO__slurm_exporter/slurm-24.11.7/node_detail.txt": (25, 25, 0, {}, {"inventory": 20}),
    "SckyzO__slurm_exporter/slurm-24.11.7/provenance.txt": None,
    "SckyzO__slurm_exporter/slurm-24.11.7/scontrol_nodes.txt": (20, 20, 0, {}, {"inventory": 20}),
    "facebookresearch__gcm/sample-sinfo-output.txt": (4, 4, 0, {}, {"inventory": 3}),
    "facebookresearch__gcm/sample-squeue-output.txt": (5, 5, 0, {}, {"job_accounting": 5}),
    "facebookresearch__gcm/sample-proc-self-mountinfo-output.txt": None,
    "lcrownover__prometheus-slurm-exporter/V0040OpenapiNodesResp.json": (12, 12, 0, {}, {"inventory": 12}),
    "lcrownover__prometheus-slurm-exporter/V0040OpenapiJobInfoResp.json": (2, 2, 0, {}, {"job_accounting": 2}),
    "rivosinc__prometheus-slurm-exporter/sdiag_2405.json": (1, 1, 0, {}, {"platform_telemetry": 1}),
    "rivosinc__prometheus-slurm-exporter/squeue_fallback.txt": (9, 6, 0, {"broken_json": 3}, {"job_accounting": 6}),
    "rivosinc__prometheus-slurm-exporter/trace_info_body.json": None,
    "vpenso__prometheus-slurm-exporter/sinfo.txt": (709, 709, 0, {}, {"inventory": 709}),
    "vpenso__prometheus-slurm-exporter/sinfo_mem.txt": (21, 21, 0, {}, {"inventory": 8}),
    "vpenso__prometheus-slurm-exporter/squeue.txt": (42, 42, 0, {}, {"job_accounting": 42}),
}


def parse(text: str | bytes) -> Parsed:
    return slurm.parse(text.encode() if isinstance(text, str) else text, source="test", at=AT)


def rows(parsed: Parsed, table: str) -> list[Row]:
    return parsed.tables[table].to_pylist() if table in parsed.tables else []


def check(parsed: Parsed) -> None:
    assert parsed.read == parsed.accepted + parsed.ignored + len(parsed.refused)
    assert len({refused.record for refused in parsed.refused}) == len(parsed.refused)
    for name, table in parsed.tables.items():
        assert table.schema.equals(TABLES[name].arrow())
        keys = list(zip(*(table[key].to_pylist() for key in TABLES[name].sort_order), strict=True))
        assert len(set(keys)) == len(keys)
        assert all(None not in key for key in keys)


# -- public files --


@pytest.mark.parametrize("name", EXPECTED)
def test_public_files_become_what_they_should(name: str) -> None:
    path = PUBLIC / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    expected = EXPECTED[name]
    if expected is None:
        with pytest.raises(WrongKind):
            parse(path.read_bytes())
        return

    parsed = parse(path.read_bytes())

    tables = {table: content.num_rows for table, content in parsed.tables.items()}
    assert (parsed.read, parsed.accepted, parsed.ignored, parsed.reasons, tables) == expected


def every_file() -> Iterator[Path]:
    for folder in (PUBLIC, Path("../shared/samples/slurm-22.05"), RECORDED):
        yield from sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", tuple(every_file()), ids=lambda path: "/".join(path.parts[-2:]))
def test_every_file_closes_its_counts_or_is_refused_with_what_was_found(path: Path) -> None:
    try:
        parsed = parse(path.read_bytes())
    except WrongKind:
        return

    check(parsed)
    assert all(refused.record and refused.detail for refused in parsed.refused)


# -- jobs --


def test_the_start_of_a_waiting_job_and_the_end_of_a_running_one_are_forecasts() -> None:
    parsed = parse(
        "JOBID|STATE|SUBMIT_TIME|START_TIME|END_TIME\n"
        "1|PENDING|2026-11-21T05:00:00|2026-11-21T09:00:00|N/A\n"
        "2|RUNNING|2026-11-21T05:00:00|2026-11-21T05:01:00|2026-11-21T23:00:00\n"
        "3|COMPLETED|2026-11-21T05:00:00|2026-11-21T05:01:00|2026-11-21T05:02:00\n"
    )

    waiting, running, ended = rows(parsed, "job_accounting")
    assert (waiting["attempt"], waiting["started_at"]) == ("unstarted", None)
    assert (running["attempt"], running["ended_at"]) == ("2026-11-21T05:01:00Z", None)
    assert ended["ended_at"] == datetime(2026, 11, 21, 5, 2, tzinfo=UTC)


def test_squeue_as_it_prints_unasked_is_read() -> None:
    parsed = parse(
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        "        30_[3-15%3]     batch    array     root PD       0:00      1 (JobArrayTaskLimit)\n"
        "                29     batch my train     root  R    1-02:03      2 gpu[001-002]\n"
    )

    first, second = rows(parsed, "job_accounting")
    assert (first["job"], first["state"], first["reason"], first["nodes"]) == (
        "30_[3-15%3]",
        "PENDING",
        "JobArrayTaskLimit",
        None,
    )
    assert (second["state"], second["nodes"], second["name"]) == ("RUNNING", "gpu[001-002]", "my train")


def test_scontrol_in_blocks_is_read_as_on_one_line() -> None:
    blocks = parse(
        "JobId=28 JobName=my train\n   UserId=root(0) GroupId=root(0)\n   JobState=RUNNING Reason=None\n"
        "   SubmitTime=2026-11-21T05:00:00 StartTime=2026-11-21T05:01:00 EndTime=2026-11-21T06:01:00\n"
        "   NumNodes=2 NumCPUs=4 TRES=cpu=4,mem=2000M,gres/gpu=16\n   NodeList=gpu[001-002]\n\n"
        "JobId=29 JobName=x UserId=a(1) JobState=PENDING SubmitTime=2026-11-21T05:00:00\n"
    )

    first, second = rows(blocks, "job_accounting")
    assert (first["job"], first["name"], first["user"], first["gpu_count"]) == ("28", "my train", "root", 16)
    assert second["attempt"] == "unstarted"


def test_a_job_name_that_passes_for_fields_is_refused() -> None:
    parsed = parse(
        "JobId=28 JobName=x JobState=COMPLETED UserId=root(0) JobState=RUNNING StartTime=2026-11-21T05:01:00\n"
        "JobId=29 JobName=x UserId=root(0) JobState=RUNNING StartTime=2026-11-21T05:01:00\n"
    )

    assert parsed.reasons == {"ambiguous_fields": 1}
    assert [row["job"] for row in rows(parsed, "job_accounting")] == ["29"]


def test_jobs_without_ids_only_count() -> None:
    parsed = parse("a|RUNNING|8|None|u\na,b|PENDING|8|Priority|u\nb|PENDING|1|Priority|v\n")

    figures = {row["device"]: row for row in rows(parsed, "platform_telemetry")}
    assert (figures[""]["jobs_pending_count"], figures[""]["jobs_running_count"]) == (2, 1)
    assert figures["partition:b"]["jobs_pending_count"] == 2


# -- nodes --


def test_a_node_in_two_partitions_is_one_row() -> None:
    parsed = parse(
        "NODELIST|PARTITION|STATE|CPUS|MEMORY|GRES\nn1|a*|mixed|64|512000|gpu:h100:8\nn1|b|mixed|64|512000|gpu:h100:8\n"
    )

    (row,) = rows(parsed, "inventory")
    assert (parsed.accepted, row["partitions"], row["gpu_count"]) == (2, "a,b", 8)
    assert row["memory_bytes"] == 512_000 * 2**20


def test_a_node_of_scontrol_tells_its_kernel_gpus_and_features() -> None:
    parsed = parse(
        "NodeName=gpu001 Arch=x86_64 CPUTot=64 AvailableFeatures=h100,ib Gres=gpu:h100:8(S:0-1) "
        "OS=Linux 6.8.0-45-generic #45 SMP  RealMemory=512000 State=MIXED+DRAIN Partitions=batch,debug "
        "CfgTRES=cpu=64,mem=500G,gres/gpu=8 Reason=xid79 GPU 3; ticket=INC-1 [root@2026-11-21T05:36:51]\n"
    )

    (row,) = rows(parsed, "inventory")
    assert (row["kernel_version"], row["gpu_count"], row["features"]) == ("6.8.0-45-generic", 8, "h100,ib")
    assert (row["state"], row["partitions"], row["cpu_count"]) == ("MIXED+DRAIN", "batch,debug", 64)


def test_sinfo_unasked_counts_nodes_by_partition() -> None:
    parsed = parse(
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n"
        "batch*       up   infinite      2 drain* gpu[001-002]\n"
        "batch*       up   infinite      5   idle gpu[003-007]\n"
    )

    (row,) = rows(parsed, "platform_telemetry")
    assert (row["device"], row["nodes_drain_count"], row["nodes_idle_count"], row["nodes_total_count"]) == (
        "partition:batch",
        2,
        5,
        7,
    )


def test_grouped_json_of_sinfo_names_each_node() -> None:
    group = {
        "node": {"state": ["IDLE", "DRAIN"]},
        "nodes": {"allocated": 0, "idle": 0, "other": 2, "total": 2, "nodes": ["n1", "n2"]},
        "cpus": {"minimum": 64},
        "gres": {"total": "gpu:h100:8"},
        "partition": {"name": "batch"},
    }

    parsed = parse(json.dumps({"sinfo": [group], "errors": []}))

    assert {(row["node"], row["state"], row["gpu_count"]) for row in rows(parsed, "inventory")} == {
        ("n1", "IDLE+DRAIN", 8),
        ("n2", "IDLE+DRAIN", 8),
    }


def test_counts_that_do_not_add_up_are_refused() -> None:
    parsed = parse("5725/877/34/6636\n5725/877/34/6637\n1/1/0/2\n")

    assert parsed.reasons == {"bad_counts": 1}
    assert parsed.refused[0].record == "line 2"


def test_switches_of_the_topology_are_in_the_inventory() -> None:
    parsed = parse(
        "SwitchName=leaf001 Level=0 LinkSpeed=1 Nodes=gpu[001-008]\nSwitchName=spine Level=1 Switches=leaf001\n"
    )

    assert [(row["device"], row["kind"]) for row in rows(parsed, "inventory")] == [
        ("leaf001", "switch"),
        ("spine", "switch"),
    ]


# -- scheduler --


def test_figures_of_sdiag_are_in_seconds_and_at_its_time() -> None:
    parsed = (
        parse(Path("../shared/samples/slurm-22.05/sdiag.txt").read_bytes())
        if Path("../shared/samples/slurm-22.05/sdiag.txt").exists()
        else pytest.skip("the sample is not here")
    )

    (row,) = rows(parsed, "platform_telemetry")
    assert row["time"] == datetime(2026, 11, 21, 5, 24, 40, tzinfo=UTC)
    assert row["scheduler_cycle_seconds"] == pytest.approx(15e-6)
    assert row["jobs_submitted_count"] == 31


def test_an_answer_that_holds_only_errors_is_refused_whole() -> None:
    body = (RECORDED / "sinfo-22.05-controller-gone-rc-0.json").read_bytes()

    with pytest.raises(WrongKind, match="errors"):
        parse(body)


@pytest.mark.parametrize(
    "text", ["Jobs went fine today.\n", "1196 31 0:59 / /logs rw\n", "a b c d e\n", "{}", "[1]", "x=1\n"]
)
def test_texts_of_no_client_are_another_kind(text: str) -> None:
    with pytest.raises(WrongKind):
        parse(text)


# -- any bytes --


def try_parse(body: bytes) -> None:
    with suppress(WrongKind):
        check(parse(body))


@given(st.binary(max_size=400))
def test_any_bytes_are_parsed_or_another_kind(body: bytes) -> None:
    try_parse(body)


HEADS = (
    "JOBID|STATE|NAME|START_TIME|END_TIME|TRES_ALLOC\n",
    "NODELIST|STATE|CPUS|MEMORY|GRES\n",
    "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n",
    "NodeName=",
    "JobId=1 JobName=",
    '{"jobs": [',
    '{"nodes": [{"name": ',
    '{"sinfo": [{"node": ',
    "sdiag output at ",
    '{"id": 1, "state": "RUNNING", "cpu": 1}\n',
    "1|",
    "n1,",
    "4 mixed ",
)


@given(st.sampled_from(HEADS), st.text(max_size=200))
def test_any_text_after_any_head_closes_its_counts(head: str, text: str) -> None:
    try_parse((head + text).encode("utf-8", errors="replace"))


SEEDS = sorted(RECORDED.glob("*.json"))[:6] + sorted(RECORDED.glob("*.txt"))
if PUBLIC.exists():
    SEEDS += sorted(path for path in PUBLIC.rglob("*.txt") if 0 < path.stat().st_size < 20_000)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_files_that_were_damaged_close_their_counts(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from(SEEDS)).read_bytes()[:8000])
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
    try_parse(bytes(body))


SUMMARY = """PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST
gpu*         up 1-00:00:00      2 drain* n[1-2]
gpu*         up   infinite      1   idle n3
all          up   infinite      1   idle n3
debug      down      30:00      0    n/a
"""


@pytest.mark.parametrize("text", [SUMMARY, SUMMARY.split("\n", 1)[1]], ids=["header", "no header"])
def test_a_summary_of_sinfo_names_every_node_and_counts_them_by_partition(text: str) -> None:
    parsed = parse(text)

    nodes = {row["node"]: (row["state"], row["partitions"]) for row in rows(parsed, "inventory")}
    counts = {row["device"]: row["nodes_total_count"] for row in rows(parsed, "platform_telemetry")}
    assert nodes == {"n1": ("drain*", "gpu"), "n2": ("drain*", "gpu"), "n3": ("idle", "all,gpu")}
    assert counts["partition:gpu"] == 3.0
    assert counts["partition:all"] == 1.0


@pytest.mark.parametrize(
    ("listed", "accepted", "reason"),
    [
        ("n[1-100000]", 1, None),
        ("n[1-100001]", 0, "bad_node_name"),
        ("n[a-b]", 0, "bad_node_name"),
        ("n[3-1]", 0, "bad_node_name"),
    ],
)
def test_a_list_of_nodes_is_taken_apart_or_refused(listed: str, accepted: int, reason: str | None) -> None:
    parsed = parse(f"REASON   USER  TIMESTAMP           NODELIST\nbad gpu  root  2026-01-01T00:00:00 {listed}\n")

    assert (parsed.accepted, parsed.reasons) == (accepted, {} if reason is None else {reason: 1})


def test_lists_of_nodes_that_never_end_are_refused_in_the_end() -> None:
    row = "bad gpu  root  2026-01-01T00:00:00 n[1-100000]\n"

    parsed = parse("REASON   USER  TIMESTAMP           NODELIST\n" + 6 * row)

    assert (parsed.accepted, parsed.reasons) == (5, {"too_many_nodes": 1})


JOB = {"job_id": 7, "job_state": ["RUNNING"], "name": "train", "start_time": {"set": True, "number": 1_700_000_000}}


@pytest.mark.parametrize(
    "text",
    [json.dumps([JOB, {**JOB, "job_id": 8}]), json.dumps(JOB) + "\n" + json.dumps({**JOB, "job_id": 8}, indent=1)],
)
def test_jobs_that_were_taken_out_of_their_answer_are_jobs(text: str) -> None:
    assert [row["job"] for row in rows(parse(text), "job_accounting")] == ["7", "8"]
