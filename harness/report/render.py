"""All files of a report folder from one report."""
from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from assay.errors import UsageError
from assay.report import badge, html, jsonl, junit, markdown, speed
from assay.report.jsonl import Report
from assay.run import events

PAGE = "report.html"
WRITERS: dict[str, Callable[[Report], str]] = {PAGE: html.render, "summary.md": markdown.render, "junit.xml": junit.render}
BADGES: dict[str, Callable[[Report], str]] = {"badge.json": badge.shields, "badge.svg": badge.svg}


def write_all(report_or_path: Report | str | Path, out_dir: str | Path, *, badges: bool = False,
              timed: speed.Speed | None = None) -> list[Path]:
    """Write report.html, summary.md and junit.xml, and report.jsonl where it is not there yet; returns their paths.

    Everything is rendered before the first file is touched, and each file is replaced whole: a refusal leaves all as it
    was.
    """
    report = report_or_path if isinstance(report_or_path, Report) else jsonl.read(report_or_path)
    folder = Path(out_dir)
    texts = {name: render(report) for name, render in (WRITERS | (BADGES if badges else {})).items()}
    if timed is not None:
        texts[PAGE] = html.render(report, timed)
    source = folder / jsonl.FILE_NAME
    if report.path is None or report.path.resolve() != source.resolve():
        texts[jsonl.FILE_NAME] = "".join(events.dumps(event) + "\n" for event in report.events())
    return [write_text(folder / name, text) for name, text in texts.items()]


def write_text(path: Path, text: str) -> Path:
    """Replace a file of a folder that was asked for; see `write_bytes`."""
    return write_bytes(path, text.encode("utf-8", "replace"), rule=f"out={path.parent} must be a folder to write to")


def write_bytes(path: Path, data: bytes, *, rule: str = "") -> Path:
    """Replace a file whole; UsageError where that cannot be done, with the old file left as it was."""
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)  # mkstemp makes it private; a report is there to be read
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"{rule or f'out={path} must be a file to write'}, got {error.strerror}") from None
    return path
