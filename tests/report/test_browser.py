"""The pages in a real browser: no errors, no overflow on a phone, filters that filter, nothing that axe-core objects to."""
from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from assay.report import document, html, speed
from assay.report.document import Chapter, Entry, Held
from assay.report.jsonl import Report

from . import sample
from .browser import axe, browse, measure, needs_chromium
from .test_speed import ROW

pytestmark = needs_chromium

FILTERS = """
for (const one of page.querySelectorAll("details")) one.open = true;
const form = page.getElementById("filter"), out = {};
out.width = view.innerWidth;
out.scroll = page.documentElement.scrollWidth;
out.filter = !form.hidden;
const count = () => [...page.querySelectorAll("details.prop[data-s]")].filter((one) => !one.hidden).length;
const changed = () => form.dispatchEvent(new view.Event("input", {bubbles: true}));
out.all = count();
form.elements.q.value = "window"; changed();
out.window = count();
form.elements.q.value = "";
for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = box.value === "fail";
changed();
out.fail = count();
return out;
"""
# What is wider than the page though it does not scroll by itself, and where a link of the page leads nowhere.
FITS = """
for (const one of page.querySelectorAll("details")) one.open = true;
const wide = [...page.body.querySelectorAll("*")].filter((one) => one.getBoundingClientRect().right > view.innerWidth + 1
  && !one.closest(".scroll, pre, nav ul, .formula, .skip"));
const lost = [...page.querySelectorAll('a[href^="#"]')].filter((one) => !page.getElementById(one.getAttribute("href").slice(1)));
return {scroll: page.documentElement.scrollWidth, wide: wide.map((one) => one.outerHTML.slice(0, 80)),
  lost: lost.map((one) => one.href)};
"""
LONG = r"\operatorname{clip}(\rho, 1 - c, 1 + c) A + \lambda \widehat{\operatorname{KL}} + \sum_i x_i + \log p_{\text{old}}"


@cache
def report() -> Report:
    """The sample with everything that a page may show: distributions, formulas, kinds, invariances."""
    found = sample.report()
    spread = {"spread": [3, 0, 1, 2, 5, 8, 4, 3, 1, 1], "families": {"integers": [20, 0.0, 0.02], "very_peaked": [8, 0.01, 0.91]},
              "sizes": {"2–8": [20, 0.01, 0.1], "over 128": [8, 0.0, 0.91]}}
    for one in found.results:
        one["values"] |= spread if one["values"] else {}
    found.plan["formulas"] = {"SM-2": r"p_i = \frac{e^{z_i}}{\sum_j e^{z_j}}", "ATT-1": LONG}
    found.plan["kinds"] = {"softmax": {"summary": "Softmax along one axis.", "call": "(x, *, dim=-1)", "source": "Bridle, 1990.",
                                       "forms": ["shifted by the row maximum", "parts summed online and merged"]}}
    for name, column in (("softmax/formula", "strides"), ("softmax/jacobian", "grad / no grad"), ("attention/formula", "repeat"),
                         ("attention/heads_share_keys", "order of calls"), ("attention/window_looks_back", "eager / compiled")):
        found.plan["properties"][name]["invariance"] = column
    return found


@cache
def pages() -> dict[str, str]:
    """Every page that assay writes."""
    held = [Held(name, info["sentence"], 3) for name, info in sample.PROPERTIES.items()]
    entries = [Entry(f"S-{n}", f"What must hold. {one.sentence}", LONG, "bound: within a derived bound", "S1", [one, held[0]])
               for n, one in enumerate(held)]
    erratum = Entry("E1", "the other reading", "", "", "", [], "what the notes say", "tests/spec/test_errata.py")
    finding = "# A fault in `something`\n\n* **Symptom:** <b>wrong</b> `" + "long" * 40 + "`\n"
    timed = speed.joined({"command": "assay bench mine", "rows": [ROW] * 3, "ended": ["the process ended"]}, report())
    return {
        "report": html.render(report(), timed), "healthy": html.render(sample.report(healthy=True)),
        "document": document.walk(report(), "mine", [Chapter("Statements", entries), Chapter("Errata", [erratum])],
                                  [("A fault", "findings/a.html")]),
        "finding": document.finding("a", finding),
    }


@pytest.mark.parametrize("width", [375, 1200])
def test_filters_filter(tmp_path: Path, width: int) -> None:
    found = measure(tmp_path, pages()["report"], FILTERS, width=width)
    assert found == {"width": width, "scroll": width, "filter": True, "all": 12, "window": 1, "fail": 2}


@pytest.mark.parametrize("name", ["report", "healthy", "document", "finding"])
def test_pages_fit_a_phone_and_their_links_lead_somewhere(tmp_path: Path, name: str) -> None:
    assert measure(tmp_path, pages()[name], FITS, width=375) == {"scroll": 375, "wide": [], "lost": []}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["report", "document", "finding"])
def test_axe_core_objects_to_nothing(tmp_path: Path, name: str, dark: bool) -> None:
    found = axe(tmp_path, pages()[name], dark=dark)
    assert found["violations"] == [] and found["passes"] >= (1 if dark else 20)


@pytest.mark.parametrize("name", ["report", "document", "finding"])
def test_pages_load_without_console_messages(tmp_path: Path, name: str) -> None:
    (tmp_path / "page.html").write_text(pages()[name], encoding="utf-8")
    assert "CONSOLE" not in browse(tmp_path / "page.html").stderr


def test_without_scripts_everything_is_there_but_the_filters(tmp_path: Path) -> None:
    page = pages()["report"].replace("script-src 'unsafe-inline'", "script-src 'none'")
    found = measure(tmp_path, page, """return {
      filter: page.getElementById("filter").hidden, copy: [...page.querySelectorAll("[data-copy]")].every((one) => one.hidden),
      properties: page.querySelectorAll("details.prop[data-s]").length};""")
    assert found == {"filter": True, "copy": True, "properties": 12}
