"""Tiny configurations of Hugging Face's language models: every size shrunk by its name, every sort of layer kept.

Nothing is downloaded: a configuration class has defaults for all that it needs, and what it calls its sizes is a short list.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn

WIDTH, HEADS, GROUPS, HEAD, HIDDEN, WORDS, LAYERS, EXPERTS, CHOSEN, PLACES = 32, 4, 2, 8, 48, 97, 2, 4, 2, 64
WINDOW = 4  # so that it bites on sequences of a dozen tokens
MOST_LAYERS = 4
MOST_PARAMETERS = 3_000_000  # more than this is a size that was not shrunk
GAIN = 1.5  # of the weights, over 1/√inputs: logits that differ, and activations that do not run away


def _names(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(names.split(), value)


# What a size is called -> what it becomes. Names that a configuration lacks, or leaves at None or 0, are left alone.
SIZES: Final[Mapping[str, Any]] = {
    **_names(WIDTH, "hidden_size d_model n_embd dim embedding_size dim_model emb_dim attention_hidden_size embed_dim lru_width "
                    "word_embed_proj_dim dim_embed input_embedding_size hidden_dim input_size output_embedding_size "
                    "embedding_dim backbone_hidden_size pronunciation_embed_dim shape_embed_dim router_hidden_size "
                    "hidden_size_global prompt_mid_dim"),
    **_names(LAYERS, "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers "
                     "num_encoder_layers num_blocks"),
    **_names(HEADS, "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads "
                    "num_decoder_attention_heads num_encoder_attention_heads attention_heads swa_num_attention_heads "
                    "linear_num_heads linear_num_value_heads num_query_groups"),
    **_names(GROUPS, "num_key_value_heads num_kv_heads attn_kv_heads kv_n_heads swa_num_key_value_heads linear_num_key_heads "
                     "o_groups"),
    **_names(HEAD, "head_dim kv_channels d_kv rotary_dim global_head_dim swa_head_dim swa_v_head_dim attention_head_dim "
                   "attention_head_size dim_head d_head linear_head_dim linear_key_head_dim linear_value_head_dim"),
    **_names(HIDDEN, "intermediate_size ffn_dim ffn_hidden_size n_inner decoder_ffn_dim encoder_ffn_dim moe_intermediate_size "
                     "shared_expert_intermediate_size expert_ffn_hidden_size intermediate_size_mlp feed_forward_size dim_ff dff "
                     "shared_intermediate_size block_ff_dim moe_shared_expert_intermediate_size feed_forward_proj_dim "
                     "prefix_dense_intermediate_size dense_intermediate_size shared_experts_intermediate_size"),
    **_names(WORDS, "vocab_size decoder_vocab_size unpadded_vocab_size pronunciation_vocab_size shape_vocab_size "
                    "vocab_size_per_layer_input audio_vocab_size encoder_hash_byte_group_vocab"),
    **_names(PLACES, "max_position_embeddings n_positions n_ctx max_sequence_length context_length seq_length max_seq_len "
                     "max_target_positions max_source_positions original_max_position_embeddings model_max_length"),
    **_names(EXPERTS, "num_experts num_local_experts n_routed_experts moe_num_experts num_routed_experts zero_expert_num"),
    **_names(CHOSEN, "num_experts_per_tok num_experts_per_token moe_topk moe_k top_k_experts moe_router_topk moe_top_k top_k"),
    **_names(1, "n_group topk_group num_shared_experts n_shared_experts moe_num_shared_experts first_k_dense_replace "
                "num_dense_layers num_expert_group moe_layer_start_index"),
    **_names(WINDOW, "sliding_window attention_window_size sliding_window_size attention_chunk_size window_size swa_window "
                     "local_attention index_topk local_attn_chunk_length lsh_attn_chunk_length block_size keep_window_size "
                     "index_block_size local_attention_window_len"),
    **_names(16, "q_lora_rank kv_lora_rank o_lora_rank qk_latent_dim adapter_rank laurel_rank loop_gate_rank gated_norm_rank "
                 "hc_lowrank rel_extent d_rel"),
    **_names(HEAD, "qk_rope_head_dim qk_nope_head_dim v_head_dim index_head_dim"),
    **_names(8, "index_n_heads"),  # so many that no two keys have the score 0, which all negative products make
    # state spaces and linear attention
    **_names(8, "state_size ssm_state_size mamba_d_state mamba_state_dim d_state time_step_rank mamba_dt_rank mamba_d_head "
                "mamba_head_dim mamba_headdim mamba_n_heads n_mamba_heads mamba_num_heads hidden_size_per_layer_input"),
    **_names(4, "chunk_size mamba_chunk_size block_multiple_of prompt_length"),
    **_names(2, "mamba_n_groups n_mamba_groups n_groups mamba_ngroups heads_per_ngram num_codebooks"),
    **_names(64, "mamba_d_ssm mamba_intermediate"), **_names(32, "ple_embed_dim"), **_names(50, "ngram_vocab_size_base"),
    **_names(8, "make_ngram_vocab_size_divisible_by split_ngram_parts ffn_round_up_to_multiple_of query_pre_attn_scalar"),
    # pictures and sounds beside the text
    **_names(8, "image_size crop_size mm_tokens_per_image"), **_names(4, "patch_size image_seq_length"),
    **_names(4, "nemo_conv_channels ext_pw_out_channel depthwise_separable_out_channel num_filters conf_num_attention_heads"),
    **_names(2, "conf_num_hidden_layers"),
}
# Whatever they are: nothing by chance; special ids that exist.
ALWAYS: Final[Mapping[str, Any]] = {
    **_names(0.0, "dropout attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop activation_dropout "
                  "attention_probs_dropout_prob hidden_dropout_prob classifier_dropout layerdrop decoder_layerdrop "
                  "encoder_layerdrop resid_dropout embedding_dropout residual_dropout router_jitter_noise input_jitter_noise "
                  "summary_first_dropout ffn_dropout lora_dropout emb_pdrop drop_path_rate dropatt dropout_p "
                  "lsh_attention_probs_dropout_prob local_attention_probs_dropout_prob"),
    **_names(True, "is_decoder"),
    **_names(0, "bos_token_id decoder_start_token_id"), **_names(1, "eos_token_id"), **_names(None, "pad_token_id"),
}
EVEN_NONE: Final = ("head_dim", "num_key_value_heads")  # sizes that are filled in where they are None
# Lists with one entry a layer; those layers are kept that show every combination of entries.
PER_LAYER: Final = ("layer_types", "mlp_layer_types", "no_rope_layers", "indexer_types", "activation_sparsity_pattern",
                    "layers_block_type", "layer_rope_theta", "num_attention_heads_per_layer")
# What no rule gives: a line a type.
_PADDED = {"pad_token_id": 1}  # positions count from it, or its field takes no None
_SPARSE = ["sliding_attention", "full_attention"]
OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    **dict.fromkeys(("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "emu3",
                     "modernbert-decoder", "prophetnet"), _PADDED),
    "xmod": {**_PADDED, "languages": ["en_XX"], "default_language": "en_XX"},
    "bamba": {"attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 4,
              "attention_hidden_size": 64, "attention_head_dim": 16, "n_mamba_heads": 2, "num_key_value_heads": 4},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 4,
               "num_key_value_heads": 4, "attention_hidden_size": 64, "attention_head_dim": 16},
    "qwen4_exp": {"indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
                  "indexer_compress_ratio": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "dory": {"n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1, "num_hidden_layers": 3,
             "layer_types": [*_SPARSE, "sliding_attention"]},
    "gemma3n_text": {"num_hidden_layers": 4, "layer_types": _SPARSE * 2, "num_kv_shared_layers": 2,
                     "activation_sparsity_pattern": [0.95, 0.0, 0.95, 0.0]},
    "dots1": {"n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": CHOSEN},
    "dots3_note": {"num_key_value_heads": HEADS, "swa_num_attention_heads": HEADS, "swa_num_key_value_heads": HEADS},
    "inkling2_loop_text": {"loop_layer_index_start": 1, "loop_layer_index_end": 2, "loop_num_passes": 2},
    "mpt": {"attn_config": {"attn_pdrop": 0}},
    "zaya": {"num_experts_per_tok": 1},
    "reformer": {**_PADDED, "axial_pos_embds_dim": [8, 24], "axial_pos_shape": [8, 8]},
    "gemma4": {"text_config": {"pad_token_id": 1}}, "gemma4_unified": {"text_config": {"pad_token_id": 1}},
    "deepseek_v2": {"n_routed_experts": EXPERTS, "num_experts_per_tok": CHOSEN},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},  # the model reads both, its class gives neither
    "mamba2": {"num_heads": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0,
                                                                   "mrope_section": [2, 1, 1]}}},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "autocast_kernel_dtype": "float32"},  # rounded up to 64
    "xlm": {"pad_index": 2, "causal": True},
    "phimoe": {"router_jitter_noise": 0.5},  # no chance: the width of the softmax over experts, which is constant at 0
}
ALIASES: Final[Mapping[str, str]] = {"dots3_note_text": "dots3_note", "qwen4_exp_text": "qwen4_exp"}


def of(model_type: str, make: type[Any]) -> Any:
    """The tiny configuration of a model type."""
    return configuration(make, OWN.get(ALIASES.get(model_type, model_type)))


def configuration(make: type[Any], own: Mapping[str, Any] | None = None) -> Any:
    """The tiny configuration of a class: its own defaults, shrunk, and what `own` gives."""
    plain, own = make(), own or {}
    fields = {name: value for name, value in vars(plain).items() if _settable(make, name)}
    given = {name: SIZES[name] for name, default in fields.items() if name in SIZES and (default or name in EVEN_NONE)}
    given |= {name: _typed(value, fields[name]) for name, value in ALWAYS.items() if name in fields}
    given |= dict(_layers(fields, given))
    if "kv_lora_rank" in fields and "num_key_value_heads" in fields:
        given["num_key_value_heads"] = HEADS  # latent attention expands its latents to all heads
    for name, part in fields.items():
        if hasattr(part, "to_diff_dict"):
            given[name] = configuration(type(part), own.get(name))
    return make(**{**given, **{name: value for name, value in own.items() if name not in given or not hasattr(
        given[name], "to_diff_dict")}})


def _typed(value: Any, default: Any) -> Any:
    """A chance of 0.0 as the type that the field takes."""
    return int(value) if value == 0 and value is not None and isinstance(default, int) else value


def _settable(make: type[Any], name: str) -> bool:
    """Whether it is a field that the class takes, and not a property that it computes."""
    found = getattr(make, name, None)
    return not isinstance(found, property) or found.fset is not None


def _layers(fields: Mapping[str, Any], given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The lists of one entry a layer, at the layers that are kept, and how many these are."""
    found: dict[str, Any] = {name: fields.get(name) for name in PER_LAYER}
    lists: dict[str, list[Any]] = {name: list(entries) for name, entries in found.items()
                                   if isinstance(entries, (list, tuple)) and entries}
    deep = len(next(iter(lists.values()), ()))
    lists = {name: entries for name, entries in lists.items() if len(entries) == deep}
    if not lists:
        return
    combined = list(zip(*lists.values(), strict=True))
    kept = sorted({combined.index(one) for one in combined})[:MOST_LAYERS]
    kept = kept if len(kept) >= LAYERS else sorted({*kept, *range(LAYERS)})[:LAYERS] if deep >= LAYERS else kept
    for name, entries in lists.items():
        yield name, [entries[layer] for layer in kept]
    for name in ("num_hidden_layers", "n_layer", "num_layers"):
        if name in given:
            yield name, len(kept)


def drawn(model: nn.Module, seed: int) -> None:
    """Give the parameters values that matter, from the seed alone: the library's own first weights leave all logits near 0."""
    source = torch.Generator().manual_seed(seed)
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad or not parameter.is_floating_point():
                continue  # a table that is kept as a parameter
            noise = torch.randn(parameter.shape, generator=source)
            if id(parameter) in tables:
                parameter.copy_(noise)
            elif parameter.dim() < 2 or "A_log" in name:
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(noise * (GAIN / math.sqrt(parameter.shape[-1])))
