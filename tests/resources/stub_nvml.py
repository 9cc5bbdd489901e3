"""A library that speaks NVML's C interface, compiled here, read through the real pynvml in a process of its own.

Skips where there is no C compiler, unless OPS_PIPELINES_REQUIRE_SERVERS=1 says it must be there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data" / "nvml"
H100, H200 = (DATA / "h100.txt").read_text(), (DATA / "h200.txt").read_text()

_READ_ALL = """
import json, os, sys
from ops_pipelines.clock import SystemClock
from ops_pipelines.core.sources import SourceUnavailable
from ops_pipelines.resources.node.nvml import read_all
from ops_pipelines.resources.nvml import NvmlMetrics

reported = {}
for name, path in json.loads(sys.argv[1]).items():
    os.environ["NVML_STUB_VALUES"] = path
    at = SystemClock().now()
    try:
        (page,) = NvmlMetrics(node="gpu003").read_range([], start=at, end=at, step_seconds=15)
        body, notes = page.body.decode(), list(page.notes)
    except SourceUnavailable as problem:
        body, notes = "", [str(problem)]
    reported[name] = {"check": read_all("gpu003"), "page": body, "notes": notes}
print(json.dumps(reported))
"""


def build_stub(directory: Path) -> Path:
    """Return the directory of a freshly compiled libnvidia-ml.so.1; skip the test without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        if os.environ.get("OPS_PIPELINES_REQUIRE_SERVERS") == "1":
            pytest.fail("no C compiler (cc), and OPS_PIPELINES_REQUIRE_SERVERS=1")
        pytest.skip("no C compiler (cc) on this machine")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(directory / "libnvidia-ml.so.1"), str(DATA / "stub_nvml.c")],
        check=True,
        capture_output=True,
    )
    return directory


def read_variants(library: Path, variants: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return, for each text of values, what the node check and the metrics read through pynvml."""
    paths = {}
    for number, (name, text) in enumerate(variants.items()):
        path = library / f"values-{number}.txt"
        path.write_text(text)
        paths[name] = str(path)
    answer = subprocess.run(
        [sys.executable, "-c", _READ_ALL, json.dumps(paths)],
        env={**os.environ, "LD_LIBRARY_PATH": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, dict[str, Any]] = json.loads(answer.stdout)
    return told
