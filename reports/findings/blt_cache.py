"""BLT, transformers 5.24: every call with a cache raises, and a cache is the default.

Run: python blt_cache.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import BltConfig, BltForCausalLM

SMALL = {"vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
config = BltConfig(
    encoder_hash_byte_group_vocab=64, patcher_config={**SMALL, "num_key_value_heads": 4}, global_config=SMALL,
    encoder_config={**SMALL, "hidden_size_global": 32}, decoder_config={**SMALL, "hidden_size_global": 32})
torch.manual_seed(0)
model = BltForCausalLM(config).eval()
ids = torch.tensor([[5, 17, 42, 8, 63, 29]])
print(f"transformers {transformers.__version__}, torch {torch.__version__}; config.use_cache={config.use_cache}")
with torch.no_grad():
    print(f"use_cache=False: logits of shape {tuple(model(ids, use_cache=False).logits.shape)}")
    try:
        print(f"by default: logits of shape {tuple(model(ids).logits.shape)}")
    except AttributeError as error:
        print(f"by default: AttributeError: {error}")
        raise SystemExit(1) from None
