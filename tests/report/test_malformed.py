"""Bad input of any sort is refused as usage: never another exception, never an exit code outside the contract.

The counts here suit a test run; `ASSAY_MALFORMED=10000` asks for as many of each as the figures quote.
"""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay import registry
from assay.cli.main import main
from assay.contract import loading
from assay.errors import UsageError
from assay.report import jsonl
from assay.run import waivers
from assay.run.replay import read_example

from .sample import report, write

MANY = int(os.environ.get("ASSAY_MALFORMED", "40"))
often = settings(max_examples=MANY, deadline=None, database=None,
                 suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12)
EXAMPLE: dict[str, Any] = {"kind": "softmax", "dims": {"C": 3, "B": 2}, "flags": {"axis": "last", "masked": "none"},
                           "family": "integers", "layout": "contiguous", "seed": 0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a valid report."""
    return write(report(), tmp_path_factory.mktemp("sample") / jsonl.FILE_NAME).read_bytes()


def damaged(data: bytes, draw: Any) -> bytes:
    """The bytes with a few of them cut, doubled, flipped or replaced; sometimes a value inside a line exchanged."""
    if draw(st.booleans()):
        lines = data.split(b"\n")
        which = draw(st.integers(0, len(lines) - 2))
        record = json.loads(lines[which])
        key = draw(st.sampled_from(sorted(record)))
        record[key] = draw(json_values)
        lines[which] = json.dumps(record).encode()
        return b"\n".join(lines)
    for _ in range(draw(st.integers(1, 4))):
        at, size = draw(st.integers(0, len(data) - 1)), draw(st.integers(0, 200))
        piece = draw(st.sampled_from([b"", b"\x00", b"{", b"}", b"\n", b"[" * 3000, b"NaN", b"\xff\xfe"]) | st.binary(max_size=8))
        data = data[:at] + piece + data[at + size:]
        if not data:
            return b"\n"
    return data


@often
@given(data=st.data())
def test_reports(whole: bytes, data: st.DataObject) -> None:
    refused(lambda: jsonl.parse(damaged(whole, data.draw)))


@often
@given(data=st.data())
def test_waivers(tmp_path: Path, data: st.DataObject) -> None:
    good = {"version": 1, "waivers": [{"id": "softmax/x[y-cpu-float32]", "status": "fail", "check": "c", "reason": "r",
                                      "link": "https://example.org", "expires": "2030-01-01"}]}
    text = json.dumps(good)
    place = tmp_path / "waivers.json"
    choice = data.draw(st.integers(0, 2))
    if choice == 0:
        place.write_text(json.dumps(data.draw(json_values)))
    elif choice == 1:
        good["waivers"][0][data.draw(st.sampled_from(sorted(good["waivers"][0])))] = data.draw(json_values)  # type: ignore[index]
        place.write_text(json.dumps(good))
    else:
        at = data.draw(st.integers(0, len(text)))
        rest = text[at + data.draw(st.integers(0, 30)):]
        place.write_bytes(text[:at].encode() + data.draw(st.binary(max_size=6)) + rest.encode())
    refused(lambda: waivers.read(place))


@often
@given(data=st.data())
def test_examples(data: st.DataObject) -> None:
    prop = next(one for one in registry.properties("softmax") if one.id == "softmax/rows_sum_to_one")
    example = json.loads(json.dumps(EXAMPLE))
    where = data.draw(st.sampled_from([example, example["dims"], example["flags"]]))
    where[data.draw(st.sampled_from([*where, "values", "odd"]))] = data.draw(json_values)
    refused(lambda: read_example(json.dumps(example), prop))


SNIPPETS = (
    "import assay\n", "@assay.implements('softmax', name='a')\n", "@assay.implements('softmax', name=\n",
    "def f(x, *, dim=-1):\n    return x\n", "def f(a, b):\n    return a\n", "f = 3\n",
    "raise SystemExit(3)\n", "1/0\n", "import nothere\n",
    "@assay.implements('nokind', name='a')\n", "@assay.implements('softmax', name='a', conventions={'empty_row': 'odd'})\n",
    "@assay.implements('softmax', name='a', limits={'C': -1})\n", "@assay.implements('softmax', name='a', dtypes=['int8'])\n",
    "@assay.implements('softmax', name='a', arithmetic={'internal': 7})\n",
    "class K:\n    def __call__(self, x, *, dim=-1): return x\n",
    "\x00", "\tif", "# -*- coding: odd -*-\n",
)


@often
@given(pieces=st.lists(st.sampled_from(SNIPPETS) | st.text(max_size=20), max_size=5), name=st.none() | st.text(max_size=8))
def test_adapters(tmp_path: Path, pieces: list[str], name: str | None) -> None:
    place = tmp_path / "adapter.py"
    place.write_bytes("".join(pieces).encode("utf-8", "surrogatepass"))
    refused(lambda: loading.load(str(place) if name is None else f"{place}:{name}"))


WORDS = (
    "check", "plan", "list", "explain", "report", "diff", "merge", "replay", "new", "--kind", "softmax", "--only", "--profile",
    "quick", "--dtype", "float32", "--seed", "-1", "--shard", "2/1", "--time", "soon", "--timeout", "--json", "--out", "nothere.py",
    "kernels.py:", ":", "nothere.jsonl", "hf:", "--", "-", "--example", "{}", "statements", "kinds", "SM-1", "sdppa",
)
PRINTABLE = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=6)


@often
@given(words=st.lists(st.sampled_from(WORDS) | PRINTABLE, max_size=6))
def test_command_lines(
        words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    if words[:1] in (["check"], ["plan"], ["replay"]):
        # Nothing that exists is checked here: that takes minutes, and other tests do it; nor is a process started for it.
        words = [words[0], "--isolate", "never", *words[1:], "nothere.py"]
    code = main(words)
    said = capfd.readouterr().err
    assert code in range(5) and "Traceback" not in said, (words, said)
    if code == 2:
        assert said.startswith("assay: ") and said.count("\n") == 1, (words, said)


def refused(read: Any) -> None:
    """Read, or say in one line what is wrong."""
    try:
        read()
    except UsageError as error:
        text = str(error)
        assert text and "\n" not in text.strip() and len(text) < 2000, text
