"""Kinds: the components that have one fixed call, as data. The table is the contract's, to the letter; what lies beyond it comes
last, in a group of its own."""
from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from assay.errors import UsageError


class _Required:
    """The mark of an option without a default."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()

FEATURES: Final[tuple[str, ...]] = (
    "mask", "bias", "causal", "window", "two_sided_window", "negative_positions", "scale", "negative_scale", "softcap", "gqa",
    "empty_rows", "value_width", "cross_lengths", "gradients", "half_precision", "strided", "padding", "left_padding",
    "cache", "chunks", "beams", "empty", "long_positions", "loss", "saving", "kernels", "parts", "refused_ids", "places",
)
OFFERS: Final[tuple[str, ...]] = ("two_sided_window", "negative_positions", "negative_scale", "loss", "saving", "kernels", "parts")

_EVERYWHERE = frozenset({"half_precision", "strided", "empty"})


@dataclass(frozen=True)
class Kind:
    """One component with one fixed call.

    arguments: required, in order. options: keyword-only, name -> default (`REQUIRED` where there is none).
    differentiable: arguments whose gradients are asked for: the data, and weights.
    features: those of FEATURES that make sense. conventions: names of those that bear on it. outputs: names, in order.
    widenable: outputs that may come back in float32 for half-precision input.
    may_alias: results may share memory with inputs.
    factory: the declared callable makes the object that is tested.
    """

    name: str
    summary: str
    arguments: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    differentiable: tuple[str, ...] = ()
    features: frozenset[str] = _EVERYWHERE
    conventions: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("out",)
    widenable: tuple[str, ...] = ()
    may_alias: bool = False
    factory: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """All argument names of the call, required ones first."""
        return (*self.arguments, *self.options)

    @property
    def required_options(self) -> tuple[str, ...]:
        """Keyword-only arguments without a default."""
        return tuple(name for name, default in self.options.items() if default is REQUIRED)

    def call(self) -> str:
        """The call as one reads it in the contract: `(x, *, dim=-1)`."""
        shown = [n if d is REQUIRED else f"{n}={d!r}" for n, d in self.options.items()]
        return "(" + ", ".join([*self.arguments, *(["*", *shown] if shown else [])]) + ")"


_ROWS = "repeatability row_dependence"
_KEYS = f"causal_alignment empty_row nan_behind_mask {_ROWS}"
_LOSS = f"smoothing all_ignored {_ROWS}"
_EXPERTS = f"router capacity {_ROWS}"
_LAYER: Mapping[str, Any] = {
    "num_heads": REQUIRED, "num_kv_heads": None, "placement": "pre", "norm": "rms", "ffn": "swiglu",
    "activation": "silu", "positions": None, "dropout": 0.0, "training": False, "seed": 0, "eps": 1e-6, "top_k": None,
}


def _kind(name: str, summary: str, arguments: str, options: Mapping[str, Any] | None = None, *, wrt: str = "",
          features: str = "", conventions: str = _ROWS, outputs: str = "out", widenable: str = "",
          may_alias: bool = False, factory: bool = False) -> Kind:
    """Spell a kind with names separated by spaces; gradients and the features of every kind are added."""
    asked = frozenset(features.split()) | _EVERYWHERE | ({"gradients"} if wrt else frozenset())
    return Kind(name, summary, tuple(arguments.split()), dict(options or {}), tuple(wrt.split()), asked,
                tuple(conventions.split()), tuple(outputs.split()), tuple(widenable.split()), may_alias, factory)


def _attention_kinds() -> list[Kind]:
    return [
        _kind("softmax", "Softmax along one axis.", "x", {"dim": -1}, wrt="x", features="empty_rows",
              conventions=f"empty_row {_ROWS}"),
        _kind("attention", "Scaled dot-product attention.", "q k v",
              {"mask": None, "bias": None, "causal": False, "window": None, "scale": None, "softcap": None},
              wrt="q k v", conventions=_KEYS,
              features="mask bias causal window two_sided_window scale negative_scale softcap gqa empty_rows value_width "
                       "cross_lengths padding"),
        _kind("blockwise_attention", "Attention tile by tile, with the logarithm of the sums.", "q k v",
              {"block_q": REQUIRED, "block_k": REQUIRED, "causal": False, "mask": None, "scale": None}, wrt="q k v",
              features="mask causal scale gqa empty_rows value_width cross_lengths padding", conventions=_KEYS,
              outputs="out lse", widenable="lse"),
        _kind("paged_attention", "One query a sequence against a cache kept in blocks.",
              "q k_cache v_cache block_table lengths", {"scale": None}, features="scale gqa empty_rows",
              conventions=f"empty_row nan_behind_mask {_ROWS}"),
        _kind("multi_head_attention", "Projections, heads, attention, output projection.", "x w_q w_k w_v w_o",
              {"num_heads": REQUIRED, "num_kv_heads": None, "context": None, "values": None, "key_mask": None,
               "mask": None, "causal": False, "window": None, "b_q": None, "b_k": None, "b_v": None, "b_o": None,
               "w_gate": None, "positions": None, "base": 10000.0},
              wrt="x w_q w_k w_v w_o w_gate context",
              features="mask causal window two_sided_window gqa empty_rows cross_lengths padding long_positions "
                       "negative_positions", conventions=_KEYS),
    ]


def _position_kinds() -> list[Kind]:
    return [
        _kind("rotary", "Rotary position embedding.", "x positions",
              {"base": 10000.0, "pairing": "interleaved", "rotary_dim": None, "scaling": None}, wrt="x",
              features="negative_positions long_positions"),
        _kind("sinusoidal", "Sinusoidal position table.", "positions dim", {"base": 10000.0},
              features="negative_positions long_positions", outputs="table"),
        _kind("alibi", "Linear biases by distance.", "num_heads q_len k_len", features="cross_lengths",
              conventions=f"alibi_row_shift {_ROWS}", outputs="bias"),
    ]


def _layer_kinds() -> list[Kind]:
    return [
        _kind("layer_norm", "Layer normalisation.", "x weight bias", {"eps": REQUIRED}, wrt="x weight bias"),
        _kind("rms_norm", "Root-mean-square normalisation.", "x weight", {"eps": REQUIRED}, wrt="x weight"),
        _kind("batch_norm", "Batch normalisation over rows.", "x weight bias running_mean running_var",
              {"training": REQUIRED, "momentum": REQUIRED, "eps": REQUIRED}, wrt="x weight bias",
              conventions=f"bn_momentum bn_variance {_ROWS}", outputs="y running_mean running_var",
              widenable="running_mean running_var"),
        _kind("residual", "A sub-layer with its norm and residual connection.", "x sublayer norm",
              {"placement": REQUIRED, "alpha": 1.0}, wrt="x"),
        _kind("feed_forward", "Two linear maps with an activation between.", "x w_in b_in w_out b_out",
              {"activation": REQUIRED}, wrt="x w_in b_in w_out b_out"),
        _kind("gated_feed_forward", "Gated feed-forward (GLU).", "x w_gate w_up w_down", {"activation": "silu"},
              wrt="x w_gate w_up w_down"),
        _kind("dropout", "Dropout.", "x", {"p": REQUIRED, "training": REQUIRED, "seed": REQUIRED}, wrt="x",
              may_alias=True),
        _kind("router", "Choice and weights of experts per token.", "x w_router", {"top_k": REQUIRED}, wrt="x w_router",
              conventions=f"router {_ROWS}", outputs="weights indices", widenable="weights"),
        _kind("moe", "Mixture of experts.", "x w_router w_gate w_up w_down", {"top_k": REQUIRED, "shared": None},
              wrt="x w_router w_gate w_up w_down", conventions=_EXPERTS),
        _kind("embedding", "Rows of a table by token id.", "ids weight", wrt="weight"),
        _kind("input_embedding", "Token plus learned position embedding.", "ids w_token w_pos", {"positions": None},
              wrt="w_token w_pos"),
        _kind("unembedding", "Final norm and output projection.", "h w_norm w_out",
              {"eps": REQUIRED, "b_norm": None, "norm": "rms"}, wrt="h w_norm w_out", outputs="logits"),
        _kind("patchify", "An image cut into flattened patches.", "image", {"patch_size": REQUIRED}, wrt="image",
              outputs="patches", may_alias=True),
    ]


def _decoding_kinds() -> list[Kind]:
    return [
        _kind("logits_filter", "Temperature, top-k and top-p.", "logits",
              {"temperature": 1.0, "top_k": None, "top_p": None},
              conventions=f"topk_ties topp_boundary temperature_zero {_ROWS}", outputs="logits"),
        _kind("sampler", "Token ids drawn from logits.", "logits", {"seed": REQUIRED, "num_samples": REQUIRED},
              outputs="ids"),
        _kind("mlm_mask", "Tokens hidden for masked language modelling.", "ids special",
              {"mask_id": REQUIRED, "vocab_size": REQUIRED, "p": 0.15, "seed": REQUIRED},
              conventions=f"mlm_choice mlm_replace {_ROWS}", outputs="ids labels"),
    ]


def _loss_kinds() -> list[Kind]:
    return [
        _kind("cross_entropy", "Cross-entropy of logits against target ids.", "logits targets",
              {"ignore_index": -100, "label_smoothing": 0.0, "reduction": "mean"}, wrt="logits", conventions=_LOSS,
              outputs="loss", widenable="loss"),
        _kind("lm_loss", "Next-token loss.", "logits ids",
              {"mask": None, "prompt_lengths": None, "label_smoothing": 0.0, "reduction": "mean"}, wrt="logits",
              features="mask padding", conventions=_LOSS, outputs="loss", widenable="loss"),
        _kind("preference_loss", "Pairwise loss of a reward model.", "r_chosen r_rejected", wrt="r_chosen r_rejected",
              outputs="loss", widenable="loss"),
        _kind("policy_loss", "Clipped policy-gradient loss with a KL term.", "logp logp_old logp_ref advantage",
              {"clip": REQUIRED, "kl": REQUIRED, "mask": None}, wrt="logp", features="mask padding",
              conventions=f"kl {_ROWS}", outputs="loss", widenable="loss"),
    ]


def _model_kinds() -> list[Kind]:
    layer = "mask gqa padding empty_rows long_positions"
    causal = {**_LAYER, "causal": True, "mask": None}
    return [
        _kind("block", "One Transformer layer.", "x params", causal, wrt="x params", features=f"{layer} causal",
              conventions=_EXPERTS),
        _kind("encoder", "A stack of bidirectional layers.", "x layers", {**_LAYER, "mask": None}, wrt="x layers",
              features=layer, conventions=_EXPERTS),
        _kind("decoder", "A stack of layers with cross-attention.", "y memory layers",
              {**_LAYER, "mask": None, "memory_mask": None}, wrt="y memory layers", features=f"{layer} cross_lengths",
              conventions=_EXPERTS),
        _kind("encoder_decoder", "Source and target ids to logits.", "src tgt params",
              {**_LAYER, "src_mask": None, "tgt_mask": None}, wrt="params", features=f"{layer} cross_lengths",
              conventions=f"positions {_EXPERTS}", outputs="logits"),
        _kind("causal_lm", "A causal language model, made by a factory.", "", {"seed": REQUIRED},
              features="gradients causal mask padding left_padding cache chunks beams loss saving kernels parts refused_ids",
              conventions=f"positions {_EXPERTS}",
              outputs="logits", factory=True),
        _kind("tokenizer", "Text to ids and back, made by a factory.", "", features="padding left_padding",
              conventions="", outputs="object", factory=True),
    ]


def _further_kinds() -> list[Kind]:
    """What models have beyond the contract's table."""
    return [
        _kind("sink_attention", "Attention with a learned sink for each head.", "q k v sinks",
              {"causal": False, "window": None, "scale": None}, wrt="q k v sinks",
              conventions=f"causal_alignment {_ROWS}",
              features="causal window scale gqa empty_rows value_width cross_lengths"),
        _kind("qk_norm_attention", "Attention whose queries and keys are normalised first.", "q k v w_q w_k",
              {"eps": REQUIRED, "joint": False, "positions": None, "base": 10000.0, "pairing": "interleaved", "causal": False,
               "window": None, "scale": None}, wrt="q k v w_q w_k", conventions=f"causal_alignment {_ROWS}",
              features="causal window scale gqa empty_rows value_width cross_lengths"),
        _kind("latent_attention", "Multi-head latent attention: keys and values out of one compressed vector a token.",
              "x w_q w_kv_a w_kv_norm w_kv_b w_o",
              {"num_heads": REQUIRED, "w_q_a": None, "w_q_norm": None, "positions": None, "base": 10000.0,
               "pairing": "interleaved", "causal": False, "scale": None, "eps": 1e-6},
              wrt="x w_q w_kv_a w_kv_norm w_kv_b w_o w_q_a w_q_norm", features="causal scale", conventions=_ROWS),
        _kind("packed_attention", "Attention of sequences that lie end to end, without padding.",
              "q k v cu_seqlens_q cu_seqlens_k", {"causal": False, "scale": None}, wrt="q k v",
              conventions=f"causal_alignment {_ROWS}", features="causal scale gqa empty_rows value_width cross_lengths"),
        _kind("capacity_moe", "Mixture of experts that turn tokens away beyond their capacity.", "x w_router w_gate w_up w_down",
              {"top_k": REQUIRED, "capacity": REQUIRED, "priority": "token"}, wrt="x w_router w_gate w_up w_down",
              conventions=f"router {_ROWS}"),
        _kind("sigmoid_router", "Experts chosen by sigmoid score plus a balancing bias, weighed without it.", "logits bias",
              {"top_k": REQUIRED, "n_groups": 1, "top_groups": 1, "normalize": True, "scale": 1.0}, wrt="logits",
              outputs="weights indices", widenable="weights"),
        _kind("add_rms_norm", "A residual added, and the root-mean-square normalisation of the sum.", "x residual weight",
              {"eps": REQUIRED}, wrt="x residual weight", outputs="y summed", widenable="summed"),
        _kind("load_balancing_loss", "How unevenly a router spreads its tokens.", "logits indices", {"mask": None}, wrt="logits",
              features="mask padding", outputs="loss", widenable="loss"),
        _kind("router_z_loss", "How large a router's logits grow.", "logits", {"mask": None}, wrt="logits",
              features="mask padding", outputs="loss", widenable="loss"),
        _kind("image_classifier", "An image classifier, made by a factory.", "", {"seed": REQUIRED},
              features="gradients places loss saving kernels parts", outputs="logits", factory=True),
    ]


_CONTRACT = (_attention_kinds, _position_kinds, _layer_kinds, _decoding_kinds, _loss_kinds, _model_kinds)
# What conduct goes by, properties and faults alike: kinds with one tensor or little beside it, and with tensors of one axis.
ONE_TENSOR: Final = frozenset({"softmax", "alibi", "sinusoidal", "dropout", "logits_filter", "sampler", "patchify", "residual",
                               "router_z_loss"})
FLAT: Final = frozenset({"alibi", "sinusoidal", "sampler", "preference_loss"})
FURTHER: Final[frozenset[str]] = frozenset(made.name for made in _further_kinds())  # beyond the contract's table
KINDS: Final[Mapping[str, Kind]] = {made.name: made for group in (*_CONTRACT, _further_kinds) for made in group()}


def kind(name: str) -> Kind:
    """The kind of that name."""
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    raise UsageError(unknown("kind", name, KINDS))


def quoted(value: object) -> str:
    """A value for a message: one line, escaped, cut at 80; other types are named, their `repr` is foreign."""
    if type(value) is int and value.bit_length() > 256:  # Python refuses to convert very long ones
        return "a very large int"
    shown = ascii(value) if type(value) in (str, bytes, int, float, bool, type(None)) else f"a {_type_name(value)}"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _type_name(value: object) -> str:
    return ascii(type(value).__name__)[1:-1]


def unknown(what: str, name: object, names: Iterable[str], command: str = "") -> str:
    """The message for a name that is not in a closed list: what was got, what may have been meant, the list, or what shows it."""
    known = sorted(names)
    near = difflib.get_close_matches(name[:100], known, 1) if isinstance(name, str) else []
    hint = f"; did you mean {near[0]}?" if near else ""
    listed = f"{len(known)} names: `{command}` shows them" if command else ", ".join(known) or "none"
    return f"{what}={quoted(name)} is unknown{hint} ({what} is one of {listed})"


def kinds() -> list[str]:
    """Names of all kinds, in the contract's order."""
    return list(KINDS)
