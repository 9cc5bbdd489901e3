"""`dcgmi diag`: runs a level or the memory test, and reads the JSON of DCGM 3 and of DCGM 4.

DCGM 3 names the diagnostic `DCGM GPU Diagnostic` and each GPU `gpu_ids` or `gpu_id`; DCGM 4 names it `DCGM Diagnostic`,
each part by entity, and adds a `test_summary`. Both may print lines around the object. A status that is not known here
proves nothing. What may be concluded from an exit code stands in `results`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ops_pipelines.core.node_tests import Measurement, TestRun
from ops_pipelines.resources.node_tests.results import Bench, NodeTest, failed, last_words, not_run, passed, unanswered

_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_SOFTWARE = "deployment"
"""The category that looks at software alone: at every level above the first it proves nothing of the hardware."""
_PASS, _FAIL, _SKIP = frozenset({"pass"}), frozenset({"fail", "warn"}), frozenset({"skip", "skipped", "not run"})
"""dcgmi itself shows a warning as a failure."""
_WANTED: Mapping[int, tuple[str, ...]] = {2: ("memory",), 3: ("stress", "diagnostic")}
"""What must have passed for a level to have been run: names of both versions of DCGM hold these words."""
_BANDWIDTH = re.compile(r"(GPU to Host|Host to GPU) bandwidth:\s*([0-9]+(?:\.[0-9]+)?) GB/s")
_MEASURED = {"GPU to Host": "gpu_to_host", "Host to GPU": "host_to_gpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmAnswer:
    """What a diagnostic found: its tests by what came of them."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: tuple[str, ...]
    unclear: tuple[str, ...]
    """Tests whose status is not known here."""
    partial: tuple[str, ...]
    """Tests that passed on some GPUs and were skipped on others."""
    hardware_passed: tuple[str, ...]
    """Those of `passed` that look at more than software."""
    warnings: tuple[str, ...]
    lowest_gb_per_second: Mapping[str, float]
    """By direction, of the GPU that has the least."""


class NotDcgm(ValueError):
    """The output holds no diagnostic that could be read."""


def dcgm_level(level: int) -> NodeTest:
    """Return the test of one level of the diagnostic."""
    name = f"dcgm_diag_r{level}"
    return lambda bench, limit: _diagnose(name, str(level), bench, limit, wanted=_WANTED.get(level, ()))


def dcgm_memtest(bench: Bench, limit_seconds: float) -> TestRun:
    """Run DCGM's memory test over the whole memory of every GPU."""
    return _diagnose("dcgm_memtest", "memtest", bench, limit_seconds, wanted=("memtest",))


def _diagnose(test: str, what: str, bench: Bench, limit_seconds: float, *, wanted: Sequence[str]) -> TestRun:
    answer = bench.run(("dcgmi", "diag", "-r", what, "-j"), limit_seconds=limit_seconds)
    without = unanswered(test, "dcgmi diag", answer, limit_seconds=limit_seconds)
    if without is not None:
        return without
    try:
        found = read_dcgm(answer.stdout)
    except NotDcgm as problem:
        return not_run(test, f"dcgmi diag ended with {answer.returncode} and told no results: {problem}; "
                             f"{last_words(answer)}")  # fmt: skip
    numbers = tuple(
        Measurement(name=name, value=value, unit="GB/s") for name, value in sorted(found.lowest_gb_per_second.items())
    )
    why = f": {'; '.join(found.warnings)}" if found.warnings else ""
    if found.failed:
        return failed(test, f"DCGM fails {', '.join(found.failed)}{why}", numbers)
    if answer.returncode != 0:
        return failed(test, f"DCGM names no failure and ended with {answer.returncode}{why}", numbers)
    if found.partial:
        return not_run(test, f"DCGM skipped part of the GPUs in {', '.join(found.partial)}{why}", numbers)
    if found.unclear:
        return not_run(test, f"DCGM tells of {', '.join(found.unclear)} in words that are not known here{why}", numbers)
    proven = found.passed if what == "1" else found.hardware_passed
    if proven and wanted and not any(word in name.lower() for word in wanted for name in proven):
        return not_run(test, f"DCGM did not run {' or '.join(wanted)}{why}", numbers)
    if not proven:
        return not_run(
            test, f"DCGM skipped everything that looks at the GPUs: {', '.join(found.skipped)}{why}", numbers
        )
    skipped = f"; skipped {', '.join(found.skipped)}" if found.skipped else ""
    return passed(test, f"{', '.join(found.passed)}{skipped}", numbers)


def read_dcgm(text: str) -> DcgmAnswer:
    """Return what a diagnostic found; raise NotDcgm if `text` holds none, or an error in its place."""
    begin, end = text.find("{"), text.rfind("}")
    if begin < 0 or end < begin:
        raise NotDcgm("there is no JSON in its output")
    try:
        document = json.loads(text[begin : end + 1])
    except (ValueError, RecursionError) as problem:
        raise NotDcgm(f"its JSON cannot be read ({problem})") from problem
    root = next((document[name] for name in _ROOTS if isinstance(document.get(name), dict)), None)
    if root is None:
        raise NotDcgm(f"its JSON has none of {', '.join(_ROOTS)}")
    error = root.get("runtime_error")
    if error:
        raise NotDcgm(f"DCGM says: {error}")
    statuses: defaultdict[str, set[str]] = defaultdict(set)
    software: set[str] = set()
    warnings: list[str] = []
    lowest: dict[str, float] = {}
    for category, name, result in _results(root):
        statuses[name].add(str(result.get("status", "")).lower())
        if category == _SOFTWARE:
            software.add(name)
        warnings += _texts(result.get("warnings"))
        for said in _texts(result.get("info")):
            for direction, value in _BANDWIDTH.findall(said):
                key = _MEASURED[direction]
                lowest[key] = min(lowest.get(key, float(value)), float(value))
    if not statuses:
        raise NotDcgm("it lists no tests")
    passed_tests = tuple(name for name, told in statuses.items() if told and told <= _PASS)
    return DcgmAnswer(
        passed=passed_tests,
        failed=tuple(name for name, told in statuses.items() if told & _FAIL),
        skipped=tuple(name for name, told in statuses.items() if told <= _SKIP),
        unclear=tuple(name for name, told in statuses.items() if not told & _FAIL and told - _PASS - _SKIP),
        partial=tuple(
            name for name, told in statuses.items() if told & _PASS and told & _SKIP and told <= _PASS | _SKIP
        ),
        hardware_passed=tuple(name for name in passed_tests if name not in software),
        warnings=tuple(dict.fromkeys(warnings)),
        lowest_gb_per_second=lowest,
    )


def _results(root: Mapping[str, object]) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield category, test and each result. Null entries are holes that DCGM 3 leaves."""
    for category in _objects(root.get("test_categories")):
        for test in _objects(category.get("tests")):
            name = str(test.get("name", "a test without a name"))
            told = [*_objects(test.get("results")), *_objects([test.get("test_summary")])]
            for result in told:
                yield str(category.get("category", "")).lower(), name, result


def _objects(value: object) -> list[Mapping[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    """Return warnings or infos as texts: DCGM has written them as one text, as a list, and as objects."""
    if isinstance(value, str):
        return [value]
    texts = []
    for each in value if isinstance(value, list) else []:
        told = each.get("warning", each.get("warnings")) if isinstance(each, dict) else each
        if isinstance(told, str) and told.strip():
            texts.append(" ".join(told.split()))
    return texts
