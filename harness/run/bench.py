"""`assay bench`: implementations timed in turns in one process, as ratios, beside the floor that the machine sets."""
from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from assay.errors import UsageError

ROUNDS = 9
PATIENCE = 300.0  # seconds for one workload of one implementation, cold compilers and all
COLUMNS = ("implementation", "on this example", "time ÷ peer", "share of floor", "memory grows as", "multiply-adds")


@dataclass
class BenchReport:
    """Rows as `timing.Row` has them. `ended`: how the process ended, where it did not end by itself."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    threads: int = 1
    ended: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows], "threads": self.threads, "ended": self.ended}

    def groups(self) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
        """Rows by what was timed, under a heading."""
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            title = f"{row['kind']} · {row['workload']} · {row['mode']} · {row['dtype']} · {row['device']}"
            found.setdefault(title, []).append(row)
        yield from found.items()

    def lines(self) -> list[str]:
        """Plain text, a line a row."""
        said = []
        for title, rows in self.groups():
            said += [title, *("  " + " · ".join(part for part in cells(row) if part) for row in rows), ""]
        return [*said, *([self.ended] if self.ended else [])]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for title, rows in self.groups():
            table = Table(*COLUMNS, title=title, title_justify="left")
            for row in rows:
                table.add_row(*(Text(cell) for cell in cells(row)))
            yield table
        yield Text("Ratios from one run, the median over rounds and its quartiles; below 1 is faster than the first row, the peer.")
        if self.ended:
            yield Text(self.ended)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row in words."""
    if row["ratio"] is None:
        return row["implementation"], row["right"], f"not timed: {row['note']}", "", "", ""
    share, grows, products = row["share_of_floor"], row["memory_exponent"], row["multiply_adds"]
    return (row["implementation"], row["right"], f"{row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f})",
            f"{share:.0%}" if share is not None else "", f"size^{grows:.1f}" if grows is not None else "",
            f"{products:,}" if products else "")


def run(targets: Sequence[str], *, kind: str | None = None, dtype: str = "float32", device: str = "cpu",
        rounds: int = ROUNDS) -> BenchReport:
    """Time targets (files, built-in names, or kinds: all built-in ones of it) against the peer of their kind.

    They run in a process of their own: one that dies or hangs loses nothing that was measured before.
    """
    request = {"targets": list(targets), "kind": kind, "dtype": dtype, "device": device, "rounds": rounds}
    report = BenchReport(threads=len(os.sched_getaffinity(0)))
    process = subprocess.Popen([sys.executable, "-m", "assay.run.timing"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        try:
            for told in _told(process):
                if "usage" in told:
                    raise UsageError(str(told["usage"]))
                report.rows.append(told)
        except TimeoutError:
            process.kill()
            report.ended = f"nothing was measured for {PATIENCE:g} s; the process was killed"
        except BaseException:  # Ctrl-C, or a request that is refused: nobody reads on
            process.kill()
            raise
    if process.returncode and not report.ended:
        report.ended = f"the process ended with code {process.returncode}; what was measured before stands"
    return report


def _told(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """JSON objects as they come. TimeoutError when none comes for too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(process.stdout, selectors.EVENT_READ)
        while True:
            if not waiting.select(PATIENCE):
                raise TimeoutError
            line = process.stdout.readline()
            if not line:
                return
            yield json.loads(line)
