"""What must hold of paged attention: PAG-1, GQA-3, GQA-6 and what it shares with attention."""
from __future__ import annotations

import torch

from assay.cases import Example, at_least
from assay.errors import NotExercisedError
from assay.ledger import equal, fact, identical
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.paged_attention_cases import PagedAttentionCases, contiguous, used
from assay.subject import Subject

spec = Specification("paged_attention", PagedAttentionCases())
conduct = add_conduct(spec, shown_by="output_is_attention_over_the_blocks")


SOME = {"B": at_least(1), "lengths": ("mixed", "full", "ones")}


def same_bits(subject: Subject, before: Example, after: Example, *, witness: bool) -> None:
    """Equal bit for bit; within the bar where rounding may depend on other rows."""
    first, second = subject(**before), subject.values(**after)
    if subject.conventions["row_dependence"] == "rounding":
        equal(Bounded(second, first.bar), subject.exact(**before))
    else:
        identical(first.value, second, witness=witness)


@spec.holds("PAG-1", "ATT-1", kills=(
    "table_ignored", "tail_of_block_unmasked", "whole_table_read", "table_of_first_sequence", "length_of_first_sequence",
    "length_of_last_sequence", "length_of_longest", "newest_token_not_read", "one_token_too_many", "last_block_not_read",
    "block_size_fixed", "slot_and_block_swapped", "table_wraps", "values_by_other_table", "grouped_heads_tiled",
    "grouped_heads_read_first", "scale_ignored", "scale_one_over_d", "repeats_differ", "negated", "zeros"),
    rests_on=(conduct["form"],))
def output_is_attention_over_the_blocks(paged: Subject, example: Example) -> None:
    """Every sequence attends to exactly its `length` tokens, found through its row of the block table."""
    assert paged(**example) == paged.exact(**example)


@spec.holds("PAG-1", kills=("table_ignored", "slot_and_block_swapped", "block_size_fixed", "table_wraps"),
            rests_on=(conduct["form"],), given=SOME)
def equals_attention_over_the_contiguous_cache(paged: Subject, example: Example) -> None:
    """A cache in blocks of any size gives what one block that holds the whole sequence gives."""
    for b in range(example.dims["B"]):
        if int(example.lengths[b]) == 0:
            continue
        k, v = (one.transpose(0, 1)[None] for one in contiguous(example, b))  # (1,n,G,width): one block
        alone = example.but(q=example.q[b:b + 1], k_cache=k, v_cache=v, block_table=torch.zeros(1, 1, dtype=torch.int32),
                            lengths=example.lengths[b:b + 1])
        assert paged(**example)[b:b + 1] == paged(**alone)


@spec.holds("PAG-1", kills=("table_ignored", "table_remembered"), rests_on=(conduct["form"],), given=SOME)
def place_of_blocks_does_not_matter(paged: Subject, example: Example) -> None:
    """Moving the blocks to other places, and the table with them, changes nothing."""
    order = example.permutation("blocks", example.k_cache.shape[0])
    place = torch.argsort(order).to(torch.int32)  # where each block went
    moved = example.but(k_cache=example.k_cache[order], v_cache=example.v_cache[order],
                        block_table=place[example.block_table.long()])
    assert paged(**moved) == paged(**example)


@spec.holds("PAG-1", kills=("tail_of_block_unmasked", "one_token_too_many", "whole_table_read"),
            rests_on=(conduct["form"],), given={"B": at_least(1)})
def what_no_sequence_holds_does_not_matter(paged: Subject, example: Example) -> None:
    """Freed blocks, and the tail of a last block beyond the length, can hold any finite content: no output changes, bit for bit."""
    hidden = ~used(example)[..., None, None]
    other = {name: example.values(f"garbage {name}", *example[name].shape, family="normal") * 8 for name in ("k_cache", "v_cache")}
    changed = example.but(**{name: torch.where(hidden, value, example[name]) for name, value in other.items()})
    elsewhere = paged.exact(**example.but(v_cache=other["v_cache"])).value
    same_bits(paged, example, changed,
              witness=bool(hidden.any()) and bool((elsewhere != paged.exact(**example).value).any()))


@spec.holds("PAG-1", kills=("whole_table_read",), rests_on=(conduct["form"],), given={**SOME, "table": "filled"})
def unused_table_entries_do_not_matter(paged: Subject, example: Example) -> None:
    """Entries of the table beyond a sequence's last block can name any block: no output changes, bit for bit."""
    blocks, size = example.k_cache.shape[:2]
    needed = -(-example.lengths.long() // size)
    unused = torch.arange(example.block_table.shape[1]) >= needed[:, None]
    table = torch.where(unused, (example.block_table + 1) % blocks, example.block_table).to(torch.int32)
    same_bits(paged, example, example.but(block_table=table), witness=bool(unused.any()) and blocks > 1)


@spec.holds("PAG-1", kills=("length_of_first_sequence", "table_of_first_sequence", "length_of_longest",
                            "values_by_other_table"), rests_on=(conduct["form"],), given={**SOME, "B": at_least(2)})
def each_sequence_is_on_its_own(paged: Subject, example: Example) -> None:
    """A batch gives what each sequence gives alone."""
    whole = paged(**example)
    for b in range(example.dims["B"]):
        alone = example.but(q=example.q[b:b + 1], block_table=example.block_table[b:b + 1], lengths=example.lengths[b:b + 1])
        assert whole[b:b + 1] == paged(**alone)


@spec.holds("PAG-1", "ATT-2", kills=("tail_of_block_unmasked", "one_token_too_many"), rests_on=(conduct["form"],), given=SOME)
def constant_values_come_back(paged: Subject, example: Example) -> None:
    """When every token of the sequences holds one value row and all other slots another, every head gets the first: weights
    sum to 1 and none lies outside."""
    inside = used(example)[..., None, None]
    row = (torch.arange(example.dims["Dv"]) % 5 + 1).to(example.dtype)
    v = torch.where(inside, row, -100 * row).expand(example.v_cache.shape).clone()
    assert paged(**example.but(v_cache=v)) == row.double()


@spec.holds("PAG-1", "ATT-2", kills=("newest_token_not_read", "last_block_not_read", "table_wraps"),
            rests_on=(conduct["form"],), given=SOME)
def equal_scores_give_the_mean_of_the_tokens(paged: Subject, example: Example) -> None:
    """With q = 0 every output is the mean of the sequence's values: the tokens that are read can be counted."""
    out = paged(**example.but(q=torch.zeros_like(example.q)))
    times = example.dims["H"] // example.dims["G"]
    for b in range(example.dims["B"]):
        mean = contiguous(example, b)[1].double().sum(1) / int(example.lengths[b])
        assert out[b] == mean.repeat_interleave(times, 0)


@spec.holds("ATT-1", kills=("no_shift",), rests_on=(output_is_attention_over_the_blocks,),
            given={**SOME, "D": (1, 4, 16, 64), "scale": None})
def large_scores_neither_overflow_nor_give_nan(paged: Subject, example: Example) -> None:
    """Scores of ±256 and a little more, where exp alone would overflow or vanish, give the softmax of their differences."""
    steps = torch.randint(0, 3, example.k_cache.shape[:-1], generator=example.generator("steps"))
    for sign in (1.0, -1.0):
        q, k = torch.zeros_like(example.q), torch.zeros_like(example.k_cache)
        q[..., 0] = sign * 16 * example.dims["D"] ** 0.5
        k[..., 0] = (16 + steps / 8).to(example.dtype)
        large = example.but(q=q, k_cache=k)
        assert paged(**large) == paged.exact(**large)


@spec.holds("MSK-9", "PAG-1", kills=("empty_sequence_nan",), rests_on=(conduct["form"],), needs=("empty_rows",),
            given={"B": at_least(2), "lengths": "empty"}, conventions={"empty_row": ("zeros", "nan_row")})
def sequence_without_tokens_has_the_declared_outcome(paged: Subject, example: Example) -> None:
    """A sequence of length 0 gives the declared outcome (zeros, or NaN), and no other sequence is touched."""
    out, want = paged(**example), paged.exact(**example)
    empty = example.lengths == 0
    assert identical(out.value[empty], want.value[empty], witness=bool((out.value[~empty] != 0).any()))
    assert out[~empty] == want[~empty]


@spec.holds("GQA-1", "GQA-2", "GQA-3", kills=("grouped_heads_tiled", "grouped_heads_read_first"), rests_on=(conduct["form"],),
            needs=("gqa",), given={**SOME, "H": (2, 4, 3, 6), "G": (1, 2, 3)})
def grouped_cache_is_smaller_by_heads_over_groups(paged: Subject, example: Example) -> None:
    """A cache of G heads, H/G times smaller than one of H, gives what the larger one with its heads repeated in blocks gives."""
    times = example.dims["H"] // example.dims["G"]
    k, v = (example[name].repeat_interleave(times, 2) for name in ("k_cache", "v_cache"))
    repeated = example.but(k_cache=k, v_cache=v)
    fact(example.k_cache.nbytes * times == k.nbytes, "the cache is not smaller by H/G", decided=False)
    assert paged(**example) == paged.exact(**repeated)


@spec.holds("GQA-6", "ATT-11", kills=("products_by_every_head",), rests_on=(output_is_attention_over_the_blocks,), examples=0,
            given={"B": 2, "H": 8, "G": (1, 2, 4, 8), "D": 64, "Dv": 64, "S": 16, "T": 16, "lengths": "full", "spare": 0,
                   "table": "exact", "scale": None, "family": "normal", "layout": "contiguous"})
def sharing_a_cache_saves_bytes_and_no_products(paged: Subject, example: Example) -> None:
    """Multiply-adds are Σ length·H·(D+Dv), however many heads share a key/value head (at most twice that: scores may be
    recomputed), while the cache shrinks by H/G."""
    d = example.dims
    needed = int(example.lengths.sum()) * d["H"] * (d["D"] + d["Dv"])
    counted = paged.counts(**example)["multiply_adds"]
    if counted < needed:
        raise NotExercisedError("part of the products is out of the counter's sight: declare cost=")
    fact(counted <= 2 * needed, f"{counted} multiply-adds", got=str(counted), expected=f"{needed}, at most twice that",
         check="multiply-adds")
