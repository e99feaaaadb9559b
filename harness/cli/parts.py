"""`assay check MODEL --parts`: a model's parts one by one, and what is not recognised."""
from __future__ import annotations

from assay.run import events
from assay.run.session import Request


def show_parts(request: Request, *, as_json: bool) -> int:
    """Print a line a part; return the exit code."""
    from assay.run import parting

    found = parting.rows(request)
    print(events.dumps({"parts": [row.to_json() for row in found]}) if as_json else parting.text(found))
    return parting.exit_code(found)
