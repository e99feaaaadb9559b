"""`assay fuzz`: seed after seed until the time is over. What was found is kept, and runs first the next time."""
from __future__ import annotations

import hashlib
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from assay.cli.checking import Recorder, ended_by_signals, stdout_for_json
from assay.errors import UsageError
from assay.report import jsonl
from assay.report.failure import failure_text
from assay.report.status import plural
from assay.run import events
from assay.run.replay import all_of
from assay.run.session import Request, Session

FOUND = "found"  # folder of whole reports by target, one for each seed that found something
GRACE = 30.0  # seconds beyond the span for cases that are in hand
_UNITS = {"s": 1, "m": 60, "h": 3600}


@dataclass
class Search:
    """What a search has come to."""

    rounds: int = 0
    cases: int = 0
    examples: int = 0
    replayed: int = 0
    stopped: bool = False
    red: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # case -> its first failure

    def to_json(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "cases": self.cases, "examples": self.examples, "replayed": self.replayed,
                "failing": sorted(self.red)}

    def add(self, result: Mapping[str, Any]) -> bool:
        """Take a result in; whether it is a failure not seen before."""
        self.cases += 1
        self.examples += sum(result["examples"].values())
        new = result["status"] in events.RED and result["id"] not in self.red
        if new:
            self.red[result["id"]] = result
        return new


def fuzz(request: Request, out: Path, span: str, *, as_json: bool = False) -> int:
    """Search until the span is over; 1 where anything fails, new or stored."""
    ends, found = time.monotonic() + seconds(span), out / FOUND / named(request)
    search = Search()
    with stdout_for_json(as_json) as stdout:
        told = sys.stderr if as_json else stdout
        for result in _stored(request, found, search):
            print(f"still failing: {failure_text(result)}", file=told)
        for seed in count(request.settings.seed):
            left = ends - time.monotonic()
            if left <= 0 or search.stopped:
                break
            # The first round is short, so that every case has its turn before any is searched at length.
            profile = "quick" if search.rounds == 0 else request.settings.profile
            again = replace(request, settings=replace(request.settings, seed=seed, profile=profile))
            for result in _round(again, found / f"seed-{seed}", left, search):
                print(failure_text(result), file=told, flush=True)
            search.rounds += 1
            print(f"seed {seed}: {plural(search.cases, 'case')}, {search.examples:,} examples, {len(search.red)} failing, "
                  f"{max(0.0, ends - time.monotonic()):.0f} s left", file=sys.stderr, flush=True)
        if as_json:
            print(events.dumps(search.to_json()), file=stdout, flush=True)
        if search.red:
            print(f"Kept in {found}; `assay replay {found}/seed-N` runs one again.", file=sys.stderr)
    return 1 if search.red else 0


def named(request: Request) -> str:
    """A folder's name for the targets: what was found on others is none of theirs."""
    text = " ".join(request.targets)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[-60:] + "-" + hashlib.sha256(text.encode()).hexdigest()[:8]


def _stored(request: Request, found: Path, search: Search) -> Iterator[Mapping[str, Any]]:
    """The counterexamples that earlier searches kept, those that still fail."""
    for path in sorted(found.glob(f"seed-*/{jsonl.FILE_NAME}")):
        for result in all_of(jsonl.read(path), request):
            search.replayed += 1
            if result["status"] in events.RED and result["id"] not in search.red:
                search.red[result["id"]] = result
                yield result


def _round(request: Request, folder: Path, left: float, search: Search) -> Iterator[Mapping[str, Any]]:
    """One seed, ended when the time is over; its report stays where it found something new."""
    recorder, kept = Recorder(folder / jsonl.FILE_NAME), False
    with Session(request) as session, ended_by_signals(session):
        stream = session.events()
        header, plan = next(stream), next(stream)
        ends = time.monotonic() + left
        clock = threading.Timer(left + GRACE, session.stop)  # a case that just failed is still being explained
        clock.daemon = True
        clock.start()
        try:
            recorder.begin(header, plan, [])
            for event in stream:
                recorder.write(event)
                if event["type"] == "result" and search.add(event):
                    kept = True
                    yield event
                if time.monotonic() > ends:
                    break
        finally:
            search.stopped = session.stopped
            clock.cancel()
            recorder.close()
            if not kept:
                (folder / jsonl.FILE_NAME).unlink()
                folder.rmdir()


def seconds(span: str) -> float:
    """`90s`, `10m`, `1.5h`; a bare number is seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", span.strip())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"time={span!r:.60} must be a number above 0 with s, m or h, such as 90s, 10m or 1.5h")
    return float(match[1]) * _UNITS[match[2] or "s"]
