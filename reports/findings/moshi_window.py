"""Moshi, transformers 5.24: one pass sees all earlier tokens, a cache forgets those beyond `sliding_window`.

Run: python moshi_window.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import MoshiConfig, MoshiForCausalLM

ids = torch.tensor([[5, 17, 42, 8, 63, 29, 71, 33]])
other = torch.cat([torch.tensor([[50]]), ids[:, 1:]], 1)  # another first token


def last(model: MoshiForCausalLM, ids: torch.Tensor, *, cached: bool) -> torch.Tensor:
    """Logits of the last token, by one pass or one token at a time."""
    if not cached:
        return model(ids, use_cache=False).logits[:, -1]
    cache = None
    for t in range(ids.shape[1]):
        out = model(ids[:, t : t + 1], cache=cache, use_cache=True)
        cache = out.cache
    return out.logits[:, -1]


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
seen = {}
for window in (4, 8):
    torch.manual_seed(0)
    config = MoshiConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                         head_dim=8, ffn_dim=48, sliding_window=window, initializer_range=0.5, audio_vocab_size=97)
    model = MoshiForCausalLM._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        whole, steps = last(model, ids, cached=False), last(model, ids, cached=True)
        for cached in (False, True):
            seen[window, cached] = not torch.equal(last(model, ids, cached=cached), last(model, other, cached=cached))
    print(f"sliding_window={window}, 8 tokens, one layer: one by one with a cache against one pass, largest difference "
          f"{(whole - steps).abs().max().item():.1e}; the first token reaches the last logits in one pass: {seen[window, False]}, "
          f"with a cache: {seen[window, True]}")
raise SystemExit(int(seen[4, False] and not seen[4, True]))
