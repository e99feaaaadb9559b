"""Mamba, FalconMamba, Jamba and Zamba, transformers 5.24: several tokens at once after a cache: the recurrent state is ignored.

Told by setting the state to zero before the call: what does not change by one bit has not read it. Mamba2 is right.
Run: python mamba_chunks.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import FalconMambaConfig, JambaConfig, Mamba2Config, MambaConfig, ZambaConfig

SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "initializer_range": 0.5}
HYBRID = {**SIZES, "intermediate_size": 48, "num_attention_heads": 4, "mamba_d_state": 8, "mamba_dt_rank": 8, "pad_token_id": 0,
          "bos_token_id": 1, "eos_token_id": 2}
CONFIGS = {
    "Mamba": MambaConfig(**SIZES, state_size=8, time_step_rank=8),
    "FalconMamba": FalconMambaConfig(**SIZES, state_size=8, time_step_rank=8),
    "Jamba": JambaConfig(**HYBRID, num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1,
                         num_experts_per_tok=1),
    "Zamba": ZambaConfig(**{**HYBRID, "num_hidden_layers": 4}, num_key_value_heads=4, attention_head_dim=16, n_mamba_heads=2,
                         attention_hidden_size=64, layers_block_type=["linear_attention", "hybrid"] * 2),
    "Mamba2": Mamba2Config(**SIZES, state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=4),
}
ids = torch.tensor([[5, 17, 42, 8, 63, 29]])


def after(model: torch.nn.Module, parts: list[torch.Tensor], *, zeroed: bool = False) -> torch.Tensor:
    """Logits of the parts, one call a part, after a cache of the first three tokens, its recurrent states zero or as they are."""
    cache = model(ids[:, :3], use_cache=True).cache
    for layer in cache.layers if zeroed else ():
        for state in getattr(layer, "recurrent_states", {}).values():
            state.zero_()
    return torch.cat([model(part, cache=cache, use_cache=True).logits for part in parts], 1)


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
fault = False
for name, config in CONFIGS.items():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, 3:]
        single, chunk = ([ids[:, t : t + 1] for t in range(3, 6)], [ids[:, 3:]])
        apart = {said: (after(model, parts) - whole).abs().max().item() for said, parts in (("singly", single), ("at once", chunk))}
        reads = {said: not torch.equal(after(model, parts), after(model, parts, zeroed=True))
                 for said, parts in (("singly", single), ("at once", chunk))}
    print(f"{name}: three tokens after a cache of three, largest difference from one pass of all six, and whether the recurrent "
          "state is read: " + "; ".join(f"{said} {apart[said]:.1e}, {'read' if reads[said] else 'not read'}" for said in apart))
    fault |= reads["singly"] and not reads["at once"]
raise SystemExit(int(fault))
