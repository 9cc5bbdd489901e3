"""The drill's `squeue`: it dates back the start of the jobs that the drill has named so, and of nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ops_pipelines_lab.drills.lab_moments import AGED_SECONDS, squeue_program

JOB = {"name": "aged-young", "restart_cnt": 0, "start_time": 1_795_238_226, "nodes": "gpu001"}


@pytest.mark.parametrize(
    ("job", "is_aged"),
    [
        (JOB, True),
        (JOB | {"name": "young"}, False),
        (JOB | {"restart_cnt": 1}, False),
        (JOB | {"start_time": 0}, False),
        (JOB | {"nodes": ""}, False),
    ],
)
def test_only_the_first_attempt_of_an_aged_job_began_earlier(
    tmp_path: Path, job: dict[str, object], is_aged: bool
) -> None:
    shown = json.loads(squeue(tmp_path, json.dumps({"jobs": [job]})).stdout)

    earlier = AGED_SECONDS if is_aged else 0
    assert shown == {"jobs": [job | {"start_time": int(str(job["start_time"])) - earlier}]}


def test_what_is_no_json_and_the_exit_code_pass_through(tmp_path: Path) -> None:
    done = squeue(tmp_path, "slurm_load_jobs error: Unable to contact slurm controller", code=1)

    assert (done.stdout.strip(), done.returncode) == ("slurm_load_jobs error: Unable to contact slurm controller", 1)


def squeue(folder: Path, says: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the drill's program before a simulated squeue."""
    (folder / "says").write_text(says)
    real = folder / "real"
    real.write_text(f"#!/bin/sh\ncat {folder}/says\nexit {code}\n")
    program = folder / "squeue"
    program.write_text(squeue_program(sys.executable, str(real)))
    for path in (real, program):
        path.chmod(0o755)
    return subprocess.run([str(program), "--json"], capture_output=True, text=True, timeout=30, check=False)
