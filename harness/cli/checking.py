"""`assay check`: one run, its report on disk as it goes, its verdict as the exit code."""
from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from assay.errors import UsageError
from assay.report import jsonl
from assay.report.jsonl import Report, Writer
from assay.report.render import write_all, write_text
from assay.report.terminal import Terminal
from assay.run import events
from assay.run.session import Request, Session
from assay.run.waivers import FILE_NAME, propose
from assay.run.zygote_process import Zygote

INTERRUPTED = 3  # before anything was planned: inconclusive


class Recorder:
    """Writes events to report.jsonl as they come; a resumed run's old file is replaced whole, results and all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: Writer | None = None
        self.header: Mapping[str, Any] = {}

    def begin(self, header: Mapping[str, Any], plan: Mapping[str, Any], kept: list[dict[str, Any]]) -> None:
        """The first lines at once; from then on a line an event."""
        self.header = header
        if kept:
            write_text(self.path, "".join(events.dumps(event) + "\n" for event in (header, plan, *kept)))
        self._writer = Writer(self.path, resume=bool(kept))
        for event in () if kept else (header, plan):
            self._writer.write(event)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event."""
        if self._writer is not None:
            self._writer.write(event)

    def close(self) -> None:
        """Close the file, if one was begun."""
        if self._writer is not None:
            self._writer.close()


def check(request: Request, out: Path, *, resume: bool = False, as_json: bool = False, quiet: bool = False,
          write_waivers: bool = False, zygote: Zygote | None = None) -> int:
    """Run, report, and return the exit code."""
    if resume:
        request = replace(request, resume=interrupted_run(out))
    terminal = Terminal(quiet=quiet)
    with stdout_for_json(as_json) as stdout:
        recorder = Recorder(out / jsonl.FILE_NAME)
        try:
            with Session(request, zygote) as session, ended_by_signals(session):
                _follow(session, recorder, terminal)
        except KeyboardInterrupt:
            print("assay: interrupted before there was a plan; nothing is known", file=sys.stderr)
            return INTERRUPTED
        finally:
            terminal.stop()
            recorder.close()
        report = jsonl.read(recorder.path)
        write_all(report, out)
        if write_waivers:
            _propose(report, request, out)
        terminal.finish(report, out)
        if as_json:
            print(events.dumps(report.summary), file=stdout, flush=True)
    return int(report.summary["exit_code"])


def _follow(session: Session, recorder: Recorder, terminal: Terminal) -> None:
    """Hand each event on as it comes."""
    stream = session.events()
    header, plan = next(stream), next(stream)
    recorder.begin(header, plan, session.kept)
    terminal(header)
    terminal(plan)
    for number, event in enumerate(stream):
        if number >= len(session.kept):  # those before were written by `begin`
            recorder.write(event)
        terminal(event)


def _propose(report: Report, request: Request, out: Path) -> None:
    """Write proposed waivers, to be completed by hand."""
    place = write_text(out / FILE_NAME, propose(report.results, request.waivers))
    print(f"Waivers proposed in {place}: fill in reason and link, then give it to --waivers.", file=sys.stderr)


def interrupted_run(out: Path) -> Report | None:
    """What an interrupted run left in the folder; None where it left nothing."""
    path = out / jsonl.FILE_NAME
    if not path.exists():
        return None
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]  # a killed run may have left half a line
    if whole.count(b"\n") < 2:
        jsonl.check_beginning(data, path)  # what is no run of ours is not written over
    report = jsonl.parse(whole, path) if whole.count(b"\n") >= 2 else None
    if report is not None and report.footer is not None and not report.missing:
        raise UsageError(f"resume: the run in {path} is complete; leave --resume out to run it again")
    return report


@contextmanager
def stdout_for_json(wanted: bool) -> Iterator[Any]:
    """Where the JSON goes. Meanwhile whatever else is written to standard output, by whomever, goes to standard error."""
    if not wanted:
        yield sys.stdout
        return
    real, sys.stdout = sys.stdout, sys.stderr
    real.flush()
    try:
        kept = os.dup(1)
        own = _is_descriptor_one(real)
        os.dup2(2, 1)
        stream = os.fdopen(os.dup(kept), "w", encoding="utf-8") if own else real
        try:
            yield stream
        finally:
            with suppress(BrokenPipeError):
                stream.flush()
            if own:
                stream.close()
            os.dup2(kept, 1)
            os.close(kept)
    finally:
        sys.stdout = real


def _is_descriptor_one(stream: Any) -> bool:
    try:
        return bool(stream.fileno() == 1)
    except (OSError, AttributeError, ValueError):  # replaced by a buffer, as in tests
        return False


@contextmanager
def ended_by_signals(session: Session) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run with a footer; a second one ends the process."""
    def stop(number: int, frame: FrameType | None) -> None:
        for one in old:
            signal.signal(one, signal.SIG_DFL if one == signal.SIGTERM else signal.default_int_handler)
        session.stop()

    old: dict[signal.Signals, Any] = {}
    try:
        for one in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread: then the caller's own handling stays
                old[one] = signal.signal(one, stop)
        yield
    finally:
        for one, before in old.items():
            signal.signal(one, before)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))
