"""Options checked, each with its rule, and put together: the same for the command line, Python and pytest."""
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.errors import UsageError

if TYPE_CHECKING:
    from assay.run.session import Request

PROFILES = ("quick", "standard", "deep")
ISOLATE = ("auto", "always", "never")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def request(
    targets: Sequence[str], *, kind: str | None = None, devices: Sequence[str] | None = None, dtypes: Sequence[str] | None = None,
    only: Sequence[str] | None = None, profile: str = "standard", seed: int = 0, timeout: float = 60.0,
    workers: int | None = None, shard: str | None = None, isolate: str = "auto", waivers: Path | None = None, **more: Any,
) -> Request:
    """What a check is asked for. The options are those of `assay check`."""
    from assay.contract.kinds import kind as kind_named
    from assay.run.judge import Settings
    from assay.run.plan import Selection
    from assay.run.session import Request
    from assay.run.waivers import read

    if kind is not None:
        kind_named(kind)
    chosen = Selection(tuple(only or ()), tuple(dict.fromkeys(device_named(one) for one in devices or ["auto"])),
                       tuple(dict.fromkeys(one_of("dtype", one.removeprefix("torch."), DTYPES) for one in dtypes or ())))
    return Request(
        targets=tuple(targets), kind=kind, selection=chosen, isolate=one_of("isolate", isolate, ISOLATE),
        settings=Settings(profile=one_of("profile", profile, PROFILES), seed=at_least("seed", seed, 0),
                          timeout=seconds(timeout)),
        workers=at_least("workers", (1 if isolate == "never" else cpus()) if workers is None else workers, 1),
        shard=shard_named(shard),
        waivers=read(waivers) if waivers is not None else (), **more)


def inside(targets: Sequence[str], model: str) -> list[str]:
    """The targets, each an attention, as the one of a model: `hf:llama<kernels.py:attention`."""
    scheme, colon, name = model.partition(":")
    if not (colon and scheme == "hf" and name):
        raise UsageError(f"inside={model} must be a model of Hugging Face, hf:TYPE or hf:./FOLDER")
    return [f"{model}<{target}" for target in targets]


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def one_of(name: str, value: str, known: Sequence[str]) -> str:
    """The value, if it is in a closed list."""
    from assay.contract.kinds import unknown

    if value not in known:
        raise UsageError(unknown(name, value, known))
    return value


def device_named(device: str) -> str:
    """auto, cpu, cuda, or cuda and a number."""
    head, colon, number = device.partition(":")
    if device in ("auto", "cpu") or (head == "cuda" and (not colon or number.isdigit())):
        return device
    return one_of("device", device, ("auto", "cpu", "cuda"))


def at_least(name: str, value: int, least: int) -> int:
    """The value, if it is not below the least that makes sense."""
    if value < least:
        raise UsageError(f"{name}={value} must be a whole number, {least} or more")
    return value


def seconds(timeout: float) -> float:
    """A positive, finite number of seconds."""
    if not 0 < timeout < 1e6:
        raise UsageError(f"timeout={timeout:g} must be a number of seconds above 0 and below 1,000,000")
    return timeout


def shard_named(shard: str | None) -> tuple[int, int] | None:
    """`I/N` with I from 1 to N."""
    if shard is None:
        return None
    index, slash, count = shard.partition("/")
    if not (slash and index.isascii() and index.isdigit() and count.isascii() and count.isdigit()
            and 1 <= int(index) <= int(count) <= 100_000):
        raise UsageError(f"shard={shard} must be I/N with I from 1 to N, such as 1/4")
    return int(index), int(count)
