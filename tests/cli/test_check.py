"""`assay check` and `assay replay`: report, exit code, JSON, resume, interruption, waivers, workers."""
from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.contract import loading
from assay.report import jsonl
from assay.run.events import canonical
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec

from .conftest import NARROW, lines

Call = Callable[..., tuple[int, str, str]]
HERE = ("--isolate", "never")
REPORT = Path("assay-report/report.jsonl")


def test_a_right_implementation_is_conformant(kernels: Path, assay: Call) -> None:
    code, out, err = assay("check", "kernels.py:right", *NARROW, *HERE, "--json")
    footer = json.loads(out)
    assert code == 0 and footer["verdict"] == "conformant" and footer["type"] == "footer", err
    assert {path.name for path in REPORT.parent.iterdir()} >= {"report.jsonl", "report.html", "summary.md", "junit.xml"}


def test_a_wrong_one_is_not_and_its_failure_can_be_replayed(
        kernels: Path, assay: Call, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = assay("check", "kernels.py", *NARROW, *HERE)
    assert code == 1 and out == "" and "Non-conformant" in err
    failed = next(one for one in lines(REPORT) if one.get("status") == "fail")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    code, out, _ = assay(*shlex.split(failed["reproduce"])[1:], *HERE)
    assert code == 1 and "sums to 1" in out
    assert assay("replay", kernels.parent / REPORT, *HERE)[0] == 1
    kernels.write_text(kernels.read_text().replace("torch.softmax(x, -1)", "torch.softmax(x, dim)"))


def test_an_undeclared_object_can_be_replayed(kernels: Path, assay: Call) -> None:
    assert assay("check", "kernels.py:undeclared", "--kind", "softmax", *NARROW, *HERE)[0] == 1
    failed = next(one for one in lines(REPORT) if one.get("status") == "fail")
    assert assay(*shlex.split(failed["reproduce"])[1:], *HERE)[0] == 1


def test_the_results_are_the_same_on_any_number_of_workers(kernels: Path, assay: Call) -> None:
    found = []
    for options in (HERE, (*HERE, "--workers", "2"), ("--workers", "1"), ("--workers", "2"), ("--workers", "4")):
        assert assay("check", "kernels.py", *NARROW, *options)[0] == 1
        events = [event for event in lines(REPORT) if event["type"] in ("plan", "result")]
        found.append(canonical(events))
    assert all(one == found[0] for one in found)


def test_the_results_are_the_same_in_any_order(kernels: Path, assay: Call) -> None:
    assert assay("check", "kernels.py", *NARROW, *HERE)[0] == 1
    report = jsonl.read(REPORT)
    made = tuple(loading.load("kernels.py", None))
    bench = Bench([{"target": "kernels.py", "kind": None, "isolated": False, "declared": made}],
                  Settings(profile="quick"), None)
    by_row = [CaseSpec(prop, "softmax", *rest) for prop, *rest in reversed(report.plan["rows"])]
    backwards = {case.id: bench.run(case) for case in by_row}
    forwards = {one["id"]: one for one in report.results if one["status"] != "blocked"}
    assert canonical([backwards[id] for id in forwards]) == canonical(list(forwards.values()))


def test_resume_runs_only_what_is_missing(kernels: Path, assay: Call) -> None:
    assert assay("check", "kernels.py", *NARROW, *HERE)[0] == 1
    whole = lines(REPORT)
    text = REPORT.read_text().splitlines()
    marked = text[2].replace('"seconds":', '"seconds":1234')  # told apart from a new result by its time
    REPORT.write_text("\n".join([*text[:2], marked, text[3][:40]]))  # killed in the middle of a line
    assert assay("check", "kernels.py", *NARROW, *HERE, "--resume")[0] == 1
    again = lines(REPORT)
    assert canonical(again[1:]) == canonical(whole[1:])
    assert "1234" in REPORT.read_text().splitlines()[2]
    assert assay("check", "kernels.py", *NARROW, *HERE, "--resume")[0] == 2  # complete
    REPORT.write_text("\n".join(text[:3]) + "\n")
    assert "seed differs" in assay("check", "kernels.py", *NARROW, *HERE, "--resume", "--seed", "3")[2]
    kernels.write_text(kernels.read_text() + "\n")
    assert "source file differs" in assay("check", "kernels.py", *NARROW, *HERE, "--resume")[2]


def test_shards_merge_into_the_whole(kernels: Path, assay: Call) -> None:
    for part in ("1", "2"):
        assay("check", "kernels.py", *NARROW, *HERE, "--shard", f"{part}/2", "--out", f"part-{part}")
    assert assay("merge", "part-1", "part-2", "--quiet")[0] == 1
    assert assay("check", "kernels.py", *NARROW, *HERE, "--out", "whole")[0] == 1
    assert assay("diff", "whole", "assay-report", "--fail-on", "regressions")[0] == 0
    assert canonical(jsonl.read("whole").results) == canonical(jsonl.read("assay-report").results)


def waive(place: Path, **changes: object) -> Path:
    """The proposed waivers, filled in."""
    data = json.loads(place.read_text())
    for one in data["waivers"]:
        one |= {"reason": "known", "link": "https://example.org/1", **changes}
    Path("waivers.json").write_text(json.dumps(data))
    return Path("waivers.json")


def test_waivers_are_proposed_hold_and_go_stale(kernels: Path, assay: Call) -> None:
    assert assay("check", "kernels.py", *NARROW, *HERE, "--write-waivers")[0] == 1
    proposed = REPORT.parent / "waivers.json"
    assert assay("check", "kernels.py", *NARROW, *HERE, "--waivers", proposed)[0] == 2  # no reason yet

    def statuses(**changes: object) -> tuple[int, set[str]]:
        code = assay("check", "kernels.py", *NARROW, *HERE, "--waivers", waive(proposed, **changes), "--out", "again")[0]
        return code, {one["status"] for one in jsonl.read("again").results}

    assert statuses() == (0, {"pass", "waived"})
    assert statuses(expires="2001-01-01") == (1, {"pass", "fail", "unexpected-pass"})
    assert statuses(check="something else") == (1, {"pass", "fail", "unexpected-pass"})
    assert statuses(id="softmax/rows_sum_to_one[nobody-cpu-float32]") == (1, {"pass", "fail", "unexpected-pass"})
    kernels.write_text(kernels.read_text().replace("torch.softmax(x, -1)", "torch.softmax(x, dim)"))
    assert statuses() == (1, {"pass", "unexpected-pass"})


def test_ctrl_c_leaves_a_valid_partial_report(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time, torch, assay\n@assay.implements('softmax', name='slow')\n"
        "def slow(x, *, dim=-1):\n    time.sleep(0.5)\n    return torch.softmax(x, dim)\n")
    command = [sys.executable, "-c", "from assay.cli.main import run; run()", "check", "slow.py", "--json", "--profile", "quick"]
    started = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "OMP_NUM_THREADS": "1"})
    report = tmp_path / REPORT
    while not report.exists():
        assert started.poll() is None, started.communicate()
        time.sleep(0.1)
    started.send_signal(signal.SIGTERM)
    out, err = started.communicate(timeout=60)
    footer = json.loads(out)
    assert started.returncode == 3 and footer["interrupted"] and footer["verdict"] == "inconclusive", err
    assert jsonl.read(report).footer == footer and (report.parent / "report.html").exists()


@pytest.mark.parametrize(("body", "status"), [("import os; os._exit(0)", "crash"), ("while True: pass", "timeout")])
def test_an_import_that_ends_or_hangs_is_told(tmp_path: Path, assay: Call, monkeypatch: pytest.MonkeyPatch, body: str,
                                               status: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dies.py").write_text(body)
    assert assay("check", "dies.py", *NARROW, "--timeout", "1")[0] == 1
    assert [one["status"] for one in jsonl.read("assay-report").results] == [status]
