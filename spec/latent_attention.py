"""What must hold of `latent_attention(x, w_q, w_kv_a, w_kv_norm, w_kv_b, w_o, *, num_heads, …)`: X-MLA-1 … X-MLA-4."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import fact
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.conduct import add_conduct, nothing_upstream
from assay.spec.qk_norm_attention import EPS, draw_positions
from assay.subject import Subject


class LatentAttentionCases(Cases):
    """D channels of a head that are not turned, R that are, Dv of its values; latents narrower and wider than the tokens; queries
    from the tokens or from a latent of their own."""

    kind = "latent_attention"
    budget = 12_000  # multiply-adds of one example, about
    dims = {"B": (2, 1, 3, 0), "T": (3, 1, 2, 5, 8, 9), "C": (6, 4, 3, 8, 16), "H": (2, 1, 4, 3), "D": (4, 2, 3, 1, 8),
            "R": (2, 4, 8), "Dv": (3, 4, 2, 1, 8), "Lk": (5, 4, 2, 8, 3), "Lq": (4, 3, 2, 6)}
    flags = {"queries": ("plain", "compressed"), "positions": ("index", "none", "offset", "batch"), "causal": (False, True, True),
             "pairing": ("interleaved", "half"), "eps": EPS, "base": (10000.0, 100.0), "scale": (None, 0.5, None, 0.3)}
    families = ("integers", "normal", "positive", "small", "one_hot")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if "eps" not in claims.keywords:
            flags["eps"] = claims.conventions.get("eps", 1e-6)  # what the call has by default
        if not (claims.claims("w_q_a") and claims.claims("w_q_norm")):
            flags["queries"] = "plain"
        if not claims.claims("positions"):
            flags["positions"] = "none"
        if not claims.claims("empty"):
            dims["B"] = max(1, dims["B"])
        token = dims["H"] * (dims["D"] + dims["R"] + dims["Dv"]) * (dims["C"] + dims["Lk"] + dims["T"])
        while token * dims["B"] * dims["T"] > self.budget and dims["T"] > 2:
            dims["T"] //= 2
        return replace(configuration, dims=dims, flags=flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        shapes = {"w_q": (d["H"] * (d["D"] + d["R"]), d["C"]), "w_kv_a": (d["Lk"] + d["R"], d["C"]), "w_kv_norm": (d["Lk"],),
                  "w_kv_b": (d["H"] * (d["D"] + d["Dv"]), d["Lk"]), "w_o": (d["C"], d["H"] * d["Dv"])}
        if flags["queries"] == "compressed":
            shapes |= {"w_q": (shapes["w_q"][0], d["Lq"]), "w_q_a": (d["Lq"], d["C"]), "w_q_norm": (d["Lq"],)}
        arguments: dict[str, Any] = {
            "x": draw_values(configuration.family, (d["B"], d["T"], d["C"]), generator(seed, "x"), dtype),
            **{name: draw_weight(shape, generator(seed, name), dtype) for name, shape in shapes.items()}, "num_heads": d["H"],
        }
        if flags["positions"] != "none":
            arguments["positions"] = draw_positions(flags["positions"], d["B"], d["T"], generator(seed, "positions"))
        for name, usual in (("pairing", "interleaved"), ("base", 10000.0), ("scale", None), ("eps", 1e-6), ("causal", False)):
            if flags[name] != usual:
                arguments[name] = flags[name]
        return Example(configuration, dtype, arguments)


def draw_weight(shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Normal, those of a matrix over the power of two next to the root of its inputs, so that sizes stay."""
    drawn = draw_values("normal", shape, source, dtype)
    return drawn if len(shape) == 1 else drawn * 2.0 ** -round(math.log2(shape[-1]) / 2)


def option(attention: Subject, example: Example, name: str, usual: Any) -> Any:
    """What an option is in this call."""
    return example.arguments.get(name, attention.conventions.get(name, usual))


def blocks(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of each head (H,rows,inputs)."""
    return weight.reshape(heads, -1, weight.shape[-1])


def split(weight: torch.Tensor, example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """A head's first D rows and the rest, of w_q or w_kv_b (H,…,inputs)."""
    rows = blocks(weight, example.dims["H"])
    return rows[:, : example.dims["D"]], rows[:, example.dims["D"]:]


def together(*parts: torch.Tensor) -> torch.Tensor:
    """The inverse."""
    return torch.cat(parts, 1).flatten(0, 1)


SOME: dict[str, Any] = {"B": at_least(1), "T": at_least(2)}
TURNED: dict[str, Any] = {**SOME, "positions": ("index", "offset", "batch")}
TELLING = {"family": ("integers", "normal", "positive")}
spec = Specification("latent_attention", LatentAttentionCases())
conduct = add_conduct(spec)


@spec.holds("X-MLA-1", kills=(
    "latent_not_normalised", "latent_weight_ignored", "values_of_the_raw_latent", "keys_of_the_raw_latent",
    "root_over_latent_and_key", "rotary_key_normalised", "latent_centred", "eps_outside_the_root", "eps_fixed", "rotary_rows_first",
    "query_latent_not_normalised", "query_norm_weight_ignored", "query_norm_of_another_eps", "values_before_keys",
    "key_rows_of_all_heads_first", "query_rotary_rows_first", "expansion_transposed", "output_transposed", "first_heads_expansion",
    "positions_ignored", "key_not_turned", "query_not_turned", "key_turned_backwards", "key_turned_twice", "unturned_part_turned",
    "base_ignored", "pairing_exchanged", "pairing_of_the_key_exchanged",
    "frequencies_of_the_whole_head", "rotary_key_of_first_head", "rotary_key_of_first_sample", "rotary_key_shared_out",
    "rotary_part_left_out", "scale_of_the_unturned_part", "scale_of_the_values", "scale_of_the_latent", "parts_scaled_apart",
    "unscaled", "scale_ignored", "causal_ignored", "causal_sees_next", "always_causal", "negated", "zeros"),
    rests_on=(conduct["form"],))
def output_is_the_formula(attention: Subject, example: Example) -> None:
    """Every token gets the mean of values that are expanded from normalised latents, by scores of two parts, projected back."""
    assert attention(**example) == attention.exact(**example)


@spec.holds("X-MLA-3", kills=("latent_not_normalised", "values_of_the_raw_latent", "keys_of_the_raw_latent",
                              "root_over_latent_and_key", "eps_outside_the_root", "query_norm_of_another_eps"),
            rests_on=(conduct["form"],), needs=("eps",), examples=5, given={**SOME, **TELLING, "eps": (0.5, 1e-3)})
def lengths_of_latents_do_not_matter(attention: Subject, example: Example) -> None:
    """Rows that make latents four times as large, and eps sixteen times, give the same; the rotary key's rows stay as they are."""
    kept = example.dims["Lk"]
    if not attention.declaration.allows("eps", 16 * example.eps):
        fact(True, "", decided=False, check="eps may be chosen")
        return
    changes = {"w_kv_a": torch.cat([4 * example.w_kv_a[:kept], example.w_kv_a[kept:]]), "eps": 16 * example.eps}
    changes |= {"w_q_a": 4 * example.w_q_a} if "w_q_a" in example else {}
    assert attention(**example.but(**changes)) == attention.exact(**example)


@spec.holds("X-MLA-3", kills=("latent_weight_ignored",), rests_on=(conduct["form"],), examples=5, given={**SOME, **TELLING})
def norm_and_expansion_trade_a_factor(attention: Subject, example: Example) -> None:
    """Norm weights twice as large before an expansion half as large give the same, for the latent and for that of the queries."""
    changes = {"w_kv_norm": 2 * example.w_kv_norm, "w_kv_b": example.w_kv_b / 2}
    changes |= {"w_q_norm": 2 * example.w_q_norm, "w_q": example.w_q / 2} if "w_q_a" in example else {}
    assert attention(**example.but(**changes)) == attention.exact(**example)


@spec.holds("X-MLA-2", kills=("unturned_part_turned",), rests_on=(conduct["form"],), needs=("positions",), examples=5,
            given={**TURNED, **TELLING, "D": (4, 2, 8)})
def without_the_rotary_part_positions_do_not_matter(attention: Subject, example: Example) -> None:
    """Where the queries' rotary rows are zero the output is that of any other positions."""
    own, rotary = split(example.w_q, example)
    flat = example.but(w_q=together(own, 0 * rotary))
    assert attention(**flat) == attention.exact(**flat.without("positions", "pairing", "base"))


@spec.holds("X-MLA-2", kills=("key_not_turned", "query_not_turned", "key_turned_backwards", "key_turned_twice",
                              "positions_taken_for_the_index"),
            rests_on=(conduct["form"],), needs=("positions",), examples=5, given={**TURNED, **TELLING})
def only_distances_of_positions_matter(attention: Subject, example: Example) -> None:
    """Five added to every position changes nothing."""
    assert attention(**example.but(positions=example.positions + 5)) == attention.exact(**example)


@spec.holds("X-MLA-2", kills=("pairing_exchanged", "pairing_of_the_key_exchanged"), rests_on=(output_is_the_formula,),
            needs=("positions", "pairing"), examples=5, given={**TURNED, **TELLING, "R": (4, 8)})
def pairings_differ_by_the_order_of_rows(attention: Subject, example: Example) -> None:
    """Rotary rows of queries and shared key in the other pairing's order, under the other pairing, give the same."""
    width, kept = example.dims["R"], example.dims["Lk"]
    spread = torch.arange(width).reshape(width // 2, 2).mT.reshape(-1)  # row of "half" i: where it lies interleaved
    usual = option(attention, example, "pairing", "interleaved")
    order = spread if usual == "interleaved" else torch.argsort(spread)
    own, rotary = split(example.w_q, example)
    moved = example.but(w_q=together(own, rotary[:, order]), pairing="half" if usual == "interleaved" else "interleaved",
                        w_kv_a=torch.cat([example.w_kv_a[:kept], example.w_kv_a[kept:][order]]))
    if attention.declaration.allows("pairing", moved.pairing):
        assert attention(**moved) == attention.exact(**example)
    else:
        fact(True, "", decided=False, check="the pairing may be chosen")


@spec.holds("X-MLA-1", kills=("rotary_key_of_first_head", "key_rows_of_all_heads_first", "first_heads_expansion",
                              "expansion_transposed", "output_transposed"),
            rests_on=(conduct["form"],), examples=5,
            given={**SOME, **TELLING, "H": (2, 4, 3), "D": (4, 2, 3, 8), "Dv": (3, 2, 4, 8)})
def order_of_heads_does_not_matter(attention: Subject, example: Example) -> None:
    """Heads in another order, in queries, expansion and output projection alike, give the same: the rotary key is everyone's."""
    heads = example.dims["H"]
    order = example.permutation("heads", heads).roll(1)
    columns = example.w_o.reshape(example.w_o.shape[0], heads, -1)[:, order].flatten(1)
    moved = example.but(w_q=blocks(example.w_q, heads)[order].flatten(0, 1), w_o=columns,
                        w_kv_b=blocks(example.w_kv_b, heads)[order].flatten(0, 1))
    assert attention(**moved) == attention.exact(**example)


@spec.holds("X-MLA-1", kills=("scale_of_the_unturned_part", "scale_of_the_values", "scale_of_the_latent", "parts_scaled_apart",
                              "unscaled"),
            rests_on=(conduct["form"],), needs=("scale",), examples=5, given={**SOME, **TELLING, "scale": None})
def the_scale_counts_both_parts(attention: Subject, example: Example) -> None:
    """Without a given scale it is one over the root of both parts' widths together."""
    width = example.dims["D"] + example.dims["R"]
    assert attention(**example) == attention.exact(**example.but(scale=width**-0.5))


@spec.holds("X-MLA-1", kills=("values_of_the_raw_latent", "values_before_keys", "latent_weight_ignored", "latent_centred"),
            rests_on=(conduct["form"],), examples=5, given={**SOME, **TELLING})
def queries_of_zero_give_the_mean_of_the_values(attention: Subject, example: Example) -> None:
    """With w_q of zeros every token gets the mean of the values that it sees: those of normalised latents."""
    flat = example.but(w_q=0 * example.w_q)
    length, (_, values) = example.x.shape[1], split(example.w_kv_b.double(), example)
    raw = example.x.double() @ example.w_kv_a[: example.dims["Lk"]].double().mT
    eps = option(attention, example, "eps", 1e-6)
    latent = raw / torch.sqrt(raw.square().mean(-1, keepdim=True) + eps) * example.w_kv_norm.double()
    see = torch.ones(length, length, dtype=torch.float64)
    see = see.tril() if example.arguments.get("causal") else see
    mean = (see / see.sum(-1, keepdim=True)) @ (latent[:, None] @ values.mT)
    assert attention(**flat) == mean.transpose(1, 2).flatten(2) @ example.w_o.double().mT


@spec.holds("X-MLA-1", kills=("causal_ignored", "causal_sees_next"), rests_on=(output_is_the_formula,),
            needs=("causal",), examples=5, given={**SOME, **TELLING, "causal": True})
def later_tokens_do_not_matter(attention: Subject, example: Example) -> None:
    """With causal, another last token leaves all earlier ones within the bound of what they were."""
    x = example.x.clone()
    x[:, -1] = -2 * x[:, -1] + 1
    before = attention(**example)
    after = Bounded(attention.values(**example.but(x=x))[:, :-1], before.bar[:, :-1])
    assert after == attention.exact(**example)[:, :-1]


@spec.holds("X-MLA-1", kills=("always_causal",), rests_on=(conduct["form"],), examples=5,
            given={**SOME, **TELLING, "causal": False, "positions": "none"})
def without_positions_order_does_not_matter(attention: Subject, example: Example) -> None:
    """Neither causal nor turned, tokens in another order give the same outputs in that order."""
    order = example.permutation("tokens", example.x.shape[1]).roll(1)
    assert attention(**example.but(x=example.x[:, order])) == attention.exact(**example)[:, order]


# ------------------------------------------------------------------------------------------------ gradients
@spec.holds("X-MLA-4", kills=("query_input_detached", "values_detached", "rotary_key_detached", "root_detached",
                              "upstream_taken_for_ones"),
            gradient=True, rests_on=(output_is_the_formula,), given=SOME)
def gradient_of_tokens_is_the_formula(attention: Subject, example: Example) -> None:
    """The gradient of the tokens sums what comes through queries, latents and rotary keys."""
    assert attention.gradients(**example, wrt=("x",))["x"] == attention.exact_gradients(**example, wrt=("x",))["x"]


@spec.holds("X-MLA-4", kills=("norm_weight_detached", "root_detached", "rotary_key_gradient_of_one_head", "values_detached",
                              "rotary_key_detached", "rotary_gradient_not_turned_back", "expansion_gradient_of_keys_alone",
                              "weight_gradient_of_one_sample", "upstream_taken_for_ones"),
            gradient=True, rests_on=(output_is_the_formula,), given=SOME)
def gradients_of_compression_and_expansion_are_the_formula(attention: Subject, example: Example) -> None:
    """Gradients of compression, norm and expansion sum over keys and values of all heads, tokens and samples."""
    names = ("w_kv_norm", "w_kv_b", "w_kv_a")
    found, exact = attention.gradients(**example, wrt=names), attention.exact_gradients(**example, wrt=names)
    for name in names:
        assert found[name] == exact[name]


@spec.holds("X-MLA-4", kills=("weight_gradient_of_one_sample", "upstream_taken_for_ones"), gradient=True,
            rests_on=(output_is_the_formula,), given=SOME)
def gradients_of_queries_and_output_are_the_formula(attention: Subject, example: Example) -> None:
    """Gradients of the projections of queries and of the output are those of the formula."""
    found, exact = (ask(**example, wrt=("w_o", "w_q")) for ask in (attention.gradients, attention.exact_gradients))
    for name in ("w_o", "w_q"):
        assert found[name] == exact[name]


@spec.holds("X-MLA-4", kills=("query_norm_weight_detached", "query_root_detached"), gradient=True, needs=("w_q_a", "w_q_norm"),
            rests_on=(output_is_the_formula,), examples=8, given={**SOME, **TELLING, "queries": "compressed", "Lq": (4, 3, 6)})
def gradients_of_the_queries_latent_are_the_formula(attention: Subject, example: Example) -> None:
    """Gradients of the queries' compression and of its norm come through that norm."""
    names = ("w_q_norm", "w_q_a")
    found, exact = attention.gradients(**example, wrt=names), attention.exact_gradients(**example, wrt=names)
    for name in names:
        assert found[name] == exact[name]


@spec.holds("X-MLA-4", kills=("upstream_taken_for_ones",), rests_on=(conduct["form"],), gradient=True, examples=5, given=SOME)
def no_upstream_gradient_gives_none(attention: Subject, example: Example) -> None:
    """An upstream gradient of zeros gives gradients of exactly zero."""
    nothing_upstream(attention, example)
