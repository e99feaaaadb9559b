"""`assay bundle`, `verify` and `trend`: what was packed comes back, and whatever else is refused in one line."""
from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from assay.report import bundle as bundles
from assay.report import jsonl, speed

from .conftest import NARROW

Call = Callable[..., tuple[int, str, str]]
WAIVERS = {"waivers": []}


def checked(assay: Call, name: str, folder: Path) -> None:
    """A report of one property of one of the kernels."""
    assay("check", f"kernels.py:{name}", *NARROW[:4], "--only", "softmax/output_is_the_formula", "--workers", "1", "--quiet",
          "--isolate", "never", "--out", folder / name)


@pytest.fixture
def packed(kernels: Path, assay: Call, tmp_path: Path) -> Path:
    """A bundle of a small run of a wrong implementation."""
    checked(assay, "wrong", tmp_path)
    code, out, err = assay("bundle", tmp_path / "wrong", "--out", tmp_path / "evidence.zip")
    assert code == 0 and "wrote" in out, err
    return tmp_path / "evidence.zip"


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def repacked(path: Path, held: dict[str, bytes], *, rehash: bool = False, packing: int = zipfile.ZIP_DEFLATED) -> Path:
    """A bundle with these members; with a manifest that fits them where asked."""
    if rehash:
        hashed = bundles.hashes({name: data for name, data in held.items() if name != "manifest.json"})
        held = {**held, "manifest.json": json.dumps({**json.loads(held["manifest.json"]), "sha256": hashed}).encode()}
    with zipfile.ZipFile(path, "w", packing) as file:
        for name, data in held.items():
            file.writestr(name, data)
    return path


def test_a_bundle_is_verified_and_its_sample_comes_out_the_same(packed: Path, kernels: Path, assay: Call) -> None:
    assert set(members(packed)) == {"report.jsonl", "plan.json", "seeds.json", "environment.json", "manifest.json"}
    code, out, err = assay("verify", packed, "--isolate", "never")
    assert code == 0 and "whole: 4 files as packed" in out and "1 of 1 case the same" in out, err
    kernels.write_text(kernels.read_text().replace("torch.softmax(x, -1)", "torch.softmax(x, dim)"))
    code, out, err = assay("verify", packed, "--isolate", "never")
    assert code == 1 and "then fail, now pass" in out and "is not the file that was checked" in err
    assert assay("verify", packed, "--sample", 0)[0] == 0


def test_the_same_report_gives_the_same_bytes(packed: Path, assay: Call, tmp_path: Path) -> None:
    assert assay("bundle", tmp_path / "wrong", "--out", tmp_path / "twice.zip")[0] == 0
    assert (tmp_path / "twice.zip").read_bytes() == packed.read_bytes()


def test_timings_of_the_run_are_packed_and_those_of_another_are_not(packed: Path, assay: Call, tmp_path: Path) -> None:
    report = jsonl.read(tmp_path / "wrong")
    place = tmp_path / "wrong" / speed.FILE_NAME
    place.write_text(speed.dumps(report, "assay bench", [], []))
    assert assay("bundle", tmp_path / "wrong", "--out", tmp_path / "timed.zip")[0] == 0
    held = members(tmp_path / "timed.zip")
    assert held[speed.FILE_NAME] == place.read_bytes()
    assert assay("verify", tmp_path / "timed.zip", "--sample", 0)[0] == 0
    other = json.dumps(json.loads(held[speed.FILE_NAME]) | {"report": "another"}).encode()
    code, out, _ = assay("verify", repacked(tmp_path / "edited.zip", {**held, speed.FILE_NAME: other}, rehash=True))
    assert code == 1 and out.strip() == "edited: bench.json was timed for another run"
    place.write_bytes(other)
    assert assay("bundle", tmp_path / "wrong", "--out", tmp_path / "timed.zip")[0] == 0
    assert (tmp_path / "timed.zip").read_bytes() == packed.read_bytes()


def test_what_was_edited_is_named(packed: Path, assay: Call, tmp_path: Path) -> None:
    held = members(packed)
    edits = {
        "seeds.json": held["seeds.json"].replace(b'"seed": 0', b'"seed": 7'),
        "report.jsonl": held["report.jsonl"].replace(b'"wrong":1', b'"wrong":0'),
    }
    for name, data in edits.items():
        assert data != held[name]
        code, out, _ = assay("verify", repacked(tmp_path / "edited.zip", {**held, name: data}), "--sample", 0)
        assert code == 1 and f"edited: {name} is not what the manifest says" in out
    code, out, _ = assay("verify", repacked(tmp_path / "edited.zip", {**held, "seeds.json": edits["seeds.json"]}, rehash=True))
    assert code == 1 and out.strip() == "edited: seeds.json is not what the report says"
    without = {name: data for name, data in held.items() if name != "environment.json"}
    code, out, _ = assay("verify", repacked(tmp_path / "edited.zip", without), "--sample", 0)
    assert code == 1 and "environment.json is missing" in out


def test_whatever_is_no_bundle_is_refused_in_one_line(packed: Path, assay: Call, tmp_path: Path) -> None:
    held, data = members(packed), packed.read_bytes()
    twice = io.BytesIO(data)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(twice, "a") as file:
        file.writestr("report.jsonl", held["report.jsonl"])
    bomb = {**held, "seeds.json": b"0" * (bundles.SMALL + bundles.CHUNK)}
    newer = {**held, "manifest.json": json.dumps({"schema": 99, "sha256": {}}).encode()}
    broken = {**held, "manifest.json": b"[["}
    footer = held["report.jsonl"].replace(b'"verdict":"non-conformant"', b'"verdict":"conformant"')
    wrong: dict[str, tuple[bytes, str]] = {
        "truncated": (data[: len(data) // 2], "truncated"), "no archive": (b"hello", "not a bundle"),
        "empty": (b"", "not a bundle"), "broken manifest": (repacked(tmp_path / "x", broken).read_bytes(), "not JSON"),
        "traversal": (repacked(tmp_path / "x", {**held, "../../evil": b""}).read_bytes(), "does not belong"),
        "absolute": (repacked(tmp_path / "x", {**held, "/etc/evil": b""}).read_bytes(), "does not belong"),
        "bomb": (repacked(tmp_path / "x", bomb).read_bytes(), "unpacks to more"), "twice": (twice.getvalue(), "there twice"),
        "no manifest": (repacked(tmp_path / "x", {"report.jsonl": held["report.jsonl"]}).read_bytes(), "lacks manifest.json"),
        "newer": (repacked(tmp_path / "x", newer).read_bytes(), "upgrade"),
        "packing": (repacked(tmp_path / "x", held, packing=zipfile.ZIP_LZMA).read_bytes(), "packed in a way"),
        "verdict": (repacked(tmp_path / "x", {**held, "report.jsonl": footer}, rehash=True).read_bytes(), "does not follow"),
    }
    before = sorted(tmp_path.rglob("*"))
    for what, (content, said) in wrong.items():
        (tmp_path / "x").write_bytes(content)
        code, out, err = assay("verify", tmp_path / "x")
        assert (code, out, len(err.strip().splitlines())) == (2, "", 1) and said in err, (what, err)
    assert sorted(tmp_path.rglob("*")) == before
    assert assay("verify", tmp_path / "nothere.zip")[0] == 2
    assert assay("verify", packed, "--sample", -1)[0] == 2


def test_a_waiver_file_is_packed_only_where_it_is_one(packed: Path, kernels: Path, assay: Call, tmp_path: Path) -> None:
    code, _, err = assay("bundle", tmp_path / "wrong", "--out", tmp_path / "w.zip", "--waivers", kernels)
    assert code == 2 and not (tmp_path / "w.zip").exists() and len(err.strip().splitlines()) == 1
    code, _, err = assay("bundle", tmp_path / "wrong", "--out", tmp_path / "wrong" / "report.jsonl" / "w.zip")
    assert code == 2 and "must be a file to write" in err


def test_the_trend_is_a_line_a_report_and_a_chart(packed: Path, assay: Call, tmp_path: Path) -> None:
    checked(assay, "right", tmp_path)
    code, out, err = assay("trend", tmp_path, "--out", tmp_path / "trend.svg")
    assert code == 0, err
    assert "0 right  1 wrong  0 open  wrong" in out and "1 right  0 wrong  0 open  right" in out
    root = ElementTree.fromstring((tmp_path / "trend.svg").read_text())
    assert root.tag.endswith("svg") and "2 runs" in root.attrib["aria-label"]
    (tmp_path / "none").mkdir()
    for folder in (tmp_path / "none", tmp_path / "nothere"):
        code, _, err = assay("trend", folder)
        assert code == 2 and len(err.strip().splitlines()) == 1
