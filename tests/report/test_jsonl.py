"""report.jsonl: written line by line, read back whole, and refused in one line when it is not what it says."""
from __future__ import annotations

import errno
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from assay.cli.main import main
from assay.errors import HarnessError, UsageError
from assay.report import jsonl
from assay.run import events

from . import sample


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return sample.write(sample.report(), tmp_path / "report.jsonl")


def test_read_gives_back_what_was_written(path: Path) -> None:
    report = jsonl.read(path.parent)
    assert events.canonical(report.events()) == events.canonical(sample.report().events())
    assert report.footer is not None and not report.missing


def test_schema_is_valid_and_every_line_keeps_it(path: Path) -> None:
    Draft202012Validator.check_schema(jsonl.schema())
    validator = Draft202012Validator(jsonl.schema())
    for line in path.read_text(encoding="utf-8").splitlines():
        validator.validate(json.loads(line))
    assert not validator.is_valid({"type": "result", "status": "fine"})


def test_schema_and_code_know_the_same_statuses() -> None:
    assert set(jsonl.schema()["$defs"]["status"]["enum"]) == set(events.STATUSES)


def test_file_without_footer_is_an_interrupted_run(tmp_path: Path) -> None:
    report = jsonl.read(sample.write(sample.report(interrupted=True), tmp_path / "report.jsonl"))
    assert report.footer is None and report.summary["interrupted"] and len(report.missing) == 29


def change(number: int, **values: Any) -> Callable[[list[Any]], None]:
    """Set values of one event."""
    return lambda lines: lines[number].update(values)


def move_footer(lines: list[Any]) -> None:
    lines.insert(2, lines.pop())


EDITS: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "newer": (change(0, schema=2), "newer"),
    "status": (change(5, status="fail"), "counts do not match"),
    "unknown status": (change(5, status="fine"), "status"),
    "verdict": (change(-1, verdict="conformant", exit_code=0), "verdict does not follow"),
    "counts": (change(-1, counts={"pass": 87}), "counts do not match"),
    "a result is gone": (lambda lines: lines.pop(7), "counts do not match"),
    "twice": (lambda lines: lines.insert(7, lines[6]), "more than one result"),
    "unplanned": (change(8, id="nowhere"), "was not planned"),
    "footer in the middle": (move_footer, "footer must be the last"),
    "no header": (lambda lines: lines.pop(0), "one header and one plan"),
    "missing field": (lambda lines: lines[4].pop("message"), "message"),
    "negative count": (lambda lines: lines[4]["examples"].update(wrong=-1), "wrong"),
    "rows": (lambda lines: lines[1]["rows"].pop(), "rows"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edited_reports_are_refused_in_one_line(path: Path, name: str) -> None:
    edit, message = EDITS[name]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    edit(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(UsageError, match=message) as caught:
        jsonl.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [
    b"", b"hello\n", b"{}\n", b"[1]\n", b"\xff\xfe\n", b"\x00" * 100, b'{"type":"header"}\n', b"[" * 100_000 + b"\n",
    b'{"type":"result","seconds":NaN}\n', b'{"type":"header","schema":' + b"9" * 5000 + b"}\n", b"PK\x03\x04zip\n",
])
def test_foreign_files_are_refused_in_one_line(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        jsonl.read(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1_000


def test_truncated_line_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UsageError, match="truncated"):
        jsonl.read(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        jsonl.read(tmp_path / "none.jsonl")


def test_hostile_text_is_cleaned_on_reading(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    event = json.loads(lines[3])
    event["message"] = "\x1b[2J\u202e" + "x" * 100_000
    lines[3] = json.dumps(event)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    message = jsonl.read(path).results[1]["message"]
    assert message.startswith("xxx") and len(message) < 5_000


def test_every_event_is_on_disk_at_once(tmp_path: Path) -> None:
    writer, report = jsonl.Writer(tmp_path / "report.jsonl"), sample.report()
    for count, event in enumerate(list(report.events())[:4], 1):
        writer.write(event)
        assert (tmp_path / "report.jsonl").read_bytes().count(b"\n") == count
    writer.close()


def test_resume_keeps_whole_lines_and_drops_the_footer(path: Path) -> None:
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(whole + b'{"type":"resu')
    with jsonl.Writer(path, resume=True) as writer:
        writer.write(json.loads(lines[-1]))
    assert path.read_bytes() == whole


class FullDisk(io.BytesIO):
    """Takes 100 bytes of the line that it is given, then no more."""

    def write(self, data: Any, /) -> int:
        if self.tell() > 5_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data[: 100 if self.tell() > 4_000 else len(data)])

    def close(self) -> None:
        self.kept = self.getvalue()


def test_full_disk_keeps_what_is_there(tmp_path: Path) -> None:
    writer = jsonl.Writer(tmp_path / "report.jsonl")
    writer.close()
    disk = FullDisk()
    writer._file = disk  # type: ignore[assignment]
    with pytest.raises(HarnessError, match="No space left"):
        for event in sample.report().events():
            writer.write(event)
    assert disk.kept.endswith(b"\n")
    assert all(json.loads(line) for line in disk.kept.splitlines())


def test_unwritable_folder_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="must be a folder"):
        jsonl.Writer(tmp_path / "file" / "report.jsonl")


@pytest.mark.parametrize("data", [b"", b'{"ass', b'{"assay":"0.1', None])
def test_what_a_run_left_that_was_killed_at_once_is_a_beginning(data: bytes | None, tmp_path: Path) -> None:
    whole = sample.write(sample.report(), tmp_path / "report.jsonl").read_bytes()
    jsonl.check_beginning(whole.split(b"\n")[0] + b"\n" if data is None else data, tmp_path)


@pytest.mark.parametrize("data", [b"notes", b"\x00\xff", b'{"a": [1, 2]}\n', b'{"type":"footer"}\n', b"[" * 50_000 + b"\n"])
def test_what_is_no_report_is_not_written_over_by_resume(
        data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.jsonl").write_bytes(data)
    assert main(["check", "torch-nn-softmax", "--only", "SM-1", "--resume", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("assay: ") and said.count("\n") == 1
    assert (tmp_path / "report.jsonl").read_bytes() == data
