"""Pages in Debian's headless chromium: measured from an outer page, and judged by axe-core."""
from __future__ import annotations

import html as escaping
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium to run these")

# The page in a frame of the given width; the outer page runs `measure` in it and writes what it returns as its own text.
OUTER = """<!doctype html><meta charset="utf-8"><iframe id="f"
style="width:{width}px;height:{height}px;border:0;color-scheme:{scheme}" srcdoc="{page}"></iframe><pre id="result"></pre><script>
const seen = (out) => {{ document.getElementById("result").textContent = JSON.stringify(out); }};
document.getElementById("f").addEventListener("load", async () => {{
  const page = document.getElementById("f").contentDocument, view = page.defaultView;
  try {{ seen(await (async () => {{ {measure} }})()); }} catch (error) {{ seen({{error: String(error)}}); }}
}});
</script>"""
AXE = """
for (const one of page.querySelectorAll("details")) one.open = true;
page.querySelector("nav").style.position = "static";  // what sticks covers something wherever the page is scrolled to
const script = page.createElement("script");
script.textContent = {axe};
page.head.append(script);
const found = await view.axe.run(page, {{resultTypes: ["violations"], {rules}}});
const where = (one) => one.nodes[0].target.join(" ") + ": " + one.nodes[0].failureSummary;
const told = (rows) => rows.map((one) => [one.id, one.impact, one.nodes.length, where(one)]);
return {{violations: told(found.violations), passes: found.passes.length}};
"""


def browse(path: Path, *options: str, budget: int = 4_000) -> subprocess.CompletedProcess[str]:
    """Load a file and dump its document."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars",
        f"--user-data-dir={path.parent / 'profile'}", "--enable-logging=stderr", f"--virtual-time-budget={budget}", *options,
        "--dump-dom", path.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)


def measure(folder: Path, page: str, script: str, *, width: int = 1200, dark: bool = False, height: int = 900,
            budget: int = 4_000) -> Any:
    """What the script returns, with `page` (the document) and `view` (its window) at hand."""
    outer = folder / "outer.html"
    outer.write_text(OUTER.format(width=width, height=height, page=escaping.escape(page, quote=True), measure=script,
                                  scheme="dark" if dark else "light"), encoding="utf-8")
    done = browse(outer, "--window-size=1300,1000", budget=budget)
    text = done.stdout.rpartition('<pre id="result">')[2].partition("</pre>")[0]
    return json.loads(escaping.unescape(text))


def axe_source() -> str | None:
    """axe-core: the file that ASSAY_AXE names, or the one that the package axe-core-python brings."""
    if os.environ.get("ASSAY_AXE"):
        return Path(os.environ["ASSAY_AXE"]).read_text(encoding="utf-8")
    package = importlib.util.find_spec("axe_core_python")
    places = list(package.submodule_search_locations or ()) if package else []
    return (Path(places[0]) / "axe.min.js").read_text(encoding="utf-8") if places else None


def axe(folder: Path, page: str, *, width: int = 1200, dark: bool = False) -> Any:
    """What axe-core has to say of a page, all its details open; of a dark one, of its colours alone: the rest is the same."""
    source = axe_source()
    if source is None:
        pytest.skip("no axe-core here: pip install axe-core-python to run these")
    script = AXE.format(axe=json.dumps(source).replace("</", "<\\/"),
                        rules='runOnly: ["color-contrast"]' if dark else "")
    return measure(folder, page, script, width=width, dark=dark, height=30_000, budget=60_000)
