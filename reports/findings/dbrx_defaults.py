"""DBRX, transformers 5.24: a model cannot be built from its own default configuration.

Run: python dbrx_defaults.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import DbrxConfig, DbrxForCausalLM

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
failed = 0
for name, attention in (("defaults", {}), ("rope_theta given", {"rope_theta": 10000.0}),
                        ("rope_theta and clip_qkv given", {"rope_theta": 10000.0, "clip_qkv": 8.0})):
    config = DbrxConfig(d_model=32, n_heads=4, n_layers=1, vocab_size=97, attn_config={"kv_n_heads": 2, **attention},
                        ffn_config={"ffn_hidden_size": 48})
    try:
        logits = DbrxForCausalLM(config).eval()(torch.tensor([[5, 17, 42]]), use_cache=False).logits
        print(f"{name}: logits of shape {tuple(logits.shape)}")
    except (AttributeError, RuntimeError) as error:
        print(f"{name}: {type(error).__name__}: {error}")
        failed += 1
raise SystemExit(int(failed > 0))
