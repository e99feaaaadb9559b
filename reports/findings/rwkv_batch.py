"""RWKV, transformers 5.24: a step of one token with a cache and several rows.

Run: python rwkv_batch.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import RwkvConfig, RwkvForCausalLM

torch.manual_seed(0)
config = RwkvConfig(vocab_size=97, context_length=64, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32,
                    intermediate_size=48)
model = RwkvForCausalLM(config).eval()
ids = torch.tensor([[5, 17, 42, 8, 63, 29], [7, 3, 91, 4, 22, 60]])

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
fault = False
with torch.no_grad():
    whole = model(ids, use_cache=False).logits
    for rows in (1, 2):
        state = model(ids[:rows, :5], use_cache=True).state
        step = model(ids[:rows, 5:], state=state, use_cache=True).logits
        shape = tuple(step.shape)
        print(f"B={rows}: logits of one new token have shape {shape}, expected {(rows, 1, 97)}")
        fault |= shape != (rows, 1, 97)
        if shape == (rows, 1, 97):
            print(f"      largest difference from one pass {(step - whole[:rows, 5:]).abs().max().item():.1e}")
raise SystemExit(int(fault))
