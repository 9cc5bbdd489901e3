"""What findings call for together: the strongest over the GPUs, and the driver's own word before any table."""

from collections.abc import Sequence

import pytest

from ops_pipelines.core.finding import Finding, Response
from ops_pipelines.diagnose.hypothesis import gpus_to_reset, response_of
from tests.domain.builders import (
    GPU,
    OTHER_GPU,
    unreachable,
    verdict,
    xid,
)


@pytest.mark.parametrize(
    ("findings", "response"),
    [
        pytest.param([], Response.MONITOR, id="nothing"),
        pytest.param([xid(48), xid(79)], Response.REBOOT_NODE, id="the stronger of two"),
        pytest.param([xid(79), verdict(1)], Response.RESET_GPU, id="the driver asks for less"),
        pytest.param([xid(48), verdict(2)], Response.REBOOT_NODE, id="the driver asks for more"),
        pytest.param([xid(79), verdict(3)], Response.PAGE, id="the driver asks for a person"),
        pytest.param([verdict(1), xid(79)], Response.RESET_GPU, id="whichever is listed first"),
        pytest.param([xid(79), verdict(1, gpu=OTHER_GPU)], Response.REBOOT_NODE, id="not for another GPU"),
        pytest.param([unreachable(), verdict(1)], Response.POWER_CYCLE, id="not for the node as such"),
        pytest.param(
            [verdict(2, seconds_ago=9), verdict(1, seconds_ago=3)], Response.RESET_GPU, id="its newest verdict counts"
        ),
        pytest.param([verdict(1), verdict(2)], Response.REBOOT_NODE, id="the stronger of one instant"),
        pytest.param([xid(79), verdict(0)], Response.REBOOT_NODE, id="no wish takes nothing back"),
        pytest.param(
            [verdict(0, seconds_ago=600), xid(79)], Response.REBOOT_NODE, id="least of all what came after it"
        ),
        pytest.param([verdict(1, seconds_ago=9), verdict(0)], Response.RESET_GPU, id="nor its own earlier wish"),
        pytest.param([verdict(0)], Response.MONITOR, id="alone it is only watched"),
    ],
)
def test_the_driver_outranks_every_table_for_its_gpu_and_only_for_it(
    findings: list[Finding], response: Response
) -> None:
    assert response_of(findings) is response


@pytest.mark.parametrize(
    ("findings", "gpus"),
    [
        pytest.param([xid(48)], {GPU}, id="one"),
        pytest.param([xid(48), xid(95, gpu=OTHER_GPU)], {GPU, OTHER_GPU}, id="two"),
        pytest.param([xid(48), xid(13, gpu=OTHER_GPU)], {GPU}, id="a job's own error beside it"),
        pytest.param([xid(48), xid(54, gpu=OTHER_GPU)], {GPU}, id="a page beside it"),
        pytest.param([xid(48), verdict(3)], set[str](), id="the driver wants a person"),
        pytest.param([unreachable()], set[str](), id="no GPU named"),
    ],
)
def test_only_gpus_with_a_cause_are_reset(findings: Sequence[Finding], gpus: set[str]) -> None:
    assert gpus_to_reset(findings) == gpus
