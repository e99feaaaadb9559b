"""Reformer, transformers 5.24: `position_ids` for a length that is no multiple of the chunk length: a call raises.

Run: python reformer_positions.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import ReformerConfig, ReformerModelWithLMHead

config = ReformerConfig(vocab_size=97, hidden_size=32, feed_forward_size=48, num_attention_heads=4, attention_head_size=8,
                        attn_layers=["local", "local"], local_attn_chunk_length=4, is_decoder=True, axial_pos_embds_dim=[8, 24],
                        axial_pos_shape=[8, 8], max_position_embeddings=64, pad_token_id=1)
torch.manual_seed(0)
model = ReformerModelWithLMHead(config).eval()
print(f"transformers {transformers.__version__}, torch {torch.__version__}; chunks of 4")
failed = 0
for length in (4, 5, 8):
    ids = torch.arange(5, 5 + length)[None]
    plain = model(ids).logits
    print(f"{length} tokens without position_ids: logits of shape {tuple(plain.shape)}")
    try:
        given = model(ids, position_ids=torch.arange(length)[None]).logits
        print(f"{length} tokens with position_ids 0 … {length - 1}: the same logits: {torch.equal(given, plain)}")
    except RuntimeError as error:
        print(f"{length} tokens with position_ids 0 … {length - 1}: RuntimeError: {error}")
        failed += 1
raise SystemExit(int(failed > 0))
