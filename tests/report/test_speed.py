"""Speed beside conformance: what was timed for this very run, with the status that it gave; anything else is refused or ignored."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.errors import UsageError
from assay.report import html, speed

from . import sample

ROW: dict[str, Any] = {
    "kind": "attention", "workload": "small", "implementation": "mine", "mode": "forward", "dtype": "float32", "device": "cpu",
    "ratio": 0.5, "low": 0.4, "high": 0.6, "share_of_floor": 0.25, "multiply_adds": 4096, "peak_bytes": None,
    "memory_exponent": 1.0, "right": "right", "note": ""}


def write(folder: Path, **changes: Any) -> Path:
    rows = [ROW, ROW | {"implementation": "<b>other", "ratio": None, "note": "raised & died"}]
    told = json.loads(speed.dumps(sample.report(), "assay bench mine", rows, ["the process ended"]))
    folder.mkdir(exist_ok=True)
    (folder / speed.FILE_NAME).write_text(json.dumps(told | changes))
    return folder


def test_rows_carry_the_status_of_their_implementation(tmp_path: Path) -> None:
    report = sample.report()
    found = speed.read(write(tmp_path, report=speed.identity(report)), report)
    assert found is not None and found.ended == ["the process ended"]
    [(title, rows)] = found.groups
    assert title == "attention · small · forward · float32 · cpu"
    assert (rows[0].status, rows[0].ratio, rows[0].quartiles, rows[0].share) == ("fail", "0.50", "0.40–0.60", "25%")
    assert (rows[1].status, rows[1].note) == ("", "raised & died")
    page = html.render(report, found)
    assert 'id="speed"' in page and "&lt;b&gt;other" in page and "<b>other" not in page and "raised &amp; died" in page
    assert 'id="speed"' not in html.render(report)


def test_timings_of_another_run_are_not_shown(tmp_path: Path) -> None:
    assert speed.read(tmp_path, sample.report()) is None
    assert speed.read(write(tmp_path, report="another"), sample.report()) is None


@pytest.mark.parametrize(("changes", "says"), [
    ({"schema": 2}, "newer"), ({"rows": 3}, "rows"), ({"rows": [ROW | {"ratio": -1}]}, "rows/0/ratio"), ({"ended": None}, "ended")])
def test_what_bench_did_not_write_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        speed.read(write(tmp_path, **changes), sample.report())


def test_a_truncated_file_is_one_line_and_overwrites_nothing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sample.write(sample.report(), tmp_path / "report.jsonl")
    (tmp_path / "report.html").write_text("old")
    (tmp_path / speed.FILE_NAME).write_text('{"schema": 1')
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("assay: ") and said.count("\n") == 1 and "bench.json is not JSON" in said
    assert (tmp_path / "report.html").read_text() == "old"


def test_bench_refuses_a_bad_report_before_it_times_anything(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "torch-nn-softmax", "--report", str(tmp_path / "nothere")]) == 2
    assert "cannot be read" in capsys.readouterr().err
