"""`assay replay`: stored counterexamples run again, and what came of each."""
from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from assay.cli.checking import stdout_for_json
from assay.errors import UsageError
from assay.report import jsonl
from assay.report.failure import failure_text, headline
from assay.report.status import plural
from assay.run import events
from assay.run.replay import all_of, one, script_for, stored
from assay.run.session import Request


def replay(request: Request, target: str, only: str | None, example: str | None, *, as_json: bool,
           script: Path | None = None) -> int:
    """Run, print the failures, return 1 when any still fails, 4 when assay itself failed. script: write it of the one example."""
    with stdout_for_json(as_json) as stdout:
        if script is not None:
            results = _scripted(request, target, only, example, script)
        elif is_report(target):
            if only or example:
                raise UsageError("only= and example= must be left out for a report: all its counterexamples are run")
            results = all_of(jsonl.read(target), request)
        elif only is None or example is None:
            raise UsageError("replay must be given a report.jsonl, or a target with --only CASE and --example JSON")
        else:
            results = one(request, only, example)
        red = [result for result in results if result["status"] in events.RED]
        if as_json:
            print(events.dumps({"failing": len(red), "results": results}), file=stdout, flush=True)
        for result in results:
            print(failure_text(result) if result in red else headline(result), file=sys.stderr if as_json else stdout)
        print(f"{len(red)} of {plural(len(results), 'example')} failing", file=sys.stderr)
    if any(result["status"] == "harness-error" for result in results):
        return 4
    return 1 if red else 0


def _scripted(request: Request, target: str, only: str | None, example: str | None, path: Path) -> list[dict[str, Any]]:
    """Write the script, say where; the result of its example."""
    from assay.run.script import write

    if is_report(target):
        if example:
            raise UsageError("example= must be left out for a report: the one that it holds is taken")
        target, kind, only, example = stored(jsonl.read(target), only)
        request = replace(request, targets=(target,), kind=kind)
    if only is None or example is None:
        raise UsageError("script= must be given a report.jsonl, or a target with --only CASE and --example JSON")
    text, results = script_for(request, only, example)
    write(text, path)
    print(f"wrote {path}; run it with python: it exits with 1 when the failure shows", file=sys.stderr)
    return results


def is_report(target: str) -> bool:
    """Whether a report is meant: a file of that sort, or a folder that holds one."""
    return target.endswith(".jsonl") or (Path(target) / jsonl.FILE_NAME).is_file()
