"""report.html in a real browser: no errors, no overflow at 375 px, filters that filter."""
from __future__ import annotations

import html as escaping
import shutil
import subprocess
from pathlib import Path

import pytest

from assay.report import html

from . import sample

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium to run these")

# The report in a frame of the given width; the outer page measures it and writes what it found as its own text.
OUTER = """<!doctype html><iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{page}"></iframe><script>
document.getElementById("f").addEventListener("load", () => {{
  const page = document.getElementById("f").contentDocument, out = {{}};
  for (const one of page.querySelectorAll("details")) one.open = true;
  out.width = page.defaultView.innerWidth;
  out.scroll = page.documentElement.scrollWidth;
  const form = page.getElementById("filter");
  out.filter = !form.hidden;
  const count = () => [...page.querySelectorAll("details.prop[data-s]")].filter((one) => !one.hidden).length;
  out.all = count();
  form.elements.q.value = "window";
  form.dispatchEvent(new page.defaultView.Event("input", {{bubbles: true}}));
  out.window = count();
  form.elements.q.value = "";
  for (const box of form.querySelectorAll("input[type=checkbox]")) box.checked = box.value === "fail";
  form.dispatchEvent(new page.defaultView.Event("input", {{bubbles: true}}));
  out.fail = count();
  document.title = "RESULT " + Object.entries(out).map(([key, value]) => key + "=" + value).join(" ");
}});
</script>"""


def browse(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Load a file and dump its document."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars",
        f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr", "--virtual-time-budget=4000", *options,
        "--dump-dom", path.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.parametrize("width", [375, 1200])
def test_page_fits_and_filters(tmp_path: Path, width: int) -> None:
    page = escaping.escape(html.render(sample.report()), quote=True)
    (tmp_path / "outer.html").write_text(OUTER.format(width=width, page=page), encoding="utf-8")
    done = browse(tmp_path / "outer.html", "--window-size=1300,1000")
    found = done.stdout.partition("RESULT ")[2].partition("<")[0]
    assert found == f"width={width} scroll={width} filter=true all=12 window=1 fail=2"


def test_page_loads_without_console_messages(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(html.render(sample.report()), encoding="utf-8")
    assert "CONSOLE" not in browse(tmp_path / "report.html").stderr
