"""Zamba2 and NemotronH, transformers 5.24: one pass bounds the time step by `time_step_min`, a cached step does not.

Run: python time_step_limit.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import NemotronHConfig, Zamba2Config

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "initializer_range": 0.5,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ids = torch.tensor([[5, 17, 42, 8, 63, 29]])


CONFIGS = {
    "Zamba2": Zamba2Config(**SIZES, num_hidden_layers=4, layers_block_type=["linear_attention", "hybrid"] * 2, mamba_d_state=8,
                           num_key_value_heads=4, attention_hidden_size=64, attention_head_dim=16, n_mamba_heads=8,
                           mamba_headdim=8, mamba_ngroups=2, chunk_size=4, adapter_rank=8, time_step_min=0.1),
    "NemotronH": NemotronHConfig(**SIZES, layers_block_type=["linear_attention", "full_attention"], num_key_value_heads=2,
                                 head_dim=8, ssm_state_size=8, mamba_num_heads=8, mamba_head_dim=8, n_groups=2, chunk_size=4,
                                 time_step_min=0.1),
}


def least(model: torch.nn.Module, bound: float) -> None:
    """Bound the time steps of every layer from below; the layers keep (time_step_min, inf)."""
    for layer in model.modules():
        if hasattr(layer, "time_step_limit"):
            layer.time_step_limit = (bound, float("inf"))


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
fault = False
for name, config in CONFIGS.items():
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    whole, step = {}, {}
    with torch.no_grad():
        for bound in (0.1, 0.0):
            least(model, bound)
            whole[bound] = model(ids, use_cache=False).logits[:, 5:]
            cache = model(ids[:, :5], use_cache=True).cache
            step[bound] = model(ids[:, 5:], cache=cache, use_cache=True).logits
        before = model(ids[:, :5], use_cache=True).cache  # made without a bound, as the last one above
        least(model, 0.1)
        bounded = model(ids[:, 5:], cache=before, use_cache=True).logits
    read = {"one pass": not torch.equal(whole[0.1], whole[0.0]), "a step": not torch.equal(bounded, step[0.0])}
    print(f"{name}: a step after a cache of five tokens against one pass of six, largest difference: "
          + ", ".join(f"{(step[bound] - whole[bound]).abs().max().item():.1e} with time_step_min={bound}" for bound in step)
          + "; the bound " + ", ".join(f"{'changes' if seen else 'does not change one bit of'} {what}"
                                       for what, seen in read.items()))
    fault |= read["one pass"] and not read["a step"]
raise SystemExit(int(fault))
