"""Bamba, transformers 5.24: with a cache and without `position_ids`, every call counts its positions from 0 again.

Run: python bamba_positions.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import BambaConfig, BambaForCausalLM

torch.manual_seed(0)
config = BambaConfig(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    attn_layer_indices=[1], mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=2, mamba_d_state=8, mamba_chunk_size=4,
    initializer_range=0.5)
model = BambaForCausalLM._from_config(config, attn_implementation="eager").eval().double()
ids = torch.tensor([[5, 17, 42, 8, 63, 29]])

with torch.no_grad():
    whole = model(ids, use_cache=False).logits
    first = model(ids[:, :5], use_cache=True)
    told = model(ids[:, 5:], cache=model(ids[:, :5], use_cache=True).cache, use_cache=True,
                 position_ids=torch.tensor([[5]])).logits
    untold = model(ids[:, 5:], cache=first.cache, use_cache=True).logits
    zero = model(ids[:, 5:], cache=model(ids[:, :5], use_cache=True).cache, use_cache=True,
                 position_ids=torch.tensor([[0]])).logits

right, wrong = (told - whole[:, 5:]).abs().max().item(), (untold - whole[:, 5:]).abs().max().item()
print(f"transformers {transformers.__version__}, torch {torch.__version__}, float64")
print(f"step with position_ids=[[5]] against one pass: largest difference {right:.1e}")
print(f"step without position_ids    against one pass: largest difference {wrong:.1e}")
print(f"step without position_ids    against position_ids=[[0]]: largest difference {(untold - zero).abs().max().item():.1e}")
raise SystemExit(int(torch.equal(untold, zero) and not torch.equal(untold, told)))
