"""How examples of rotary positions are drawn: positions near and far, one list or one per sequence, every scaling."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration

BUDGET = 3_000  # elements B·H·T·D of one example
LONG = ("hundred_thousand", "million")  # positions that an implementation may lack

LLAMA3 = {"type": "llama3", "factor": 8.0, "original_length": 512, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: Mapping[str, Mapping[str, Any]] = {
    "linear": {"type": "linear", "factor": 4.0},
    "ntk": {"type": "ntk", "factor": 4.0},
    "yarn": {"type": "yarn", "factor": 4.0, "original_length": 2048},
    "yarn_betas": {"type": "yarn", "factor": 8.0, "original_length": 512, "beta_fast": 16, "beta_slow": 2},
    "yarn_given": {"type": "yarn", "factor": 64.0, "original_length": 2048, "attention_factor": 1.0},
    "longrope": {"type": "longrope", "factor": 4.0, "original_length": 64},
    "longrope_given": {"type": "longrope", "factor": 4.0, "original_length": 8, "attention_factor": 1.25},
    "llama3": LLAMA3,
}
MAGNIFYING = ("yarn", "yarn_betas", "yarn_given", "longrope", "longrope_given")


def scaling_named(name: str, width: int) -> dict[str, Any] | None:
    """The scaling of that name for R = width; LongRoPE's lists grow with the pair."""
    if name == "none":
        return None
    found = dict(SCALINGS[name])
    if found["type"] == "longrope":
        steps = range(width // 2)
        found |= {"short_factor": [1.0 + step / 4 for step in steps], "long_factor": [1.0 + step for step in steps]}
    return found


def draw_positions(name: str, dims: Mapping[str, int], source: torch.Generator) -> torch.Tensor:
    """Positions (T,), or (B, T) for `per_sequence`."""
    batch, length = dims["B"], dims["T"]
    steps = torch.arange(length)
    start = int(torch.randint(1, 60, (), generator=source))
    if name == "packed":  # two documents in one row: the second starts again
        return torch.cat((steps[: length - length // 2], steps[: length // 2]))
    if name == "permuted":
        return torch.randperm(length, generator=source) + start
    if name == "per_sequence":
        return steps + torch.randint(0, 60, (batch, 1), generator=source)
    if name == "hundred_thousand":
        return 100_000 + torch.randint(0, 1000, (length,), generator=source)
    if name == "million":
        return 1_000_000 - torch.randint(0, 1000, (length,), generator=source)
    if name == "negative":
        return steps - length - start % 5
    return {"index": steps, "offset": steps + start, "near_256": steps + 254 + start % 3, "zero": steps * 0,
            "hundreds": 300 + start % 2 + 7 * steps, "thousand": 1000 + start + steps}[name]


class RotaryCases(Cases):
    """Pairings, partial rotation, bases, scalings; positions 0, small, around 256, hundreds, 10⁵ and 10⁶."""

    kind = "rotary"
    dims = {"B": (1, 2, 3, 0), "H": (1, 2, 3), "T": (3, 1, 2, 4, 5, 8, 17, 0), "D": (4, 2, 8, 6, 16, 5, 32, 64, 10, 128)}
    flags = {
        "positions": ("index", "offset", "near_256", "hundreds", "hundred_thousand", "million", "per_sequence", "permuted",
                      "packed", "zero", "thousand", "negative"),
        "pairing": ("interleaved", "half"), "turned": ("all", "half", "two"), "base": (10000.0, 500000.0, 500.0),
        "scaled": ("none", *SCALINGS),
    }

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        if not claims.claims("long_positions") and flags["positions"] in LONG:
            flags["positions"] = "hundreds"
        if not claims.claims("negative_positions") and flags["positions"] == "negative":
            flags["positions"] = "offset"
        if not claims.claims("scaling") or dims["D"] < 4:
            flags["scaled"] = "none"
        if not claims.claims("rotary_dim") or flags["scaled"] in MAGNIFYING:
            flags["turned"] = "all"  # what a magnitude does to channels that do not turn is nobody's claim
        if dims["D"] % 2 and flags["turned"] == "all":
            dims["D"] += 1
        if flags["scaled"].startswith("longrope"):  # no position, no reason for either of the lists
            dims["B"], dims["T"] = max(1, dims["B"]), max(1, dims["T"])
        dims = _within_budget(dims)
        return Configuration(configuration.kind, dims, flags, configuration.family, configuration.layout,
                             configuration.seed)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        width = {"all": d["D"], "half": max(2, d["D"] // 4 * 2), "two": 2}[flags["turned"]]
        arguments: dict[str, Any] = {
            "x": draw_values(configuration.family, (d["B"], d["H"], d["T"], d["D"]), generator(seed, "x"), dtype),
            "positions": draw_positions(flags["positions"], d, generator(seed, "positions")),
        }
        options = {"base": flags["base"], "pairing": flags["pairing"], "scaling": scaling_named(flags["scaled"], width),
                   "rotary_dim": None if flags["turned"] == "all" else width}
        usual = {"base": 10000.0, "pairing": "interleaved", "scaling": None, "rotary_dim": None}
        arguments |= {name: value for name, value in options.items() if value != usual[name]}
        return Example(configuration, dtype, arguments, {"width": width})


def _within_budget(dims: dict[str, int]) -> dict[str, int]:
    """Fewer sequences, heads, then tokens, until one example is cheap."""
    found = dict(dims)
    for letter, least in (("B", 1), ("H", 1), ("T", 3)):
        while found["B"] * found["H"] * found["T"] * found["D"] > BUDGET and found[letter] > least:
            found[letter] -= 1
    return found
