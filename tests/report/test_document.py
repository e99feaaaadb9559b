"""The document that runs: all statements in order, each with its status in a report, and a page for each finding."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay import statements
from assay.cli.main import main
from assay.report import document, jsonl
from assay.report.document import Chapter, Entry, Held
from assay.run.chapters import chapters

from . import sample

FINDINGS = Path(__file__).resolve().parents[2] / "reports" / "findings"


def entry(id: str, *properties: str, shown: str = "") -> Entry:
    return Entry(id, "It holds.", "", "exact", "S1", [Held(name, "A sentence.", 2) for name in properties], shown=shown)


def statuses(page: str) -> dict[str, str]:
    """Statement id -> the status beside it."""
    return dict(re.findall(r'<h3 id="([A-Za-z0-9-]+)-h">.*?class="s [^"]*">([^<]+)<', page))


def test_each_statement_shows_the_worst_of_its_properties_for_the_chosen_implementation() -> None:
    walked = [Chapter("One", [
        entry("A-1", "softmax/formula"), entry("A-2", "attention/formula", "attention/window_looks_back"),
        entry("A-3", "softmax/empty_row"), entry("A-4"), entry("A-5", shown="tests/x.py"), entry("A-6", "nothing/of_the_kind")])]
    page = document.walk(sample.report(), "mine", walked)
    assert statuses(page) == {"A-1": "not asked", "A-2": "fail", "A-3": "not asked", "A-4": "waiting", "A-5": "not asked",
                              "A-6": "not asked"}
    page = document.walk(sample.report(), "online", walked)
    assert statuses(page)["A-1"] == "pass" and statuses(page)["A-3"] == "not-claimed"
    assert "1 of 1 property decided" in page and "2 planted faults to tell" in page and "shown in tests/x.py" in page


def test_the_implementation_of_most_kinds_is_chosen() -> None:
    assert document.chosen(sample.report(), None) == "reference"
    assert document.chosen(sample.report(), "mine") == "mine"


def test_the_walk_has_every_statement_in_the_order_of_the_catalogue() -> None:
    page = document.walk(sample.report(), "mine", chapters())
    ids = re.findall(r'<article class="stated[^"]*" id="([^"]+)"', page)
    assert ids == [one.id for one in (*statements.all(), *statements.further(), *statements.errata())]


def test_a_finding_is_a_page_and_its_markup_is_text() -> None:
    page = document.finding("x", "# The `title`\n\n<script>alert(1)</script> [a](javascript:alert(1)) **b**\n")
    assert "<title>The title · assay</title>" in page and "<strong>b</strong>" in page
    assert "<script>alert" not in page and 'href="javascript' not in page


def test_the_command_writes_a_site_whose_links_lead_to_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample.write(sample.report(), tmp_path / jsonl.FILE_NAME)
    out = tmp_path / "site"
    assert main(["document", str(tmp_path), "--findings", str(FINDINGS), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out / 'index.html'}\n"
    page = (out / "index.html").read_text()
    assert "it holds of reference" in page
    found = set(re.findall(r'href="([^"#]+)', page)) - {"data:,"}
    assert len(found) == 1 + len(list(FINDINGS.glob("*.md"))) and all((out / name).is_file() for name in found)
    targets = set(re.findall(r'report.html#([^"]+)"', page))
    assert targets and all(f'id="{name}"' in (out / "report.html").read_text() for name in targets)


@pytest.mark.parametrize(("arguments", "says"), [
    (["--implementation", "nobody"], "must be in the report: reference"), (["--findings", "nothere"], "must be a folder"),
    (["--findings", "."], "must hold Markdown pages")])
def test_wrong_usage_is_one_line_and_writes_nothing(
        tmp_path: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    sample.write(sample.report(), tmp_path / jsonl.FILE_NAME)
    monkeypatch.chdir(tmp_path)
    assert main(["document", ".", "--out", "site", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("assay: ") and says in said and said.count("\n") == 1
    assert not (tmp_path / "site").exists()
