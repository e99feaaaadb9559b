"""`assay bench`: implementations timed in turns in one process, as ratios, beside the floor that the machine sets."""
from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from assay.errors import UsageError
from assay.report.status import power

ROUNDS = 9
PATIENCE = 300.0  # seconds for one workload of one implementation, cold compilers and all
COLUMNS = ("implementation", "on this example", "time ÷ peer", "share of floor", "memory grows as", "work grows as",
           "multiply-adds")


@dataclass
class BenchReport:
    """Rows as `timing.Row` has them. `ended`: how processes ended that did not end by themselves."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    ended: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows], "ended": list(self.ended)}

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
        return [*said, *self.ended]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for title, rows in self.groups():
            table = Table(*COLUMNS, title=title, title_justify="left")
            for row in rows:
                table.add_row(*(Text(cell) for cell in cells(row)))
            yield table
        yield Text("Ratios from one run, the median over rounds and its quartiles; below 1 is faster than the first row, the peer.")
        yield from map(Text, self.ended)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """One row in words."""
    if row["ratio"] is None:
        return row["implementation"], row["right"], f"not timed: {row['note']}", "", "", "", ""
    share, products = row["share_of_floor"], row["multiply_adds"]
    return (row["implementation"], row["right"], f"{row['ratio']:.2f} ({row['low']:.2f}–{row['high']:.2f})",
            f"{share:.0%}" if share is not None else "", power(row["memory_exponent"]), power(row["work_exponent"]),
            f"{products:,}" if products else "")


def run(targets: Sequence[str], *, kind: str | None = None, dtypes: Sequence[str] = ("float32",),
        devices: Sequence[str] = ("cpu",), rounds: int = ROUNDS) -> BenchReport:
    """Time targets (files, built-in names, or kinds: all built-in ones of it) against the peer of their kind.

    They run in processes of their own, one a device and dtype: one that dies or hangs loses nothing that was measured before.
    """
    report = BenchReport()
    for device in devices:
        for dtype in dtypes:
            _run({"targets": list(targets), "kind": kind, "dtype": dtype, "device": device, "rounds": rounds}, report)
    return report


def _run(request: Mapping[str, Any], report: BenchReport) -> None:
    """The rows of one process, and how it ended where that was not by itself."""
    known = report.ended
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
            report.ended += (f"nothing was measured for {PATIENCE:g} s; the process was killed",)
        except ValueError as error:  # an implementation found the descriptor and wrote to it
            process.kill()
            report.ended += (f"the process told what is no row ({error}); it was killed",)
        except BaseException:  # Ctrl-C, or a request that is refused: nobody reads on
            process.kill()
            raise
    if process.returncode and report.ended == known:  # by itself, or by a signal that was not ours
        code = process.returncode
        how = f"ended with code {code}" if code > 0 else f"was killed by {signal.Signals(-code).name}"
        report.ended += (f"the process {how}; what was measured before stands",)


def _told(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """JSON objects as they come. TimeoutError when none comes for too long."""
    assert process.stdout is not None
    late = threading.Event()

    def expire() -> None:
        late.set()
        process.kill()

    while True:
        watch = threading.Timer(PATIENCE, expire)
        watch.daemon = True
        watch.start()
        line = process.stdout.readline()
        watch.cancel()
        if late.is_set():
            raise TimeoutError
        if not line:
            return
        yield dict(json.loads(line))
