"""RecurrentGemma, transformers 5.24: tokens behind the mask on the left reach the first real ones through the convolution.

Run: python recurrent_gemma_padding.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

config = RecurrentGemmaConfig(vocab_size=97, hidden_size=32, intermediate_size=48, lru_width=32, num_hidden_layers=3,
                              num_attention_heads=4, num_key_value_heads=2, head_dim=8, attention_window_size=8)
torch.manual_seed(0)
model = RecurrentGemmaForCausalLM._from_config(config, attn_implementation="eager").eval()
for parameter in model.parameters():
    if parameter.dim() > 1:
        torch.nn.init.normal_(parameter, std=0.3)
ids = torch.tensor([[3, 3, 42, 8, 63, 29]])
other = torch.cat([torch.tensor([[50, 71]]), ids[:, 2:]], 1)  # other tokens behind the mask
mask = torch.tensor([[0, 0, 1, 1, 1, 1]])
positions = torch.tensor([[0, 0, 0, 1, 2, 3]])  # as `generate` counts them


def apart() -> tuple[float, float]:
    """At the real tokens: what other tokens behind the mask change, and what leaving these out changes."""
    with torch.no_grad():
        padded = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, 2:]
        changed = model(other, attention_mask=mask, position_ids=positions, use_cache=False).logits[:, 2:]
        alone = model(ids[:, 2:], use_cache=False).logits
    return (changed - padded).abs().max().item(), (alone - padded).abs().max().item()


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
behind, left_out = apart()
print(f"logits of four real tokens: two others behind the mask change them by {behind:.1e}, leaving the two out by {left_out:.1e}")
for part in model.modules():
    if isinstance(part, torch.nn.Conv1d):
        part.weight.data[..., :-1] = 0  # the convolution sees its own token alone
plain, without = apart()
print(f"with a convolution of width 1: by {plain:.1e} and {without:.1e}")
raise SystemExit(int(behind > 0 and plain == 0))
