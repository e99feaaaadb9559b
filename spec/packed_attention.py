"""What must hold of `packed_attention(q, k, v, cu_seqlens_q, cu_seqlens_k, *, causal, scale)`: X-PACK-1 … X-PACK-3."""
from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import Decision, equal, fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject

TOKENS = 24_000  # multiply-adds B·H·Tq·Tk·(D+Dv) of one example
SORTS = ("mixed", "equal", "ones", "long_first", "empty_keys", "no_token")


class PackedAttentionCases(Cases):
    """B sequences of at most Tq queries and Tk keys: of mixed lengths, all equal, of one token, one long among short ones, and
    with sequences that have no key, or no token at all; keys of the queries' own lengths ("self") or of others."""

    kind = "packed_attention"
    dims = {"B": (2, 3, 1, 4, 5, 0), "H": (2, 1, 4, 3), "G": (1, 2, 3, 4), "Tq": (3, 1, 2, 4, 5, 9, 17, 33),
            "Tk": (4, 3, 1, 2, 5, 8, 17, 33), "D": (2, 1, 3, 4, 8, 16, 64), "Dv": (2, 1, 3, 4, 8, 16)}
    flags = {"causal": (False, True, True), "scale": (None, 0.5, 0.3), "lengths": SORTS, "keys": ("self", "other")}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        if not claims.claims("value_width"):
            dims["Dv"] = dims["D"]
        if not claims.claims("empty"):
            dims["B"] = max(1, dims["B"])
            flags["lengths"] = "mixed" if flags["lengths"] == "no_token" else flags["lengths"]
        if not claims.claims("cross_lengths"):
            flags["keys"] = "self"
        if not claims.claims("empty_rows"):
            flags["lengths"] = "mixed" if flags["lengths"] == "empty_keys" else flags["lengths"]
            if flags["causal"]:
                flags["keys"] = "self"
        if flags["keys"] == "self":
            dims["Tk"] = dims["Tq"]
        while dims["B"] * dims["H"] * dims["Tq"] * dims["Tk"] * (dims["D"] + dims["Dv"]) > TOKENS:
            letter = max((one for one in ("H", "Tq", "D", "Dv")), key=lambda one: dims[one])
            dims[letter] = dims[letter] // 2
            dims["Tk"] = min(dims["Tk"], 2 * dims["Tq"]) if flags["keys"] == "other" else dims["Tq"]
            dims["Dv"] = dims["Dv"] if claims.claims("value_width") else dims["D"]
        dims["G"] = max(g for g in range(1, dims["H"] + 1) if dims["H"] % g == 0 and g <= max(1, dims["G"]))
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        return replace(configuration, dims=dims, flags=flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed, family = configuration.dims, configuration.flags, configuration.seed, configuration.family
        queries = draw_lengths(flags["lengths"], d["B"], d["Tq"], generator(seed, "queries"))
        keys = queries.clone()
        if flags["keys"] == "other":
            keys = draw_lengths(flags["lengths"], d["B"], d["Tk"], generator(seed, "keys"))
        if flags["lengths"] == "empty_keys" and d["B"]:
            keys[0] = 0
        plain = family if family in ("integers", "positive", "one_hot") else "normal"
        total = int(keys.sum())
        arguments: dict[str, Any] = {
            "q": draw_values(family, (int(queries.sum()), d["H"], d["D"]), generator(seed, "q"), dtype),
            "k": draw_values(family, (total, d["G"], d["D"]), generator(seed, "k"), dtype),
            "v": draw_values(plain, (total, d["G"], d["Dv"]), generator(seed, "v"), dtype),
            "cu_seqlens_q": bounds(queries), "cu_seqlens_k": bounds(keys),
        }
        if flags["scale"] is not None:
            arguments["scale"] = flags["scale"]
        if flags["causal"]:
            arguments["causal"] = True
        return Example(configuration, dtype, arguments)


def draw_lengths(sort: str, batch: int, longest: int, source: torch.Generator) -> torch.Tensor:
    """Tokens of each sequence (B,)."""
    if sort == "equal":
        return torch.full((batch,), longest)
    if sort == "ones":
        return torch.ones(batch, dtype=torch.long)
    lengths = torch.randint(1, longest + 1, (batch,), generator=source)
    if batch and sort == "long_first":
        lengths = lengths.clamp(max=2)
        lengths[0] = longest
    if batch and sort == "no_token":
        lengths[torch.randint(0, batch, (), generator=source)] = 0
    return lengths


def bounds(lengths: torch.Tensor) -> torch.Tensor:
    """The running sum of the lengths, from 0: (B + 1,) int32."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def parts(example: Example) -> list[tuple[slice, slice]]:
    """The rows of queries and of keys of each sequence."""
    q, k = (pairwise(example[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k"))
    return [(slice(*rows), slice(*columns)) for rows, columns in zip(q, k, strict=True)]


def seen(packed: Subject, rows: slice, columns: slice, causal: bool) -> torch.Tensor:
    """Which keys of its sequence each query sees (n,m)."""
    n, m = rows.stop - rows.start, columns.stop - columns.start
    shift = m - n if packed.conventions["causal_alignment"] == "bottom_right" else 0
    back = torch.arange(n)[:, None] + shift - torch.arange(m)[None, :]
    return back >= 0 if causal else torch.ones_like(back, dtype=torch.bool)


def alone(example: Example, rows: slice, columns: slice) -> Example:
    """One sequence as a batch of its own."""
    return example.but(q=example.q[rows], k=example.k[columns], v=example.v[columns],
                       cu_seqlens_q=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
                       cu_seqlens_k=torch.tensor([0, columns.stop - columns.start], dtype=torch.int32))


def changed_alone(packed: Subject, example: Example, other: Example, rows: slice | torch.Tensor) -> Decision:
    """All rows but these come out as they did, bit for bit; within the bar where rounding may depend on other rows."""
    rest = torch.ones(len(example.q), dtype=torch.bool)
    rest[rows] = False
    before, after = packed(**example), packed(**other)
    if packed.conventions["row_dependence"] == "rounding":
        return equal(Bounded(after.value[rest], before.bar[rest]), packed.exact(**example)[rest])
    return identical(after.value[rest], before.value[rest], witness=(after[rows], before[rows]))


FULL = ("mixed", "equal", "ones", "long_first")  # every sequence has a query and a key
SOME = {"B": at_least(1), "lengths": FULL}
SEVERAL = {"B": at_least(2), "lengths": ("mixed", "equal", "long_first")}
spec = Specification("packed_attention", PackedAttentionCases())
conduct = add_conduct(spec)


@spec.holds("X-PACK-1", kills=(
    "boundaries_ignored", "boundary_one_late", "keys_by_the_queries_boundaries", "lengths_of_first_sequence",
    "tail_padded_with_zero_keys", "causal_over_packed_rows", "causal_ignored", "causal_strict", "causal_from_the_other_corner",
    "last_sequence_left_out", "first_sequence_alone_causal", "scale_ignored", "previous_sequence_seen", "negated", "zeros"),
    rests_on=(conduct["form"],))
def output_is_the_formula(packed: Subject, example: Example) -> None:
    """Every query attends to the keys of its own sequence, causally within it, and to no others."""
    assert packed(**example) == packed.exact(**example)


@spec.holds("X-PACK-1", kills=("boundaries_ignored", "lengths_of_first_sequence", "previous_sequence_seen",
                               "keys_by_the_queries_boundaries"), rests_on=(conduct["form"],), given=SEVERAL)
def each_sequence_gives_what_it_gives_alone(packed: Subject, example: Example) -> None:
    """A sequence packed with others gives what it gives in a call of its own."""
    whole = packed(**example)
    for rows, columns in parts(example)[:3]:
        assert whole[rows] == packed(**alone(example, rows, columns))


@spec.holds("X-PACK-1", kills=("causal_strict", "scale_ignored", "causal_ignored"), rests_on=(conduct["form"],),
            given={"B": 1, "lengths": ("mixed", "equal")})
def one_sequence_is_plain_attention(packed: Subject, example: Example) -> None:
    """With one sequence it is attention, heads and tokens changed over."""
    q, k, v = (example[name].double().transpose(0, 1)[None] for name in "qkv")
    options = {name: example[name] for name in ("causal", "scale") if name in example}
    plain = registry.reference("attention").attention(q, k, v, **options, causal_alignment=packed.conventions["causal_alignment"])
    assert packed(**example) == plain[0].transpose(0, 1)


@spec.holds("X-PACK-1", kills=("boundaries_ignored", "previous_sequence_seen", "boundary_one_late"),
            rests_on=(conduct["form"],), given=SEVERAL)
def other_sequences_do_not_matter(packed: Subject, example: Example) -> None:
    """Other values in one sequence leave the rows of all others as they were, in every bit."""
    which = example.integer("sequence", 0, example.dims["B"] - 1)
    rows, columns = parts(example)[which]
    k, v = example.k.clone(), example.v.clone()
    k[columns], v[columns] = -k[columns] + 1, -2 * v[columns] + 1
    assert changed_alone(packed, example, example.but(k=k, v=v), rows)


@spec.holds("X-PACK-1", kills=("lengths_of_first_sequence", "last_sequence_left_out", "first_sequence_alone_causal",
                               "boundary_one_late"), rests_on=(conduct["form"],), given=SEVERAL)
def order_of_sequences_does_not_matter(packed: Subject, example: Example) -> None:
    """Sequences packed in another order give the same rows in that order."""
    order = example.permutation("sequences", example.dims["B"]).tolist()
    spans = [parts(example)[b] for b in order]
    rows = torch.cat([torch.arange(one.start, one.stop) for one, _ in spans])
    columns = torch.cat([torch.arange(one.start, one.stop) for _, one in spans])
    moved = example.but(q=example.q[rows], k=example.k[columns], v=example.v[columns],
                        cu_seqlens_q=bounds(example.cu_seqlens_q.diff()[order]),
                        cu_seqlens_k=bounds(example.cu_seqlens_k.diff()[order]))
    assert packed(**moved) == packed(**example)[rows]


@spec.holds("X-PACK-1", kills=("tail_padded_with_zero_keys", "previous_sequence_seen"), rests_on=(conduct["form"],), given=SOME)
def equal_scores_give_the_mean_of_the_sequence(packed: Subject, example: Example) -> None:
    """With q = 0 every row is the mean of the values it sees: the keys that are read can be counted."""
    out = packed(**example.but(q=torch.zeros_like(example.q)))
    times = example.dims["H"] // example.dims["G"]
    for rows, columns in parts(example):
        keep = seen(packed, rows, columns, bool(example.arguments.get("causal"))).double()
        some = keep.any(-1)
        mean = torch.einsum("nm,mgd->ngd", keep, example.v[columns].double()) / keep.sum(-1).clamp(min=1)[:, None, None]
        assert out[rows][some] == mean.repeat_interleave(times, 1)[some]


@spec.holds("X-PACK-1", kills=("causal_ignored", "first_sequence_alone_causal"), rests_on=(conduct["form"],), needs=("causal",),
            given={"B": at_least(1), "lengths": ("equal", "mixed", "long_first"), "causal": True, "keys": "self",
                   "Tq": (2, 3, 5, 9, 17)})
def later_tokens_do_not_matter(packed: Subject, example: Example) -> None:
    """With causal attention, another last token in each sequence leaves all earlier rows as they were, in every bit."""
    last = example.cu_seqlens_q[1:].long() - 1
    k, v = example.k.clone(), example.v.clone()
    k[last], v[last] = -k[last] + 1, -2 * v[last] + 1
    assert changed_alone(packed, example, example.but(k=k, v=v), last)


@spec.holds("X-PACK-2", kills=("sequence_after_an_empty_one_shifted", "empty_sequence_takes_a_token"), rests_on=(conduct["form"],),
            needs=("empty",), given=SOME)
def sequences_of_no_token_change_nothing(packed: Subject, example: Example) -> None:
    """A boundary that stands twice, for a sequence of no token, changes no row."""
    place = example.integer("place", 0, example.dims["B"])
    twice = [*range(place + 1), *range(place, example.dims["B"] + 1)]
    more = example.but(cu_seqlens_q=example.cu_seqlens_q[twice], cu_seqlens_k=example.cu_seqlens_k[twice])
    assert packed(**more) == packed(**example)


@spec.holds("X-PACK-2", kills=("empty_row_nan", "empty_row_mean"), rests_on=(conduct["form"],), needs=("empty_rows",),
            given={"B": at_least(2), "lengths": "empty_keys"})
def queries_without_keys_give_zeros(packed: Subject, example: Example) -> None:
    """Queries of a sequence without keys give zeros, and no NaN."""
    rows, _ = parts(example)[0]
    out = packed(**example).value
    assert identical(out[rows], 0.0, witness=bool((out[rows.stop:] != 0).any()))


@spec.holds("X-PACK-1", kills=("grouped_heads_tiled",), rests_on=(conduct["form"],), needs=("gqa",),
            given={**SOME, "H": 4, "G": 2})
def grouped_heads_share_keys_in_blocks(packed: Subject, example: Example) -> None:
    """Grouped heads give what every query head gives with a copy of its group's key and value head, in blocks, not tiled."""
    times = example.dims["H"] // example.dims["G"]
    repeated = example.but(k=example.k.repeat_interleave(times, 1), v=example.v.repeat_interleave(times, 1))
    assert packed(**example) == packed.exact(**repeated)


@spec.holds("X-PACK-3", kills=("gradient_of_keys_negated", "gradient_crosses_boundaries", "gradient_of_last_sequence_dropped",
                               "upstream_taken_for_ones", "grouped_key_gradient_not_summed", "gradient_always_causal"),
            rests_on=(output_is_the_formula,), gradient=True)
def gradients_are_the_formula(packed: Subject, example: Example) -> None:
    """Gradients of queries, keys and values are those of each sequence."""
    found, exact = packed.gradients(**example), packed.exact_gradients(**example)
    for name in ("v", "q", "k"):
        assert found[name] == exact[name]


@spec.holds("X-PACK-3", kills=("gradient_crosses_boundaries", "upstream_taken_for_ones"), rests_on=(gradients_are_the_formula,),
            gradient=True, given=SEVERAL)
def no_gradient_crosses_a_boundary(packed: Subject, example: Example) -> None:
    """An upstream gradient in one sequence alone gives the others gradients of exactly zero."""
    which = example.integer("sequence", 0, example.dims["B"] - 1)
    rows, columns = parts(example)[which]
    up = packed.upstream(**example)[0]
    inside = torch.zeros(up.shape[0], dtype=torch.bool)
    inside[rows] = True
    found = packed.gradients(**example, upstream=(up * inside[:, None, None],))
    own = {"q": rows, "k": columns, "v": columns}
    for name, gradient in found.items():
        others = torch.ones(gradient.shape[0], dtype=torch.bool)
        others[own[name]] = False
        fact(bool((gradient.value[others] == 0).all()), f"a gradient of {name} crosses into another sequence",
             check=f"gradient of {name}", decided=bool((gradient.value[own[name]] != 0).any()))
