"""junit.xml: one test suite an implementation, one test case a case, for CI systems that read nothing else."""
from __future__ import annotations

import re
from xml.etree import ElementTree

from assay.report import failure, overview
from assay.report.jsonl import Report
from assay.report.status import LOOKS
from assay.run import events
from assay.run.events import Json

FAILED = frozenset({"fail", "unexpected-pass"})
BROKE = frozenset({"crash", "timeout", "out-of-memory", "harness-error", "not-run"})
GOOD = frozenset({"pass", "suspect"})
# Everything that XML 1.0 has no way to write, not even as a reference.
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legal(text: object) -> str:
    """The text without the characters that XML cannot hold."""
    return _ILLEGAL.sub("", str(text))


def render(report: Report) -> str:
    """The file as text. What is blocked, waived or undecided is skipped, with the reason as its message."""
    results = overview.results_of(report)
    root = ElementTree.Element("testsuites", name="assay", tests=str(len(results)))
    groups: dict[tuple[str, str], list[Json]] = {}
    for one in results:
        groups.setdefault((one["kind"], one["implementation"]), []).append(one)
    for (kind, name), cases in groups.items():
        _suite(root, f"{kind} · {name}", cases, report)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(root: ElementTree.Element, name: str, cases: list[Json], report: Report) -> None:
    def count(statuses: frozenset[str]) -> str:
        return str(sum(one["status"] in statuses for one in cases))

    suite = ElementTree.SubElement(
        root, "testsuite", name=legal(name), tests=str(len(cases)), failures=count(FAILED), errors=count(BROKE),
        skipped=count(frozenset(LOOKS) - FAILED - BROKE - GOOD), time=f"{sum(one['seconds'] for one in cases):.3f}",
        timestamp=legal(report.header["started"]),
    )
    for one in cases:
        _case(suite, one)


def _case(suite: ElementTree.Element, one: Json) -> None:
    kind, _, name = one["property"].partition("/")
    where = "-".join(part for part in (one["implementation"], one["device"], one["dtype"]) if part)
    case = ElementTree.SubElement(
        suite, "testcase", classname=legal(f"assay.{kind}"), name=legal(f"{name or kind}[{where}]"),
        time=f"{one['seconds']:.3f}",
    )
    status = one["status"]
    message = legal(one["message"] or LOOKS[status].meaning)
    if status in FAILED | BROKE:
        tag = "failure" if status in FAILED else "error"
        ElementTree.SubElement(case, tag, type=status, message=message).text = legal(failure.failure_text(one))
    elif status not in GOOD:
        ElementTree.SubElement(case, "skipped", message=f"{status}: {message}")
    if status in events.DECIDED and one["values"]:
        ElementTree.SubElement(case, "system-out").text = legal(_measured(one))


def _measured(one: Json) -> str:
    values = {key: value for key, value in one["values"].items() if key != "forms"}
    return ", ".join(f"{key} {failure.show(value)}" for key, value in values.items())
