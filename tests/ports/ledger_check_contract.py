"""The part of the ledger's contract on tests of nodes: what they found, the verdict, and which are the newest."""

from dataclasses import replace
from datetime import UTC, datetime

from ops_pipelines.core.identity import ActionKey, GpuUuid, NodeName, PciAddress
from ops_pipelines.core.ledger import Ledger
from ops_pipelines.core.node_tests import Measurement, NodeCheck, Serial, TestResult, TestRun
from ops_pipelines.core.observation import GpuInspection, NodeInspection, RecoveryAction
from tests.ports.ledger_samples import HOSTILE, NOW, SECOND, fill

GPU = PciAddress("0000:1b:00")


def node_check(key: str = "k-1", *, node: str = "gpu003", at: datetime = NOW, said: str = "") -> NodeCheck:
    return NodeCheck(
        key=ActionKey(key),
        node=NodeName(node),
        suite="memory",
        started_at=at - 90 * SECOND,
        finished_at=at,
        tests=(
            TestRun(test="nvml", result=TestResult.PASSED, said=said, seconds=0.5),
            TestRun(test="dcgm_memtest", result=TestResult.NOT_RUN, said="dcgmi is not installed"),
            TestRun(
                test="nccl_loopback",
                result=TestResult.FAILED,
                said="too slow",
                seconds=40.25,
                measurements=(Measurement(name="busbw", value=211.5, unit="GB/s", gpu=GPU),),
            ),
        ),
        gpu_models=("NVIDIA H100 80GB HBM3",),
        serials=(Serial(part="gpu 0000:1b:00", serial="1652823054567", model="H100", firmware="96.00.89"),),
        inspection=NodeInspection(
            node=NodeName(node),
            inspected_at=at,
            boot_id="b-2",
            booted_at=at - 600 * SECOND,
            gpus=(
                GpuInspection(
                    gpu=GPU,
                    gpu_uuid=GpuUuid("GPU-1"),
                    recovery_action=RecoveryAction.NONE,
                    uncorrectable_ecc_count=0,
                    is_row_remap_pending=False,
                    model="H100",
                    serial="1652823054567",
                ),
            ),
            failures=(),
            chassis_serial="C-17",
        ),
    )


class LedgerCheckContract:
    """Mixed into `LedgerContract`, which names the fixture."""

    def test_check_comes_back_as_it_was_kept_with_its_verdict(self, ledger: Ledger) -> None:
        ledger.keep_check(node_check(), is_well=False)

        assert ledger.checks(NodeName("gpu003"), limit=9) == ((node_check(), False),)

    def test_node_that_was_never_tested_has_no_checks(self, ledger: Ledger) -> None:
        ledger.keep_check(node_check(node="gpu004"), is_well=True)

        assert ledger.checks(NodeName("gpu003"), limit=9) == ()

    def test_newest_checks_come_first_and_no_more_than_asked_for(self, ledger: Ledger) -> None:
        for second in (2, 0, 3, 1):
            ledger.keep_check(node_check(f"k-{second}", at=NOW + second * SECOND), is_well=second % 2 == 1)
            ledger.keep_check(node_check(f"other-{second}", node="gpu004"), is_well=True)

        told = [(check.key, is_well) for check, is_well in ledger.checks(NodeName("gpu003"), limit=3)]

        assert told == [("k-1", True), ("k-3", True), ("k-0", False)]

    def test_node_whose_clock_ran_ahead_does_not_cover_up_its_later_checks(self, ledger: Ledger) -> None:
        for number in range(3):
            far = datetime(9999, 12, 31, tzinfo=UTC) - number * SECOND
            ledger.keep_check(node_check(f"far-{number}", at=far), is_well=True)
        ledger.keep_check(node_check("k-1"), is_well=False)

        told = [(check.key, is_well) for check, is_well in ledger.checks(NodeName("gpu003"), limit=2)]

        assert told == [("k-1", False), ("far-2", True)]

    def test_same_check_again_changes_nothing(self, ledger: Ledger) -> None:
        first = ledger.keep_check(node_check(), is_well=True)

        again = ledger.keep_check(node_check(), is_well=True)

        assert again == first
        assert len(ledger.checks(NodeName("gpu003"), limit=9)) == 1

    def test_of_two_results_under_one_key_the_first_stays(self, ledger: Ledger) -> None:
        first = ledger.keep_check(node_check(), is_well=False)

        second = ledger.keep_check(node_check(said="another"), is_well=True)

        assert second == first
        assert ledger.checks(NodeName("gpu003"), limit=9) == ((node_check(), False),)

    def test_check_is_a_document_under_its_digest_and_no_line_of_the_chain(self, ledger: Ledger) -> None:
        digest = ledger.keep_check(node_check(), is_well=True)

        assert "1652823054567" in ledger.load(digest)
        assert ledger.read_state(NOW).head_seq == 0

    def test_same_tests_with_another_verdict_are_another_document(self, ledger: Ledger) -> None:
        well = ledger.keep_check(node_check("k-1"), is_well=True)
        unwell = ledger.keep_check(node_check("k-2"), is_well=False)

        assert well != unwell

    def test_hostile_words_of_a_check_are_kept_as_words(self, ledger: Ledger) -> None:
        fill(ledger)
        check = replace(node_check(node=HOSTILE, said=HOSTILE), suite=HOSTILE)

        ledger.keep_check(check, is_well=True)

        ((kept, _),) = ledger.checks(NodeName(HOSTILE), limit=9)
        assert "DROP TABLE" in kept.tests[0].said
        assert ledger.verify_chain().problem == ""
