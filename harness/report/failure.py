"""One failure in words: the block that the terminal, the pytest plugin, JUnit and Markdown all show."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.report.status import LOOKS, mark, short

MAX_ARGUMENT_LINES = 12


def headline(result: Mapping[str, Any]) -> str:
    """Status, property, implementation, device and dtype, statements."""
    ids = f"  [{', '.join(result['statements'])}]" if result["statements"] else ""
    return f"{mark(result['status'])}  {result['property']} · {place(result)}{ids}"


def first_line(text: str) -> str:
    """The first line, or nothing."""
    lines = text.splitlines()
    return lines[0] if lines else ""


def said(result: Mapping[str, Any]) -> str:
    """The message without the property's name and sentence where it opens with them: they are shown beside it."""
    text = str(result["message"]).removeprefix(f"{result['property']}:").lstrip()
    sentence = str(result["sentence"]).rstrip(". ")
    return text.removeprefix(sentence).lstrip(" .,;:–—-") if sentence else text


def happened(result: Mapping[str, Any]) -> str:
    """What is said of the failure, without the alternatives where they have a place of their own."""
    alternatives = (result["counterexample"] or {}).get("consistent_with")
    return said(result).partition(" Consistent with: ")[0] if alternatives else said(result)


def place(result: Mapping[str, Any]) -> str:
    """Implementation, device, dtype."""
    return " · ".join(part for part in (result["implementation"], result["device"], result["dtype"]) if part)


def smallest_input(found: Mapping[str, Any]) -> str:
    """Dims, options that are not at rest, value family, layout and seed of a counterexample in one line."""
    dims = " ".join(f"{letter}={size}" for letter, size in found.get("dims", {}).items())
    flags = ", ".join(f"{name}={value}" for name, value in found.get("flags", {}).items() if value not in (None, False, "none"))
    layout = found.get("layout")
    rest = [found.get("family"), None if layout == "contiguous" else layout, f"seed {found['seed']}" if "seed" in found else None]
    return " · ".join(str(part) for part in (dims, flags, *rest) if part)


def numbers(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was got, expected and allowed, label and text."""
    pairs = [(key, show(found[key])) for key in ("got", "expected", "bound") if found.get(key) is not None]
    if found.get("index") is not None:
        pairs.insert(0, ("at", str(found["index"])))
    if found.get("worst") is not None:
        pairs.append(("error", f"{short(found['worst'])} × the bound"))
    return pairs


def show(value: Any) -> str:
    """A number in few characters, a list element by element, text as it is."""
    return f"[{', '.join(show(item) for item in value)}]" if isinstance(value, list) else short(value)


def failure_text(result: Mapping[str, Any]) -> str:
    """The failure of one result as plain text: what should hold, what happened, on which input, how to see it again."""
    lines = [headline(result)]
    lines += ["  " + text.replace("\n", "\n  ") for text in (result["sentence"], said(result)) if text]
    lines += _input_lines(result["counterexample"] or {})
    lines += ["  note: " + note.replace("\n", "\n    ") for note in result["notes"]]
    if result["blocked_by"]:
        lines.append(f"  rests on, and failed too: {', '.join(result['blocked_by'])}")
    if result["suspect"]:
        lines.append(f"  suspect: {_pairs(result['suspect'])}")
    if result["stderr_tail"]:
        lines += ["  last words on stderr:", *(f"    {line}" for line in result["stderr_tail"].splitlines()[-6:])]
    if result["reproduce"]:
        lines.append(f"  reproduce: {result['reproduce']}")
    if len(lines) == 1:
        lines.append(f"  {LOOKS[result['status']].meaning}")
    return "\n".join(lines)


def _input_lines(found: Mapping[str, Any]) -> list[str]:
    lines = []
    if smallest_input(found):
        lines.append(f"  smallest input: {smallest_input(found)}")
    for name, text in found.get("arguments", {}).items():
        lines += _argument(name, text)
    if found.get("check"):
        lines.append(f"  check: {found['check']}")
    if numbers(found):
        lines.append("  " + "   ".join(f"{label} {text}" for label, text in numbers(found)))
    return lines


def _argument(name: str, text: str) -> list[str]:
    """`name = text`, further lines aligned under the first, cut at MAX_ARGUMENT_LINES."""
    first, *rest = text.splitlines() or [""]
    kept = [f"    {name} = {first}", *(f"    {' ' * len(name)}   {line}" for line in rest[: MAX_ARGUMENT_LINES - 1])]
    left = len(rest) - (MAX_ARGUMENT_LINES - 1)
    return [*kept, f"    {' ' * len(name)}   … ({left} more lines)"] if left > 0 else kept


def _pairs(details: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {show(value)}" for name, value in details.items())
