"""What families of Hugging Face's language models do not claim, and why: data, one line of evidence for each.

A model type without an entry claims everything: causality, a cache that takes single tokens and chunks, rows that do not touch
each other, padding on either side where it takes positions, and one attention for all kernels.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Family:
    """Model types that share a trait. evidence: what in the library's source, or in the paper, shows that it is meant so.

    bounded: a table of learned positions ends; longer sequences are refused. lacks: features not claimed. conventions: choices
    other than the default. withheld: offers that it does not make. idle: parts of the names of parameters that no logit depends
    on. unmasked: a step takes no mask. masked: a call without a mask is given one of ones. offset: positions begin at
    pad_token_id + 1. refused: it is no causal language model by itself.
    """

    types: tuple[str, ...]
    evidence: str
    bounded: str = ""  # the configuration's name for the number of places
    lacks: frozenset[str] = frozenset()
    withheld: frozenset[str] = frozenset()
    idle: tuple[str, ...] = ()
    unmasked: bool = False
    masked: bool = False
    offset: bool = False
    refused: bool = False
    conventions: Mapping[str, Any] = field(default_factory=dict)

    def told(self) -> str:
        """What it says, in words."""
        said = ["not tried"] if self.refused else []
        said += [f"at most `{self.bounded}` tokens"] if self.bounded else []
        said += [f"no gradient for `{name}`" for name in self.idle] + (["no mask in a step"] if self.unmasked else [])
        said += ["always a mask"] if self.masked else []
        said += ["positions begin at pad_token_id + 1"] if self.offset else []
        said += [f"no {name}" for name in sorted(self.lacks)] + [f"{name} not offered" for name in sorted(self.withheld)]
        return ", ".join(said + [f"{name} = {value}" for name, value in self.conventions.items()])


def _family(types: str, evidence: str, *, bounded: str = "", lacks: str = "", withheld: str = "", idle: str = "",
            unmasked: bool = False, masked: bool = False, offset: bool = False, refused: bool = False,
            **conventions: Any) -> Family:
    """An entry with names separated by spaces."""
    return Family(tuple(types.split()), evidence, bounded, frozenset(lacks.split()), frozenset(withheld.split()),
                  tuple(idle.split()), unmasked, masked, offset, refused, conventions)


_DECODERS = "bart bigbird_pegasus blenderbot blenderbot-small marian mbart mvp pegasus plbart trocr whisper"
FAMILIES: Final[tuple[Family, ...]] = (
    _family("xlnet", "permutation language modelling: without a `perm_mask` every token sees every other, before and after it "
            "(Yang et al., arXiv 1906.08237)", refused=True),
    _family("cpmant", "all ids that are given are context, and context sees itself in both directions: `attention_mask = "
            "context[:, None, :] | ...` with `context` full of ones", refused=True),
    _family("gemma4_assistant gemma4_unified_assistant", "a drafter: `forward` raises without `shared_kv_states` of the model that "
            "it drafts for", refused=True),
    _family("musicgen musicgen_melody", "ids of `num_codebooks` sequences stand for one row", refused=True),
    _family("moshi mllama", "the table of embeddings has rows beyond the vocabulary, for what begins a sequence or stands "
            "for a picture", lacks="refused_ids"),
    _family("gemma3n", "its picture tower is a timm model, and timm is not installed; gemma3n_text is its language model",
            refused=True),
    _family("afmoe aria_text axk1 axk2 bailing_hybrid beam cohere2_moe dbrx deepseek_v2 deepseek_v3 deepseek_v32 "
            "deepseek_v4 doge dots1 dots3_note dots3_note_text ernie4_5_moe exaone_moe flex_olmo flint gemma4 gemma4_text "
            "glm4_moe glm4_moe_lite glm_moe_dsa gpt_oss granitemoe granitemoe_swa granitemoehybrid granitemoeshared "
            "hunyuan_v1_moe hy_v3 hy_v4 inkling_text inkling2_text inkling2_loop_text jamba jetmoe kimi_linear kolibri1 "
            "laguna lara_mini lfm2_moe llama4 llama4_text longcat_flash mellum mimo_v2_flash minimax minimax_m2 "
            "minimax_m3_vl_text mixtral nemotron_h olmoe phimoe qwen2_moe qwen3_5_moe qwen3_5_moe_text qwen3_moe qwen3_next "
            "qwen4_exp qwen4_exp_text sarvam_mla sarvam_moe solar_open zaya",
            "an expert multiplies the tokens routed to it, of all rows, as one matrix: its height, and with it the order of sums, "
            "depends on where other tokens go", row_dependence="rounding"),
    _family(_DECODERS, "labels are scored where they stand (`loss_fct(logits.view(-1, V), labels.view(-1))`): they are to be given "
            "shifted, as to the decoder of the sequence-to-sequence model", withheld="loss"),
    _family("xlm", "`XLMPredLayer` scores labels where they stand", withheld="loss"),
    _family("xlm", "`lengths = (input_ids != self.pad_index).sum(dim=1)` where there is no mask: an id is taken for padding, so "
            "a mask is always given; `attn_mask` is causal alone and hides no key, which is enough for lengths (right padding)",
            masked=True, lacks="left_padding"),
    _family("prophetnet", "`_compute_loss` scores labels where they stand, for every n-gram", withheld="loss"),
    _family(f"{_DECODERS} prophetnet", "cross-attention waits for an encoder's states", idle="encoder_attn cross_attn"),
    _family("axk2 deepseek_v32 deepseek_v4 dots3_note dots3_note_text glm_moe_dsa hy_v4 minimax_m3_vl_text qwen4_exp "
            "qwen4_exp_text", "the indexer chooses keys by top-k, which passes no gradient; it is trained by a loss of its own "
            "(DeepSeek-V3.2)", idle="indexer"),
    _family("camembert data2vec-text roberta roberta-prelayernorm xlm-roberta xlm-roberta-xl xmod",
            "`create_position_ids_from_input_ids` gives the first token pad_token_id + 1", offset=True),
    _family("git", "without a picture its encoder idles, and the loss still cuts off as many logits as a picture has tokens",
            idle="image_encoder visual_projection", withheld="loss"),
    _family("fuyu gemma3 gemma4 gemma4_unified got_ocr2 phi4_multimodal moss_transcribe_diarize", "without pictures and sounds "
            "what takes them idles", idle="vision audio multi_modal image_embed"),
    _family("deepseek_v4", "keys are compressed in blocks that are counted by index, not by mask; a block is compressed once it is "
            "full, and is wider than what is tried", lacks="left_padding", idle="compressor"),
    _family("blt", "patches are cut, by index, by a model of its own that is not trained with it; untrained it begins a patch with "
            "every byte, and attention over one key is constant", idle="patcher local_encoder.cross_attn", lacks="left_padding"),
    _family("big_bird", "the model is made with a pooler, which the language model's head does not read", idle="pooler"),
    _family("mamba mamba2 falcon_mamba", "`prepare_inputs_for_generation` sets the mask to None after the first call",
            unmasked=True),
    _family("bart bert bert-generation big_bird bigbird_pegasus biogpt blenderbot blenderbot-small electra ernie git gpt-sw3 gpt2 "
            "gpt_bigcode gpt_neo", "an `nn.Embedding` of positions of that many rows", bounded="max_position_embeddings"),
)


def of(model_type: str) -> tuple[Family, ...]:
    """The entries that speak of a model type."""
    return tuple(family for family in FAMILIES if model_type in family.types)
