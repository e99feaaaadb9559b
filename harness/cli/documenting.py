"""`assay document`: the statements as a site, with their live status in a report."""
from __future__ import annotations

from pathlib import Path

from assay.errors import UsageError
from assay.report import document, jsonl, overview
from assay.report.render import write_text
from assay.run.chapters import chapters, findings


def write(source: Path, implementation: str | None, pages: Path | None, out: Path) -> Path:
    """Write the site; everything is rendered before the first file is touched. Returns the first page."""
    report = jsonl.read(source)
    names = overview.implementations(report)
    if implementation is not None and implementation not in names:
        raise UsageError(f"implementation={implementation} must be in the report: {', '.join(names[:20]) or 'it holds none'}")
    files = document.site(report, document.chosen(report, implementation), chapters(), findings(pages) if pages else {})
    for name, text in files.items():
        write_text(out / name, text)
    return out / document.PAGE
