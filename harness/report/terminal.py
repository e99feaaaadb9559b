"""The terminal: progress with failures as they come, and a last screen that fits in 24 lines.

Plain text where the stream is no terminal; NO_COLOR is kept; quiet prints the verdict alone; on GitHub, annotations
too.
"""
from __future__ import annotations

import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from assay.report import failure, overview
from assay.report.jsonl import Report
from assay.report.status import LOOKS, ORDER, mark, plural

LINES = 24
ANNOTATIONS = 10  # GitHub shows no more a step
STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "none": "dim"}
VERDICTS = {"Conformant": "bold green", "Non-conformant": "bold red", "Inconclusive": "bold yellow"}


class Terminal:
    """A consumer of events: call it with each, then `finish`. Nothing is printed on stdout."""

    def __init__(
        self, *, stream: TextIO | None = None, quiet: bool = False, environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.stream = stream or sys.stderr
        self.quiet, self.github = quiet, environ.get("GITHUB_ACTIONS") == "true"
        self.console = Console(
            file=self.stream, markup=False, highlight=False, emoji=False, no_color=bool(environ.get("NO_COLOR")),
            soft_wrap=True,
        )
        self.live = self.console.is_terminal and not quiet
        self._bar: Progress | None = None
        self._planned = self._done = self._red = self._told = 0
        self._began = time.monotonic()

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Take one event of the run."""
        if event["type"] == "plan":
            self._start(event)
        elif event["type"] == "result":
            self._result(event)
        elif event["type"] == "footer":
            self.stop()

    def stop(self) -> None:
        """Take the progress bar away; safe to call at any time, and twice."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def finish(self, report: Report, folder: Path | None = None) -> None:
        """The last screen, and annotations where the run is on GitHub."""
        self.stop()
        if self.quiet:
            self._print(overview.verdict_sentence(report))
        else:
            for line in last_screen(report, folder, width=min(self.console.width, 120)):
                self._print(line)
        if self.github:
            self.stream.writelines(line + "\n" for line in github_lines(report))
            self.stream.flush()

    def _start(self, plan: Mapping[str, Any]) -> None:
        self._planned, self._began = len(plan["cases"]), time.monotonic()
        if self.live:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self.console, transient=True)
            self._bar.add_task("cases", total=self._planned, told="")
            self._bar.start()
        elif not self.quiet:
            left = len(plan["left_out"])
            self._print(f"{plural(self._planned, 'case')} planned, {left} left out")

    def _result(self, one: Mapping[str, Any]) -> None:
        self._done += 1
        if one["status"] in overview.BROKEN:
            self._red += 1
            if not self.quiet:
                self._print(f"{failure.headline(one)}  {failure.first_line(failure.said(one))}".rstrip())
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=self._done, told=self._rate())
        elif not self.quiet and self._planned and 10 * self._done // self._planned > self._told:
            self._told = 10 * self._done // self._planned
            self._print(f"{self._done} of {plural(self._planned, 'case')}, {self._rate()}")

    def _rate(self) -> str:
        seconds = max(time.monotonic() - self._began, 1e-3)
        return f"{self._red} wrong, {self._done / seconds:.1f} cases/s"

    def _print(self, line: str) -> None:
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        shown = line.encode(encoding, "replace").decode(encoding)
        if self.github and shown.lstrip().startswith(("::", "##[")):
            shown = f"| {shown}"  # text of an implementation is no workflow command
        self.console.print(Text(shown, style=_style(line)))


def _style(line: str) -> str:
    word = line.strip().split("  ")[0].rstrip(":")
    for status, look in LOOKS.items():
        if word == mark(status):
            return STYLES[look.tone]
    return VERDICTS.get(line.split(":")[0], "")


def last_screen(report: Report, folder: Path | None = None, *, width: int = 80, height: int = LINES) -> list[str]:
    """Verdict, what failed, what was not shown and where the report is: at most `height` lines on a screen of `width`.

    A command is never broken, so that it can be copied: its line may be wider, and counts as the screen will wrap it.
    """
    head = _wrap(overview.verdict_sentence(report), width)[:3]
    tail = ["", *_not_shown(report, width)]
    if folder is not None:
        tail += ["", f"Report: {folder / 'report.html'}"]
    room = height - sum(_rows(line, width) for line in [*head, *tail])
    return [*head, *_failed(report, width, room), *tail]


def _rows(line: str, width: int) -> int:
    return max(1, -(-cell_len(line) // width))


def _failed(report: Report, width: int, room: int) -> list[str]:
    """Failures, one for each property and implementation: in full while there is room, then by name, then counted."""
    distinct: dict[tuple[str, str], Any] = {}
    for one in overview.failures(report):
        if one["status"] in overview.BROKEN:
            distinct.setdefault((one["property"], one["implementation"]), one)
    lines: list[str] = []
    waiting = list(distinct.values())
    while waiting:
        block = ["", *_block(waiting[0], width)]
        later = 1 + min(len(waiting) - 1, 3)  # a blank line and a few of the others by name
        if sum(_rows(line, width) for line in lines + block) + later > room and lines:
            break
        lines += block
        waiting.pop(0)
    left = max(0, room - sum(_rows(line, width) for line in lines) - 1)
    named = len(waiting) if len(waiting) <= left else max(0, left - 1)
    short = [_crop(failure.headline(one), width) for one in waiting[:named]]
    more = [_crop(f"… and {plural(len(waiting) - named, 'more failure')}, in the report", width)]
    return lines + ([""] if waiting else []) + short + (more if len(waiting) > named else [])


def _block(one: Mapping[str, Any], width: int) -> list[str]:
    """Headline, sentence, smallest input with what came out, and the whole command."""
    found = one["counterexample"] or {}
    lines = [failure.headline(one), *textwrap.wrap(one["sentence"], width, initial_indent="  ", subsequent_indent="  ")]
    if found:
        lines.append(f"  {failure.smallest_input(found)}")
    numbers = "   ".join(f"{label} {text}" for label, text in failure.numbers(found))
    what = numbers or _happened(one)
    lines += textwrap.wrap(what, width, initial_indent="  ", subsequent_indent="  ")[:3]
    like = found.get("consistent_with")
    lines += [f"  consistent with: {'; or '.join(like)}"] if like else []
    cropped = [_crop(line, width) for line in lines if line.strip()]
    return [*cropped, f"  {one['reproduce']}"] if one["reproduce"] else cropped


def _happened(one: Mapping[str, Any]) -> str:
    """What the message says went wrong, without place and alternatives, which have lines of their own."""
    text = failure.first_line(failure.happened(one))
    return text.partition(": ")[2] if text.startswith("Not so at ") else text.rpartition(": ")[2]


def _not_shown(report: Report, width: int) -> list[str]:
    """One line a status: how many, and of which properties."""
    gaps = overview.not_shown(report, overview.results_of(report))
    if not gaps:
        return ["Not shown: nothing that this run knows of."]
    counts: Counter[str] = Counter()
    names: dict[str, dict[str, None]] = {}
    for gap in gaps:
        counts[gap.status] += gap.cases
        names.setdefault(gap.status, {}).update(dict.fromkeys(gap.properties))
    lines = [f"  {mark(one)}  {counts[one]}: {', '.join(names[one])}" for one in ORDER if one in counts]
    return ["Not shown:", *(_crop(line, width) for line in lines)]


def _crop(line: str, width: int) -> str:
    return line if cell_len(line) <= width else set_cell_size(line, width - 1) + "…"


def _wrap(line: str, width: int) -> list[str]:
    console = Console(width=width, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        return [part.plain.rstrip() for part in Text(line).wrap(console, width)]
    finally:
        console.file.close()


def github_lines(report: Report) -> list[str]:
    """GitHub workflow commands, one a failure; their text cannot start another command."""
    wrong = [one for one in overview.failures(report) if one["status"] in overview.BROKEN]
    lines = [
        f"::error title={_property(failure.headline(one))}::{_data(failure.failure_text(one))}"
        for one in wrong[:ANNOTATIONS - 1]
    ]
    if report.summary["verdict"] == "inconclusive":
        lines.append(f"::warning title=assay::{_data(overview.verdict_sentence(report))}")
    elif len(wrong) >= ANNOTATIONS:
        lines.append(f"::error title=assay::{_data(overview.verdict_sentence(report))}")
    return lines


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
