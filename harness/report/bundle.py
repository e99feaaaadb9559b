"""A bundle: one archive with a report, its plan, seeds, environment, waivers and timings, and the hash of each; read or refused.

Nothing is ever unpacked to disk: members have fixed names, are read into memory up to a limit, and are held against the manifest
and against the report itself.
"""
from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.errors import UsageError
from assay.report import jsonl, speed
from assay.report.jsonl import Report
from assay.report.render import write_bytes
from assay.run import events

SCHEMA = 1
MANIFEST, WAIVERS = "manifest.json", "waivers.json"
DERIVED = ("plan.json", "seeds.json", "environment.json")  # what the report says already, laid out for a reader
NAMES = (jsonl.FILE_NAME, *DERIVED, WAIVERS, speed.FILE_NAME, MANIFEST)
LIMIT = jsonl.MAX_BYTES  # of one member, unpacked
SMALL = speed.MAX_BYTES  # of every other member but report and plan
CHUNK = 2**20
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of others, some fail with exceptions of their own
RATIO = 200  # reports pack about 20 to 1; what unpacks to more, and is more than small, is a bomb
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bundle from the same report, byte for byte


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds, after every check."""

    report: Report
    waivers: bytes | None
    hashes: Mapping[str, str]
    edited: tuple[str, ...]  # members that are not what the manifest or the report says, a sentence each


def pack(report: Report, path: Path, waivers: bytes | None = None, timed: bytes | None = None) -> Path:
    """Write the bundle of a report, with its waivers and timings where there are any; a file that is there is replaced whole."""
    members = {jsonl.FILE_NAME: "".join(events.dumps(event) + "\n" for event in report.events()).encode(), **derived(report)}
    members |= {name: data for name, data in ((WAIVERS, waivers), (speed.FILE_NAME, timed)) if data is not None}
    told = {"schema": SCHEMA, "assay": report.header["assay"], "sha256": hashes(members)}
    members[MANIFEST] = _json(told)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return write_bytes(path, archive.getvalue())


def derived(report: Report) -> dict[str, bytes]:
    """Plan, seeds and environment as files of their own."""
    drawn = {one["id"]: one["counterexample"].get("seed") for one in report.results if one["counterexample"]}
    seeds = {"seed": report.header["seed"], "profile": report.header["profile"], "counterexamples": drawn}
    return {"plan.json": _json(report.plan), "seeds.json": _json(seeds), "environment.json": _json(report.header["environment"])}


def hashes(members: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}


def _json(value: Any) -> bytes:
    return (json.dumps(value, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


# ------------------------------------------------------------------------------------------------ reading
def unpack(path: Path) -> Bundle:
    """The bundle in a file. UsageError, one line, for whatever is none; edited members are named in the bundle."""
    members = _members(path)
    manifest = _manifest(members.pop(MANIFEST), path)
    edited = [f"{name} is not what the manifest says" for name, digest in hashes(members).items()
              if digest != manifest.get(name)]
    report = jsonl.parse(members[jsonl.FILE_NAME], path / jsonl.FILE_NAME)
    told, timed = derived(report), members.get(speed.FILE_NAME)
    if timed is not None and speed.parse(timed, path / speed.FILE_NAME)["report"] != speed.identity(report):
        edited.append(f"{speed.FILE_NAME} was timed for another run")
    edited += [f"{name} is missing" for name in {**manifest, **told} if name not in members]
    edited += [f"{name} is not what the report says" for name, data in told.items() if members.get(name, data) != data]
    return Bundle(report, members.get(WAIVERS), manifest, tuple(edited))


def _members(path: Path) -> dict[str, bytes]:
    """All members in memory, each by a known name and within its limit."""
    try:
        with zipfile.ZipFile(path) as file:
            listed = file.infolist()
            names = [one.filename for one in listed]
            for name in names:
                if name not in NAMES:
                    raise UsageError(f"{path}: member {events.clean(name, 100)!r} does not belong into a bundle")
            if any(one.compress_type not in PACKINGS for one in listed):
                raise UsageError(f"{path}: a member is packed in a way that assay bundle does not use")
            if len(set(names)) < len(names):
                raise UsageError(f"{path}: a member is there twice; not written by assay bundle")
            missing = next((name for name in (MANIFEST, jsonl.FILE_NAME) if name not in names), None)
            if missing is not None:
                raise UsageError(f"{path}: lacks {missing}; not a bundle of assay")
            return {one.filename: _read(file, one, path) for one in listed}
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; give a bundle") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(f"{path}: not a bundle of assay, or truncated: {events.clean(error, 100)}") from None


def _read(file: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bytes:
    """One member, no further than its limit: what its header says of its size is not trusted."""
    limit = LIMIT if member.filename in (jsonl.FILE_NAME, "plan.json") else SMALL
    data = bytearray()
    with file.open(member) as stream:
        while chunk := stream.read(CHUNK):
            data += chunk
            if len(data) > min(limit, max(SMALL, RATIO * member.compress_size)):
                raise UsageError(f"{path}: {member.filename} unpacks to more than a bundle of assay holds")
    return bytes(data)


def _manifest(data: bytes, path: Path) -> dict[str, str]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: {MANIFEST} is not JSON; not a bundle of assay") from None
    told = found.get("sha256") if isinstance(found, dict) else None
    if not isinstance(told, dict) or not all(name in NAMES and isinstance(digest, str) for name, digest in told.items()):
        raise UsageError(f"{path}: {MANIFEST} names no hashes; not a bundle of assay")
    schema = found.get("schema")
    if schema != SCHEMA:
        raise UsageError(f"{path}: schema={events.clean(schema, 20)} must be {SCHEMA}, which this assay reads; upgrade")
    return dict(told)
