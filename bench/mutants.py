"""How many small changes of the code that decides do the tests notice?

One change at a time (a comparison, a bound, a condition, a filter, a call left out) is made in memory in the modules of
`DECIDING`, drawn evenly over its parts, and the tests that pass through the changed line are run, the quickest first.
What no test notices is shown with its line: it changes nothing that counts, or a test is missing.
`python -m bench.mutants --count 200 --seed 1`; `--map FILE` keeps which tests pass where, which takes some minutes.
"""

import argparse
import ast
import copy
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import coverage
import pytest
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parent.parent
DECIDING = {
    "decide": ["remediate/decide", "remediate/planning"],
    "judge": [
        "remediate/guardrails/judge",
        "remediate/guardrails/blast_radius",
        "remediate/guardrails/budgets",
        "remediate/guardrails/consents",
        "remediate/guardrails/facts",
        "remediate/guardrails/preconditions",
    ],
    "perform": ["remediate/perform", "remediate/judgement", "remediate/carry_out"],
    "prove": ["remediate/gate", "remediate/plan_proof", "remediate/act_proof"],
    "gate": [
        "rollouts/gate/judge_wave",
        "rollouts/gate/measures",
        "rollouts/gate/evidence",
        "rollouts/gate/seen_events",
    ],
    "quotas": ["quotas/proof"],
}
TESTS = ["tests/domain", "tests/flow", "tests/safety", "tests/scenarios"]
_QUICK_SECONDS = 20.0
"""Of tests run first: most changes are noticed by these, and pytest then need not collect the rest."""
_MOST_SECONDS = 60.0
_TIMES_AS_LONG = 8.0
"""A change that makes tests take so many times as long and a minute more (an endless loop) counts as noticed."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the `index`-th that `changes` can make in `path`."""

    part: str
    path: str
    index: int
    lines: range
    """From the first line of its statement to its own."""
    before: str
    after: str


Change = tuple[int, ast.AST, str, Any]


def changes(tree: ast.Module) -> Iterator[Change]:
    """Each change that can be made within functions: first line of its statement, node, field, new value.

    Messages (what is raised, formatted strings) and annotations stay: words are not what decides.
    """
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                yield from _within(statement, statement.lineno)


def _within(node: ast.AST, first: int) -> Iterator[Change]:
    if isinstance(node, ast.stmt):
        first = node.lineno
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assert):
        return
    yield from ((first, node, field, value) for field, value in _of(node))
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _within(child, first)


def _of(node: ast.AST) -> Iterator[tuple[str, Any]]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield "ops", [_COMPARISONS[type(operator)]()]
        case ast.BoolOp():
            yield "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BinOp() if type(node.op) in _OPERATIONS:
            yield "op", _OPERATIONS[type(node.op)]()
        case ast.Constant(value=bool()):
            yield "value", not node.value
        case ast.Constant(value=int() | float() as number):
            yield "value", number + 1
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield "func", ast.copy_location(ast.Name(id=_CALLS[name], ctx=ast.Load()), node.func)
        case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=operand)):
            yield "test", operand
        case ast.If() | ast.IfExp():
            yield "test", ast.copy_location(ast.UnaryOp(op=ast.Not(), operand=node.test), node.test)
        case ast.comprehension(ifs=[_, *_]):
            yield "ifs", []
        case ast.Expr(value=ast.Call()):
            yield "value", ast.copy_location(ast.Constant(value=None), node)


def mutants(part: str, path: str) -> list[Mutant]:
    """All changes of one module."""
    tree = ast.parse((ROOT / path).read_text())
    found = []
    for index, (first, node, field, value) in enumerate(changes(tree)):
        at = node.iter if isinstance(node, ast.comprehension) else node
        changed = copy.copy(node)
        setattr(changed, field, value)
        lines = range(first, getattr(at, "lineno", first) + 1)
        found.append(Mutant(part, path, index, lines, ast.unparse(_head(node)), ast.unparse(_head(changed))))
    return found


def _head(node: ast.AST) -> ast.AST:
    return node.test if isinstance(node, ast.If) else node


def mutated(path: str, index: int) -> CodeType:
    """The module with that one change."""
    tree = ast.parse((ROOT / path).read_text())
    _, node, field, value = next(islice(changes(tree), index, None))
    setattr(node, field, value)
    return compile(ast.fix_missing_locations(tree), str(ROOT / path), "exec")


def draw(count: int, seed: int) -> list[Mutant]:
    """So many changes, as many of each part as of any other."""
    chance = random.Random(seed)
    of_parts = {
        part: [one for name in names for one in mutants(part, f"ops_pipelines/{name}.py")]
        for part, names in DECIDING.items()
    }
    shares = [count // len(of_parts) + (number < count % len(of_parts)) for number in range(len(of_parts))]
    return [one for found, share in zip(of_parts.values(), shares, strict=True) for one in chance.sample(found, share)]


class _Mapper:
    """Which tests pass through which lines, and how long each takes."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.cover.switch_context(item.nodeid)
        began = time.perf_counter()
        yield
        self.seconds[item.nodeid] = time.perf_counter() - began
        self.cover.switch_context("")


def map_tests(target: Path, tests: Sequence[str]) -> None:
    """Write {"seconds": test -> s, "lines": path -> line -> tests}; raises where a test fails without any change."""
    paths = [str(ROOT / f"ops_pipelines/{name}.py") for names in DECIDING.values() for name in names]
    cover = coverage.Coverage(data_file=None, include=paths)
    mapper = _Mapper(cover)
    cover.start()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *tests], plugins=[mapper])
    cover.stop()
    if status != 0:
        raise SystemExit("the tests must pass before anything is changed")
    data = cover.get_data()
    lines = {
        path: {
            str(line): [name for name in names if name]
            for line, names in data.contexts_by_lineno(str(ROOT / path)).items()
        }
        for path in (str(Path(found).relative_to(ROOT)) for found in data.measured_files())
    }
    target.write_text(json.dumps({"seconds": mapper.seconds, "lines": lines}))


class _OnlyThese:
    """Runs the tests asked for and no other, the quickest first."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order = {name: number for number, name in enumerate(order)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self.order), key=lambda one: self.order[one.nodeid])


class _Changed(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code


class _Finder:
    """Gives the changed module to who imports it first."""

    def __init__(self, path: str, index: int) -> None:
        self.name = path.removesuffix(".py").replace("/", ".")
        self.loader = _Changed(self.name, str(ROOT / path), mutated(path, index))

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        return importlib.util.spec_from_file_location(name, self.loader.path, loader=self.loader)


def play(path: str, index: int, batch: Sequence[str]) -> int:
    """Pytest's exit code for these tests, with that change."""
    sys.meta_path.insert(0, _Finder(path, index))
    files = sorted({name.partition("::")[0] for name in batch})
    return int(pytest.main(["-qx", "-p", "no:cacheprovider", *files], plugins=[_OnlyThese(batch)]))


def _noticed(mutant: Mutant, batch: Sequence[str], limit_seconds: float) -> bool:
    with tempfile.TemporaryDirectory() as scratch:
        tests = Path(scratch, "tests.json")
        tests.write_text(json.dumps(batch))
        asked = [sys.executable, "-m", "bench.mutants", "--play", mutant.path, str(mutant.index), str(tests)]
        playing = subprocess.Popen(
            asked,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "TMPDIR": scratch},
        )
        try:
            return playing.wait(limit_seconds) not in (0, 5)  # 5: none of them is there
        except subprocess.TimeoutExpired:
            os.killpg(playing.pid, signal.SIGKILL)
            playing.wait()
            return True


def batches(names: Iterable[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Those of the quickest files first, up to `_QUICK_SECONDS`; then the rest."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names, key=lambda name: seconds[name]):
        by_file[name.partition("::")[0]].append(name)
    quick: list[str] = []
    rest: list[str] = []
    spent = 0.0
    for group in sorted(by_file.values(), key=lambda group: sum(seconds[name] for name in group)):
        spent += sum(seconds[name] for name in group)
        (quick if spent <= _QUICK_SECONDS or not quick else rest).extend(group)
    return [batch for batch in (quick, rest) if batch]


def is_noticed(mutant: Mutant, kept: Mapping[str, Any]) -> bool:
    """Whether a test fails with that change."""
    by_line = kept["lines"].get(mutant.path, {})
    names = {name for line in mutant.lines for name in by_line.get(str(line), [])}
    seconds = kept["seconds"]
    return any(
        _noticed(mutant, batch, _MOST_SECONDS + _TIMES_AS_LONG * sum(seconds[name] for name in batch))
        for batch in batches(names, seconds)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Show what was noticed, by part, and each change that was not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and directories of tests")
    parser.add_argument("--map", type=Path, help="keep the map of tests to lines here, and use it where it exists")
    parser.add_argument("--play", nargs=3, metavar=("PATH", "INDEX", "TESTS"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    os.chdir(ROOT)
    if asked.play:
        return play(asked.play[0], int(asked.play[1]), json.loads(Path(asked.play[2]).read_text()))
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        kept_at = asked.map or Path(scratch, "map.json")
        if not kept_at.exists():
            map_tests(kept_at, asked.tests)
        kept = json.loads(kept_at.read_text())
    drawn = draw(asked.count, asked.seed)
    with Progress(console=console, transient=True) as progress, ThreadPoolExecutor(asked.jobs) as pool:
        task = progress.add_task("changes", total=len(drawn))
        noticed = []
        for answer in pool.map(lambda mutant: is_noticed(mutant, kept), drawn):
            noticed.append(answer)
            progress.advance(task)
    table = Table("part", "changes", "noticed", title="small changes of the code that decides")
    for part in DECIDING:
        of_part = [answer for mutant, answer in zip(drawn, noticed, strict=True) if mutant.part == part]
        table.add_row(part, str(len(of_part)), str(sum(of_part)))
    table.add_row("all", str(len(drawn)), str(sum(noticed)))
    console.print(table)
    for mutant, answer in zip(drawn, noticed, strict=True):
        if not answer:
            console.print(
                f"not noticed: {mutant.path}:{mutant.lines[-1]}: {mutant.before}  →  {mutant.after}", markup=False
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
