"""Mamba and FalconMamba, transformers 5.24: several tokens at once after a cache: the cache is ignored, without a word.

Run: python mamba_chunks.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import FalconMambaConfig, FalconMambaForCausalLM, Mamba2Config, Mamba2ForCausalLM, MambaConfig, MambaForCausalLM

SIZES = {"vocab_size": 97, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "initializer_range": 0.5}
MODELS = {
    "Mamba": (MambaForCausalLM, MambaConfig(**SIZES, time_step_rank=8)),
    "FalconMamba": (FalconMambaForCausalLM, FalconMambaConfig(**SIZES, time_step_rank=8)),
    "Mamba2": (Mamba2ForCausalLM, Mamba2Config(**SIZES, num_heads=8, head_dim=8, n_groups=2, chunk_size=4)),
}
ids = torch.tensor([[5, 17, 42, 8, 63, 29]])


def after(model: torch.nn.Module, parts: list[torch.Tensor]) -> torch.Tensor:
    """Logits of the parts, one call a part, after a cache of the first three tokens."""
    cache = model(ids[:, :3], use_cache=True).cache
    return torch.cat([model(part, cache=cache, use_cache=True).logits for part in parts], 1)


print(f"transformers {transformers.__version__}, torch {torch.__version__}, float64")
fault = False
for name, (make, config) in MODELS.items():
    torch.manual_seed(0)
    model = make(config).eval().double()
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, 3:]
        fresh = model(ids[:, 3:], use_cache=False).logits
        single, chunk = after(model, [ids[:, t : t + 1] for t in range(3, 6)]), after(model, [ids[:, 3:]])
    right, wrong = (single - whole).abs().max().item(), (chunk - whole).abs().max().item()
    print(f"{name}: three tokens after a cache of three, against one pass: one by one {right:.1e}, at once {wrong:.1e}; "
          f"at once against the same tokens without any cache {(chunk - fresh).abs().max().item():.1e}")
    fault |= wrong > 1000 * max(right, 1e-9)
raise SystemExit(int(fault))
