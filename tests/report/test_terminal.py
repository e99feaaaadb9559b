"""The terminal's progress and last screen, plain where it has to be."""
from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.cells import cell_len

from assay.report import failure, terminal
from assay.report.jsonl import Report

from . import sample


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def show(report: Report, stream: io.StringIO, *, quiet: bool = False, **environ: str) -> str:
    """All that a run prints."""
    consumer = terminal.Terminal(stream=stream, quiet=quiet, environ=environ)
    for event in report.events():
        consumer(event)
    consumer.finish(report, Path("out"))
    return stream.getvalue()


REPORTS = {
    "sample": sample.report(), "healthy": sample.report(healthy=True), "interrupted": sample.report(interrupted=True),
    "big": sample.big(),
}


@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_last_screen_fits(name: str, width: int) -> None:
    report = REPORTS[name]
    lines = terminal.last_screen(report, Path("out"), width=width)
    if width >= 80:
        assert sum(max(1, -(-cell_len(line) // width)) for line in lines) <= 24
    commands = {one["reproduce"] for one in report.results}
    assert all(cell_len(line) <= width or line.strip() in commands for line in lines)
    assert any(line.startswith("Not shown") for line in lines) and lines[-1] == "Report: out/report.html"


def test_last_screen_says_what_failed_and_how_to_see_it() -> None:
    text = "\n".join(terminal.last_screen(REPORTS["sample"], width=100))
    for part in ("Non-conformant: 7 of 87", "softmax(q·kᵀ/√D + mask)·v", "B=1 H=1", "got 0.51", "assay check kern"):
        assert part in text


def test_plain_without_a_terminal() -> None:
    text = show(REPORTS["sample"], io.StringIO())
    assert "\x1b" not in text and "87 of 87 cases" in text and text.count("✗ fail") >= 3


def test_colour_on_a_terminal_unless_refused() -> None:
    assert "\x1b[" in show(REPORTS["sample"], Screen(), TERM="xterm")
    assert "\x1b[1;31m" not in show(REPORTS["sample"], Screen(), TERM="xterm", NO_COLOR="1")


def test_quiet_prints_the_verdict_alone() -> None:
    assert show(REPORTS["sample"], io.StringIO(), quiet=True).count("\n") == 1


def test_ascii_streams_do_not_break() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    consumer = terminal.Terminal(stream=stream, environ={})
    consumer.finish(REPORTS["sample"])
    stream.flush()
    assert b"Non-conformant" in raw.getvalue()


def test_github_annotations_cannot_be_forged() -> None:
    report = sample.report()
    report.results[0].update(status="fail", message="100%\n::set-env name=X::y", sentence="a, b: c")
    lines = terminal.github_lines(report)
    assert len(lines) <= 10 and all("\n" not in line and line.startswith("::error title=") for line in lines)
    assert any("100%25%0A" in line for line in lines)
    printed = show(report, io.StringIO(), GITHUB_ACTIONS="true")
    assert all(line.startswith("::error") for line in printed.splitlines() if line.lstrip().startswith("::"))


def test_failure_text_is_one_block() -> None:
    one = next(one for one in REPORTS["sample"].results if one["status"] == "fail")
    text = failure.failure_text(one)
    assert text.splitlines()[0].startswith("✗ fail  attention/formula · mine · cpu · float32")
    assert text.count(one["sentence"].rstrip(".")) == 1
    assert "reproduce: assay check" in text and "q = [[[[1.], [0.]]]]" in text
    assert all(line.startswith("  ") for line in text.splitlines()[1:])


def test_what_happened_is_said_without_place_and_alternatives() -> None:
    report = sample.report()
    broken = next(one for one in report.results if one["status"] == "fail")
    broken.update(message=f"{broken['sentence']} Not so at B=1 float32: it raised ValueError: one row. Consistent with: scale left "
                          "out (declare conventions={'scale': 'one'}).",
                  counterexample={"dims": {"B": 1}, "consistent_with": ["scale left out"]})
    lines = [line.strip() for line in terminal.last_screen(report, width=120)]
    assert "it raised ValueError: one row." in lines and "consistent with: scale left out" in lines
