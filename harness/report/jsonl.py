"""report.jsonl, the source of truth: written a line per event as a run goes, read back validated or refused."""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from jsonschema import Draft202012Validator, ValidationError

from assay.errors import HarnessError, UsageError
from assay.report import shape
from assay.run import events

FILE_NAME = "report.jsonl"
BEGINNING = b'{"assay":'  # of a header, whose keys are sorted
MAX_BYTES = 512 * 2**20  # a full audit is some 20 MB; what is larger was not written by assay


@dataclass(frozen=True)
class Report:
    """One run as it was recorded. `footer` is None where the run was interrupted."""

    header: events.Json
    plan: events.Json
    results: list[events.Json]
    footer: events.Json | None
    path: Path | None = None

    @property
    def summary(self) -> events.Json:
        """The footer, or what it would say of an interrupted run."""
        return self.footer or dict(events.footer(self.results, self.plan, interrupted=True))

    @property
    def missing(self) -> list[str]:
        """Planned cases without a result."""
        done = {one["id"] for one in self.results}
        return [case for case in self.plan["cases"] if case not in done]

    def events(self) -> Iterator[events.Json]:
        """All events in the order of the file."""
        yield self.header
        yield self.plan
        yield from self.results
        if self.footer is not None:
            yield self.footer


class Writer:
    """Streams events to a file: one line each, flushed, so that a killed run leaves a valid file without a footer.

    `resume` keeps the whole lines that are there (a broken last line and a footer are dropped) and goes on behind them.
    """

    def __init__(self, path: Path, *, resume: bool = False) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = _whole_lines(path) if resume and path.exists() else b""
            self._file = path.open("r+b" if kept else "wb", buffering=0)
            self._file.truncate(len(kept))
            self._file.seek(len(kept))
        except OSError as error:
            raise UsageError(f"out={path.parent} must be a folder to write to, got {error.strerror}") from None
        self._end = len(kept)

    def write(self, event: Mapping[str, Any]) -> None:
        """Append one event. A full disk keeps every line written before and raises HarnessError."""
        line = events.dumps(event).encode("utf-8") + b"\n"
        try:
            done = 0
            while done < len(line):
                done += self._file.write(line[done:])
        except OSError as error:
            self._keep()
            raise HarnessError(f"{self.path}: {error.strerror}; what came before is kept, use --resume") from None
        self._end += len(line)

    def _keep(self) -> None:
        """Cut a half-written line off, so that the file stays readable."""
        try:
            self._file.truncate(self._end)
        finally:
            self._file.close()

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        self._file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()


def _whole_lines(path: Path) -> bytes:
    lines = path.read_bytes().split(b"\n")[:-1]
    while lines and lines[-1].startswith(b"{") and b'"type":"footer"' in lines[-1]:
        lines.pop()
    return b"".join(line + b"\n" for line in lines)


def read(path: str | Path) -> Report:
    """The report in a file, or in a folder's report.jsonl; UsageError, one line, for whatever is not a valid one."""
    place = Path(path)
    place = place / FILE_NAME if place.is_dir() else place
    try:
        if place.stat().st_size > MAX_BYTES:
            raise UsageError(f"{place}: more than {MAX_BYTES // 2**20} MiB, not a report of assay")
        data = place.read_bytes()
    except OSError as error:
        raise UsageError(f"{place}: cannot be read: {error.strerror}; give a report.jsonl or its folder") from None
    return parse(data, place)


def parse(data: bytes, place: Path | None = None) -> Report:
    """The report that these bytes hold; `place` is where they came from, for messages."""
    where = str(place or "report")
    lines = data.split(b"\n")
    if lines[-1]:
        raise UsageError(f"{where}: line {len(lines)} is truncated; run again with --resume, or delete that line")
    found = [_event(line, f"{where}: line {n}") for n, line in enumerate(lines[:-1], 1)]
    kinds = [event["type"] for event in found]
    footers = kinds.count("footer")
    if kinds[:2] != ["header", "plan"] or kinds.count("header") > 1 or kinds.count("plan") > 1:
        raise UsageError(f"{where}: must begin with one header and one plan, got {' '.join(kinds[:3]) or 'nothing'}")
    if footers > 1 or (footers and kinds[-1] != "footer"):
        raise UsageError(f"{where}: the footer must be the last line and the only one")
    report = Report(found[0], found[1], found[2:-1] if footers else found[2:], found[-1] if footers else None, place)
    _check_sums(report, where)
    return report


def check_beginning(data: bytes, place: Path) -> None:
    """UsageError unless these bytes are how a report begins: nothing, a header, or a part of one."""
    line, ended, _ = data.partition(b"\n")
    if ended:
        event = _event(line, f"{place}: line 1")
        if event["type"] != "header":
            raise UsageError(f"{place}: must begin with a header, got {event['type']}; give another --out")
    elif not (line.startswith(BEGINNING) or BEGINNING.startswith(line)):
        raise UsageError(f"{place}: not a report of assay; give another --out")


def _event(line: bytes, where: str) -> events.Json:
    """One line, decoded and validated."""
    try:
        event = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UsageError(f"{where} is not JSON; not a report of assay, or truncated") from None
    if not isinstance(event, dict) or event.get("type") not in ("header", "plan", "result", "footer"):
        raise UsageError(f"{where} is no event of assay: its type must be header, plan, result or footer")
    schema = event.get("schema")
    if event["type"] == "header" and isinstance(schema, int) and schema > events.SCHEMA:
        raise UsageError(f"{where}: schema={schema} is newer than {events.SCHEMA}, which this assay reads; upgrade")
    error = _first_error(event)
    if error is not None:
        place = "/".join(str(part) for part in error.absolute_path) or event["type"]
        raise UsageError(f"{where}: {place}: {events.clean(error.message, 200)}")
    # A hostile file was not written through the builders: its text is cleaned and cut here, once for all writers.
    cleaned: events.Json = events.strict(event, events.ARGUMENT_LENGTH + 100)
    return cleaned


def _refuse(word: str) -> float:
    raise ValueError(word)


def schema() -> events.Json:
    """The JSON Schema of one line, as shipped."""
    return shape.schema("report")


@cache
def _validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(_inlined(schema()["$defs"][kind]))


def _inlined(part: Any) -> Any:
    """A part of the schema with its references written out: looking them up took half of the reading time."""
    if isinstance(part, Mapping):
        if "$ref" in part:
            return _inlined(schema()["$defs"][part["$ref"].rpartition("/")[2]])
        return {key: _inlined(value) for key, value in part.items()}
    return [_inlined(item) for item in part] if isinstance(part, list) else part


def _first_error(event: Mapping[str, Any]) -> ValidationError | None:
    return next(iter(_validator(event["type"]).iter_errors(event)), None)


def _check_sums(report: Report, where: str) -> None:
    """The parts agree with each other: one result a case, and a footer that says what the results say."""
    plan, results = report.plan, report.results
    if len(plan["rows"]) != len(plan["cases"]):
        raise UsageError(f"{where}: plan: {len(plan['cases'])} cases but {len(plan['rows'])} rows; edited by hand?")
    ids = [one["id"] for one in results]
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise UsageError(f"{where}: {events.clean(twice, 200)} has more than one result; edited by hand?")
    planned = set(plan["cases"])
    for one in results:
        if one["id"] not in planned and one["status"] not in events.OUTSIDE_PLAN:
            raise UsageError(f"{where}: {events.clean(one['id'], 200)} was not planned; edited by hand?")
    if report.footer is None:
        return
    counts = {status: n for status, n in report.footer["counts"].items() if n}
    if counts != {status: n for status, n in events.counts_of(results).items() if n}:
        raise UsageError(f"{where}: footer: counts do not match the results; edited by hand?")
    if (report.footer["verdict"], report.footer["exit_code"]) != events.verdict_of(results, plan):
        raise UsageError(f"{where}: footer: verdict does not follow from the results; edited by hand?")
