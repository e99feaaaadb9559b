"""Other language models of Hugging Face under the call of a causal one: `hf:masked:bert`, `hf:seq2seq:t5`.

A masked one lacks causality and a cache; all else is asked of it. Of a sequence-to-sequence one the decoder is asked everything,
its cache too, after one source that is drawn from the seed. Labels are scored where they stand, and are given shifted.
"""
from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import quoted
from assay.errors import UsageError
from assay.impls import _hf_families, _hf_tiny
from assay.impls._modules import late
from assay.impls.hf_causal_lm import CACHES, KIND, OFFERS, URL, VERSION, Adapter, model_class

SOURCE = 7  # tokens of the source
IGNORED = -100


@dataclass(frozen=True)
class Task:
    """What a class of models is for. mapping: the library's table of them; lacks: what such a model does not have."""

    mapping: str
    summary: str
    lacks: frozenset[str]


TASKS: Final[Mapping[str, Task]] = {
    "masked": Task("MODEL_FOR_MASKED_LM_MAPPING_NAMES", "masked language model", frozenset({"causal", "cache"})),
    "seq2seq": Task("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "sequence-to-sequence model",
                    frozenset({"left_padding", "refused_ids"})),
}
_PADDED = {"pad_token_id": 1}  # a field that takes no None, or positions that count from it
OWN: Final[Mapping[str, Mapping[str, Any]]] = dict.fromkeys(
    ("ibert", "longformer", "luke", "mpnet", "nomic_bert", "flaubert", "fsmt", "led", "m2m_100", "nllb-moe", "seamless_m4t",
     "seamless_m4t_v2", "t5gemma"), _PADDED)
# Model types -> what they do not claim, and what in the library's source shows that it is meant so.
TRAITS: Final[Mapping[str, tuple[frozenset[str], str]]] = {
    "convbert": (frozenset({"padding"}), "a convolution over neighbouring tokens reads padding too"),
    "mobilebert": (frozenset({"padding"}), "an embedding is joined with those of both neighbours, padding too (`trigram_input`)"),
    "fnet": (frozenset({"padding"}), "tokens are mixed by a Fourier transform over all places; there is no mask"),
    "funnel": (frozenset({"padding"}), "the sequence is pooled by two: a token's neighbour may be padding"),
    "mra": (frozenset({"padding"}), "attention is approximated in blocks that are counted by place"),
    "nystromformer": (frozenset({"padding"}), "landmarks are means over segments of the padded length"),
    "yoso": (frozenset({"padding"}), "attention is estimated by hashing"),
}
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("bart", "mbart", "mvp"), "it is a sequence-to-sequence model"),
    "perceiver": "it takes bytes by a preprocessor of its own", "tapas": "it takes a table's rows and columns beside its tokens"}


def model_types(task: str) -> dict[str, str]:
    """Every model type that has a model for the task -> the name of its class."""
    return dict(getattr(late("transformers.models.auto.modeling_auto"), TASKS[task].mapping))


def of_task(task: str, model_type: str) -> Declaration:
    """The declaration of a model type's model for the task, tiny ones."""
    known, name = model_types(task), f"hf:{task}:{model_type}"
    if model_type not in known:
        near = difflib.get_close_matches(model_type[:100], known, 1)
        hint = f"did you mean hf:{task}:{near[0]}?" if near else f"they are {', '.join(known)}"
        raise UsageError(f"target={quoted(name)} is not one of the {len(known)} model types of transformers {VERSION} that have a "
                         f"{TASKS[task].summary}; {hint}")
    if task == "masked" and model_type in REFUSED:
        raise UsageError(f"target={quoted(name)} is no masked language model by itself: {REFUSED[model_type]}; give another")
    make = model_class(known[model_type])

    def factory(*, seed: int) -> Adapter:
        model = _tiny(model_type, make, seed)
        return Masked(model, model_type) if task == "masked" else Decoder(model, model_type, seed)

    if task == "seq2seq" and "decoder_input_ids" not in inspect.signature(make.forward).parameters:
        raise UsageError(f"target={quoted(name)} has no decoder of its own: sound and text go in as one sequence; give another")
    takes, lacks = set(inspect.signature(make.forward).parameters), set(TASKS[task].lacks)
    lacks |= {"mask"} if not takes.intersection(("attention_mask", "decoder_attention_mask")) else set()
    lacks |= {"left_padding"} if "position_ids" not in takes else set()
    lacks |= {"cache"} if not takes.intersection(CACHES) else set()
    lacks |= TRAITS.get(model_type, (frozenset(),))[0]
    offers = OFFERS - {"kernels"} if task == "seq2seq" else OFFERS
    return declare(KIND, factory, name=name, dtypes=("float32",), devices=("cpu",), lacks=lacks, offers=offers, version=VERSION,
                   conventions={"positions": "from_mask"} if "position_ids" in takes else {}, url=URL, origin=name)


def _tiny(model_type: str, make: Any, seed: int) -> nn.Module:
    """A tiny model of the type, its weights from the seed."""
    settings = _hf_tiny.configuration(make.config_class, {**_hf_tiny.OWN.get(model_type, {}), **OWN.get(model_type, {})})
    settings.is_decoder = False
    torch.manual_seed(seed)
    model: nn.Module = make._from_config(settings, attn_implementation="eager").eval()
    _hf_tiny.drawn(model, seed)
    return model


class Masked(Adapter):
    """A model that sees all tokens, before and after."""

    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Labels are scored where they stand: that of the next token is put there."""
        ahead = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], IGNORED)], 1)
        return super().loss(ids, ahead)

    def _families(self, model_type: str) -> tuple[_hf_families.Family, ...]:
        """What the table says of its positions; the rest speaks of a causal model."""
        found = _hf_families.of("roberta" if model_type in ("mpnet", "ibert", "longformer", "luke") else model_type)
        return tuple(replace(family, idle=self._idle(family.idle), unmasked=False, masked=False) for family in found)

    def _idle(self, named: tuple[str, ...]) -> tuple[str, ...]:
        return named


class Decoder(Masked):
    """The decoder of a sequence-to-sequence model, every row after the same source."""

    def __init__(self, model: nn.Module, model_type: str, seed: int) -> None:
        super().__init__(model, model_type)
        self.takes |= {"decoder_input_ids"}
        self.source = torch.randint(3, self.vocab_size, (1, SOURCE), generator=torch.Generator().manual_seed(seed))

    def _idle(self, named: tuple[str, ...]) -> tuple[str, ...]:
        return ()  # cross-attention works here

    def _given(self, ids: Tensor, mask: Tensor | None, past: int) -> dict[str, Any]:
        given: dict[str, Any] = {"input_ids": self.source.expand(len(ids), -1), "decoder_input_ids": ids}
        if mask is not None:
            given["decoder_attention_mask"] = mask.long()
        return given
