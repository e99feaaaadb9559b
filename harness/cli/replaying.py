"""`assay replay`: stored counterexamples run again, and what came of each."""
from __future__ import annotations

import sys
from pathlib import Path

from assay.cli.checking import stdout_for_json
from assay.errors import UsageError
from assay.report import jsonl
from assay.report.failure import failure_text, headline
from assay.report.status import plural
from assay.run import events
from assay.run.replay import all_of, one
from assay.run.session import Request


def replay(request: Request, target: str, only: str | None, example: str | None, *, as_json: bool) -> int:
    """Run, print the failures, return 1 when any still fails, 4 when assay itself failed."""
    with stdout_for_json(as_json) as stdout:
        if is_report(target):
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


def is_report(target: str) -> bool:
    """Whether a report is meant: a file of that sort, or a folder that holds one."""
    return target.endswith(".jsonl") or (Path(target) / jsonl.FILE_NAME).is_file()
