"""The table of log signatures: every rule has an example that it matches, and nothing that is well matches a fault."""

import csv
import gzip
import re
from collections import Counter
from pathlib import Path

import pytest

from ops_pipelines.core.fault import DESTRUCTIVE_ACTIONS, FirstAction
from ops_pipelines.observe.logs.matching import MEANINGS, Origin, Rule, read_rules, shared_matcher
from ops_pipelines.observe.logs.signals import match_buffer
from ops_pipelines.resources.catalogue_files import read_catalogue, read_explaining_catalogue
from tests.frames.judged_lines import judge

SHARED = Path(__file__).parents[3] / "shared"
LABELS = SHARED / "facts" / "labelled_log_lines.tsv"
RULES = read_rules()
ALL_RULES = RULES + read_rules(MEANINGS)
OWN_CATEGORIES = {
    "application_failed", "c2c_link", "checkpoint", "container_runtime", "gpu_firmware", "gpu_memory_correctable",
    "gpu_unhealthy", "healthcheck_failed", "host_boot", "host_cooling", "host_iommu", "host_kernel_warning",
    "host_limit", "host_power", "kubelet", "network_link_down", "nvswitch_thermal", "service_failed",
    "slurm_controller", "storage_ceph", "storage_disk", "storage_full", "storage_gpfs", "storage_object",
    "time_sync", "training_progress", "training_straggler",
}  # fmt: skip
"""What the labelled lines have no word for."""
COMPONENTS = {
    "application", "container", "cooling", "cpu", "disk", "fabric", "gpu", "host", "memory", "nccl", "network",
    "nvlink", "pcie", "power", "scheduler", "storage",
}  # fmt: skip
BENIGN = [
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
    "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  550.54.15",
    "docker0: port 3(veth12ab) entered forwarding state",
    "perf: interrupt took too long (2506 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
    "XFS (nvme1n1): Mounting V5 Filesystem",
    "nvme nvme0: 63/0/0 default/read/poll queues",
    'audit: type=1400 audit(1700000000.123:45): apparmor="STATUS" operation="profile_load"',
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0: DEV 0000:fe:0c.0",
    "mce: CPU supports 32 MCE banks",
    "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
    "ACPI: PCI Interrupt Link [LNKA] enabled at IRQ 10",
    "mlx5_core 0000:18:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 195312Mbps",
    "systemd[1]: Started Session 42 of user root.",
    "sshd[1234]: Accepted publickey for alice from 10.0.0.1 port 55555 ssh2",
    "crond[2916]: (root) CMD (run-parts /etc/cron.hourly)",
    "ntpd[25330]: synchronized to 10.100.20.250, stratum 3",
    "[2026-11-21T07:25:29.123] sched: Allocate JobId=4711 NodeList=gpu[001-004] #CPUs=384 Partition=train",
    "[2026-11-21T07:25:29.123] _slurm_rpc_submit_batch_job: JobId=4712 InitPrio=4294901756 usec=410",
    "slurmstepd: task 0 (12345) exited with exit code 0.",
    "gpu-1:100:200 [3] NCCL INFO Channel 00/08 :    0   1   2   3   4   5   6   7",
    "gpu-1:100:200 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ; OOB eth0:10.1.2.3<0>",
    "INFO:root:loading the tokenizer took 12.5 seconds",
    "[2024-04-29 06:15:07,505] [INFO] [real_accelerator.py:161:get_accelerator] Setting ds_accelerator to cuda",
    "WARNING: the learning rate schedule has no warm-up",
    "Successfully preprocessed all matching files.",
    "chronyd[812]: Selected source 10.1.1.1 (ntp1.example)",
    "the report mentions 79 errors and a GPU",
    "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
    "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
]


def signature(line: str) -> Rule | None:
    _, rules = match_buffer(line.encode()).first_rules()
    return RULES[int(rules[0])] if len(rules) else None


def labelled_lines() -> list[tuple[str, str, str]]:
    if not LABELS.is_file():
        return []
    with LABELS.open(encoding="utf-8") as stream:
        rows = csv.reader((line for line in stream if not line.startswith("#")), delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[0], row[2], row[4]) for row in rows]


def test_there_are_enough_rules_and_no_name_twice() -> None:
    assert len(RULES) >= 160
    assert [name for name, count in Counter(rule.id for rule in ALL_RULES).items() if count > 1] == []


def test_each_rule_is_the_signature_of_its_own_example() -> None:
    found = {rule.id: signature(rule.example) for rule in RULES}

    assert {name: each and each.id for name, each in found.items()} == {name: name for name in found}


def test_crash_of_a_program_is_told_before_any_row_that_takes_a_node_out() -> None:
    signatures = read_catalogue().signatures
    destructive = [place for place, rule in enumerate(RULES) if signatures[rule.id].actions[0] in DESTRUCTIVE_ACTIONS]
    crashes = [place for place, rule in enumerate(RULES) if rule.id in ("nccl_segfault", "program_segfault_kernel")]

    assert len(crashes) == 2
    assert max(crashes) < min(destructive)


def test_rows_have_what_they_must() -> None:
    for rule in ALL_RULES:
        assert re.fullmatch(r"[a-z][a-z0-9_]{2,40}", rule.id), rule
        assert rule.origin in (Origin.KERNEL, Origin.PROGRAM), rule
        assert rule.component in COMPONENTS, rule
        assert rule.level in ("critical", "error", "warning", "notice", "info"), rule
        assert rule.meaning, rule
        assert rule.source, rule
        assert re.fullmatch(r"|20\d\d-\d\d-\d\d", rule.checked_on), rule
        assert "\n" not in rule.example, rule


@pytest.mark.skipif(not LABELS.is_file(), reason="the labelled lines (../shared/facts) are not here")
def test_labelled_lines_have_signatures_of_their_category() -> None:
    found = [(line, label, signature(text)) for line, label, text in labelled_lines()]

    assert len(found) > 90
    assert [each for each in found if each[2] is None or each[2].category != each[1]] == []


@pytest.mark.skipif(not LABELS.is_file(), reason="the labelled lines (../shared/facts) are not here")
def test_every_word_of_the_label_vocabulary_has_a_rule_and_every_category_is_known() -> None:
    head = LABELS.read_text(encoding="utf-8").splitlines()[1]
    vocabulary = set(head.removeprefix("# label vocabulary: ").split())

    assert vocabulary - {rule.category for rule in RULES} == set()
    assert {rule.category for rule in RULES} - vocabulary == OWN_CATEGORIES


def test_meanings_never_hide_a_signature_and_answer_their_own_examples() -> None:
    matcher = shared_matcher(with_meanings=True)
    catalogue = read_explaining_catalogue().signatures
    lines, rules = matcher.match_buffer("\n".join(rule.example for rule in ALL_RULES).encode()).first_rules()
    first = {
        ALL_RULES[line].id: matcher.rules[rule].id for line, rule in zip(lines.tolist(), rules.tolist(), strict=True)
    }

    assert {name: first[name] for name in (rule.id for rule in RULES)} == {rule.id: rule.id for rule in RULES}
    assert [name for name, seen in first.items() if catalogue[seen].actions[0] is not catalogue[name].actions[0]] == []


def test_benign_lines_are_explained_as_nothing_to_do() -> None:
    assert [line for line in BENIGN if FirstAction.NONE not in judge(line).actions] == []


def test_benign_lines_have_no_signature() -> None:
    assert [line for line in BENIGN if signature(line) is not None] == []


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="the public logs (../shared/data) are not here")
def test_healthy_public_logs_raise_no_alarm() -> None:
    """Lines of four public collections without GPUs, and of a training that ended well."""
    calm = {"info", "notice"}
    alarms: Counter[str] = Counter()
    paths = sorted((SHARED / "data" / "loghub").glob("*_2k.log"))
    for path in [*paths, *sorted((SHARED / "data" / "zhejianglab_2024A100" / "taskinfo").glob("*.gz"))]:
        body = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        _, rules = match_buffer(body).first_rules()
        alarms.update(RULES[number].id for number in rules.tolist() if RULES[number].level not in calm)

    # The training's rendezvous could not be shut down at its end: true, and harmless.
    assert set(alarms) <= {"torch_rendezvous"}
