"""How large the product is: modules, and lines of code without blanks, comments and docstrings (`make size`)."""

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

PRODUCT, LABORATORY = "ops_pipelines", "ops_pipelines_lab"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_LONGEST_COUNT = 8


def code_lines(source: str) -> int:
    """Return how many lines of a module hold code; a line within a text of several lines counts, a docstring not."""
    texts = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - texts)


def _modules(root: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each module by its name with its code lines and all its lines."""
    for path in sorted(root.rglob("*.py")):
        source = path.read_text()
        yield ".".join(path.with_suffix("").parts), code_lines(source), source.count("\n")


def main() -> None:
    """Print the table."""
    table = Table(title="size: modules and lines of code, without blanks, comments and docstrings")
    for column in ("room", "modules", "code lines"):
        table.add_column(column, justify="left" if column == "room" else "right")
    lengths = [*_add_rooms(table, PRODUCT), *_add_rooms(table, LABORATORY)]
    console = Console()
    console.print(table)
    longest = ", ".join(f"{name} {length}" for length, name in sorted(lengths, reverse=True)[:_LONGEST_COUNT])
    console.print(f"the longest, with all their lines: {longest}")


def _add_rooms(table: Table, package: str) -> list[tuple[int, str]]:
    """Add a row for each room of a package and their sum; return how long each module is."""
    counts: Counter[str] = Counter()
    code: Counter[str] = Counter()
    lengths: list[tuple[int, str]] = []
    for name, lines, length in _modules(Path(package)):
        room = name.split(".")[1]
        counts[room] += 1
        code[room] += lines
        lengths.append((length, name))
    for room, lines in code.most_common():
        if counts[room] > 1:
            table.add_row(room, str(counts[room]), f"{lines:,}")
    single = [each for each in code if counts[each] == 1]
    table.add_row("modules beside these", str(len(single)), f"{sum(code[each] for each in single):,}", end_section=True)
    table.add_row(package, str(counts.total()), f"{code.total():,}", style="bold", end_section=True)
    return lengths


if __name__ == "__main__":
    main()
