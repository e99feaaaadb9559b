"""HTML, Markdown, JUnit and badges: complete, self-contained, and safe whatever an implementation says."""
from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from assay.errors import UsageError
from assay.report import badge, html, junit, markdown, render
from assay.report.jsonl import Report
from assay.report.status import LOOKS, ORDER
from assay.run import events

from . import sample


class Page(HTMLParser):
    """Ids, targets, loaded addresses, tags and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: set[str] = set()
        self.loaded: set[str] = set()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}={value}"
            if name == "id" and value:
                self.ids.append(value)
            elif name == "href" and tag == "a" and value and value.startswith("#"):
                self.targets.add(value[1:])
            elif name in ("src", "href", "action", "data"):
                self.loaded.add(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def report() -> Report:
    return sample.report()


@pytest.fixture(scope="module")
def page(report: Report) -> Page:
    return Page(html.render(report))


def test_page_loads_nothing_from_elsewhere(page: Page, report: Report) -> None:
    assert page.loaded == {"data:,"}
    assert not re.search(r"url\(|@import|https?://", html.render(report))


def test_links_within_the_page_lead_somewhere(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert page.targets <= set(page.ids)


def test_markup_of_an_implementation_stays_text(page: Page) -> None:
    assert page.tags.count("script") == 1
    assert "<script>alert(1)</script>" in page.text
    assert not re.search("[\x00-\x08\x1b\u202e]", page.text)


def test_every_status_is_a_word_and_a_glyph(page: Page, report: Report) -> None:
    source = html.render(report)
    for status in {one["status"] for one in report.results}:
        assert status in page.text
    for status in ORDER:
        assert f'.g-{status}::before,.m-{status}::before{{content:"{LOOKS[status].glyph}"' in source
    assert len({look.glyph for look in LOOKS.values()}) == len(LOOKS)


def test_every_failure_shows_input_outcome_and_command(page: Page, report: Report) -> None:
    for one in report.results:
        if one["status"] in events.RED:
            assert one["reproduce"] in page.text
    assert "Tq=2 Tk=2" in page.text and "143,211 × the bound" in page.text and "q = [[[[1.], [0.]]]]" in page.text


def test_what_was_not_shown_is_told(page: Page, report: Report) -> None:
    for entry in report.plan["left_out"]:
        assert entry["reason"] in page.text
    assert "What was not shown" in page.text


def test_a_hostile_address_is_no_link() -> None:
    report = sample.report()
    report.header["implementations"][0]["url"] = "javascript:alert(1)"
    report.header["implementations"][1]["url"] = "https://example.org/kernel"
    assert Page(html.render(report)).loaded == {"data:,", "https://example.org/kernel"}


def test_interrupted_run_says_so() -> None:
    report = sample.report(interrupted=True)
    for text in (html.render(report), markdown.render(report)):
        assert "Interrupted. So far" in text and "not-run" in text


def test_an_audit_stays_small() -> None:
    assert len(html.render(sample.big()).encode()) < 5_000_000


@pytest.mark.parametrize("name", render.WRITERS | render.BADGES)
def test_rendering_is_deterministic(name: str, report: Report) -> None:
    write = (render.WRITERS | render.BADGES)[name]
    assert write(report) == write(report)


def test_every_status_renders_everywhere() -> None:
    table = sample.rows()
    names = iter(events.STATUSES * 10)
    results = [one | {"status": next(names)} for one in sample.report().results[:len(table)]]
    plan = sample.report().plan
    report = Report(sample.report().header, plan, results, dict(events.footer(results, plan)))
    for write in (render.WRITERS | render.BADGES).values():
        assert write(report)


def test_empty_plan_renders() -> None:
    plan = dict(events.plan({}))
    report = Report(dict(sample.header()), plan, [], dict(events.footer([], plan)))
    for write in (render.WRITERS | render.BADGES).values():
        assert "inconclusive" in write(report).lower() or write is junit.render


def test_junit_counts_and_is_xml(report: Report) -> None:
    root = ElementTree.fromstring(junit.render(report))
    assert len(root.findall("testsuite/testcase")) == len(report.results)
    assert len(root.findall(".//failure")) == 4 and len(root.findall(".//error")) == 3
    assert len(root.findall(".//skipped")) == 5
    assert sum(int(suite.attrib["tests"]) for suite in root) == len(report.results)


@pytest.mark.parametrize("character", ["\x00", "\x0b", "\x1b", "\ud800", "\ufffe", "\uffff"])
def test_junit_holds_no_illegal_character(character: str) -> None:
    report = sample.report()
    report.results[0].update(status="fail", message=f"a{character}b", implementation=f"c{character}d")
    assert ElementTree.fromstring(junit.render(report).encode()) is not None


def test_markdown_has_no_markup_of_an_implementation(report: Report) -> None:
    assert markdown.escape("a|b <img src=x> [l](http://x) @you `c`") == (
        r"a\|b &lt;img src=x&gt; \[l\]\(http:&#47;&#47;x\) &#64;you \`c\`")
    assert markdown.fence("```\nescape").startswith("````text\n")
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", markdown.render(report), flags=re.DOTALL | re.MULTILINE)
    assert "<" not in outside and "attention/future" not in outside


def test_badges(report: Report) -> None:
    found = json.loads(badge.shields(report))
    assert found == {"color": "red", "label": "assay", "message": "non-conformant 7/87 wrong", "schemaVersion": 1}
    assert json.loads(badge.shields(sample.report(healthy=True)))["message"] == "conformant 87/87"
    picture = ElementTree.fromstring(badge.svg(report, label="<b>&"))
    assert picture.attrib["aria-label"] == "<b>&: non-conformant 7/87 wrong"


def test_write_all_fills_a_folder(tmp_path: Path, report: Report) -> None:
    written = render.write_all(report, tmp_path / "out", badges=True)
    assert {path.name for path in written} == {
        "report.html", "summary.md", "junit.xml", "badge.json", "badge.svg", "report.jsonl"}
    again = render.write_all(tmp_path / "out", tmp_path / "out")
    assert {path.name for path in again} == set(render.WRITERS)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {path.name for path in written}


def test_a_refused_report_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("old")
    (tmp_path / "bad.jsonl").write_text('{"type":"header"}\n')
    with pytest.raises(UsageError):
        render.write_all(tmp_path / "bad.jsonl", tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
