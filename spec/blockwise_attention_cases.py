"""How examples of blockwise attention are drawn: tiles of one, tiles that do not divide the lengths, tiles wider than them."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, generator
from assay.contract.declaration import Declaration
from assay.spec.attention_cases import EMPTYING_MASKS, draw_mask, draw_operands, within_budget

TILES = 6  # tiles of one example: the formula under the bound engine goes through them one by one
BLOCKS = (2, 1, 3, 4, 8, 16, 32, 64, 128)


class BlockwiseAttentionCases(Cases):
    """The letters of attention, and the two block sizes."""

    kind = "blockwise_attention"
    dims = {
        "B": (1, 2, 0), "H": (1, 2, 4, 3, 6), "G": (1, 2, 3, 4), "Tq": (3, 1, 2, 4, 5, 8, 7, 16, 17, 33, 65, 0),
        "Tk": (3, 2, 1, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65, 129, 0), "D": (2, 1, 3, 4, 8, 16, 64), "Dv": (2, 1, 3, 4, 8, 5),
    }
    flags = {
        "block_q": BLOCKS, "block_k": BLOCKS, "causal": (False, True),
        "mask": ("none", "shared", "padding", "full", "padding_left", "empty_rows"), "scale": (None, 0.5, 0.3),
    }

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        if not claims.claims("value_width"):
            dims["Dv"] = dims["D"]
        if not claims.claims("cross_lengths"):
            dims["Tq"] = dims["Tk"]
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        dims = within_budget(dims, claims)
        for name in ("block_q", "block_k"):
            if not claims.allows(name, flags[name]):
                flags[name] = sorted(claims.limits[name])[0]
        if not claims.claims("empty_rows") or claims.conventions["empty_row"] == "refused":
            dims, flags = _without_empty_rows(dims, flags)
        return _few_tiles(configuration.but(**dims, **flags), claims)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        arguments: dict[str, Any] = {
            **draw_operands(configuration, dtype),
            "block_q": flags["block_q"], "block_k": flags["block_k"],
        }
        options = {"mask": draw_mask(flags["mask"], d, generator(seed, "mask")), "scale": flags["scale"]}
        arguments |= {name: value for name, value in options.items() if value is not None}
        if flags["causal"]:
            arguments["causal"] = True
        return Example(configuration, dtype, arguments)


def _without_empty_rows(dims: dict[str, int], flags: dict[str, Any]) -> tuple[dict[str, int], dict[str, Any]]:
    """Every query keeps a key."""
    dims, flags = {**dims, "Tk": max(1, dims["Tk"])}, dict(flags)
    if flags["mask"] in EMPTYING_MASKS:
        flags["mask"] = "padding"
    if flags["causal"] or flags["mask"] in ("shared", "full"):  # a query beyond the keys has no aligned one, which the mask keeps
        dims["Tq"] = min(dims["Tq"], dims["Tk"])
    return dims, flags


def _few_tiles(configuration: Configuration, claims: Declaration) -> Configuration:
    """Wider tiles where there would be too many, the larger number of them first."""
    found, d = configuration, configuration.dims
    while True:
        count = {name: -(-d[letter] // found.flags[name]) for name, letter in (("block_q", "Tq"), ("block_k", "Tk"))}
        if count["block_q"] * count["block_k"] <= TILES:
            return found
        for name in sorted(count, key=lambda name: -count[name]):
            wider = next((one for one in sorted(BLOCKS) if one > found.flags[name] and claims.allows(name, one)), None)
            if wider is not None:
                found = found.but(**{name: wider})
                break
        else:
            return found
