"""How examples of paged attention are drawn: caches in shuffled blocks, partly filled last blocks, sequences of one or no token."""
from __future__ import annotations

from dataclasses import replace

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration

TOKENS = 600  # keys of all heads read in one example: more than one partition of 512, as kernels split long sequences


class PagedAttentionCases(Cases):
    """S: slots a block; T: tokens of the longest sequence; spare: blocks that no sequence uses.

    Values are as wide as keys: the contract has one shape for both caches.
    """

    kind = "paged_attention"
    dims = {
        "B": (1, 2, 3), "H": (1, 2, 4, 3, 6), "G": (1, 2, 3, 4), "D": (2, 1, 4, 3, 8, 16, 64), "Dv": (2,),
        "S": (2, 1, 3, 4, 16, 17), "T": (3, 1, 2, 4, 5, 8, 16, 17, 33, 40),
    }
    flags = {"lengths": ("mixed", "full", "ones", "empty"), "spare": (1, 0, 3), "table": ("filled", "exact"),
             "scale": (None, 0.5, 0.3)}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not claims.claims("empty"):
            dims["B"] = max(1, dims["B"])
        if not claims.claims("empty_rows") or claims.conventions["empty_row"] == "refused":
            flags["lengths"] = "mixed" if flags["lengths"] == "empty" else flags["lengths"]
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        while max(1, dims["B"]) * dims["H"] * dims["T"] > TOKENS and dims["T"] > 1:
            dims["T"] = dims["T"] // 2
        dims["G"] = max(g for g in range(1, dims["H"] + 1) if dims["H"] % g == 0 and g <= dims["G"])
        dims["Dv"] = dims["D"]
        return replace(configuration, dims=dims, flags=flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        lengths = draw_lengths(flags["lengths"], d["B"], d["T"], generator(seed, "lengths"))
        needed = -(-lengths // d["S"])  # blocks of each sequence
        width = max(1, int(needed.max()) if d["B"] else 1) + (flags["table"] == "filled")
        blocks = int(needed.sum()) + flags["spare"]
        blocks = max(1, blocks)
        order = torch.randperm(blocks, generator=generator(seed, "order"))
        table = torch.randint(0, blocks, (d["B"], width), generator=generator(seed, "unused entries"))
        start = 0
        for b, count in enumerate(needed.tolist()):
            table[b, :count] = order[start:start + count]
            start += count
        family = configuration.family
        plain = family if family in ("integers", "positive", "one_hot") else "normal"
        arguments = {
            "q": draw_values(family, (d["B"], d["H"], d["D"]), generator(seed, "q"), dtype),
            "k_cache": draw_values(family, (blocks, d["S"], d["G"], d["D"]), generator(seed, "k"), dtype),
            "v_cache": draw_values(plain, (blocks, d["S"], d["G"], d["Dv"]), generator(seed, "v"), dtype),
            "block_table": table.to(torch.int32), "lengths": lengths.to(torch.int32),
        }
        if flags["scale"] is not None:
            arguments["scale"] = flags["scale"]
        return Example(configuration, dtype, arguments)


def draw_lengths(sort: str, batch: int, longest: int, source: torch.Generator) -> torch.Tensor:
    """Tokens of each sequence: all the longest, all one, mixed, or mixed with one of no token. Any place may have the longest."""
    if sort == "full":
        return torch.full((batch,), longest)
    if sort == "ones":
        return torch.ones(batch, dtype=torch.long)
    lengths = torch.randint(1, longest + 1, (batch,), generator=source)
    if batch:
        lengths[int(torch.randint(batch, (), generator=source))] = 0 if sort == "empty" else longest
    return lengths


def contiguous(example: Example, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one sequence as they follow each other: (G,n,D), (G,n,Dv)."""
    t = torch.arange(int(example.lengths[b]))
    size = example.k_cache.shape[1]
    block = example.block_table[b].long()[t // size]
    return tuple(cache[block, t % size].transpose(0, 1) for cache in (example.k_cache, example.v_cache))  # type: ignore[return-value]


def used(example: Example) -> torch.Tensor:
    """Which slots of the caches hold a token of some sequence (blocks,S)."""
    found = torch.zeros(example.k_cache.shape[:2], dtype=torch.bool)
    size = example.k_cache.shape[1]
    for b, length in enumerate(example.lengths.tolist()):
        t = torch.arange(length)
        found[example.block_table[b].long()[t // size], t % size] = True
    return found
