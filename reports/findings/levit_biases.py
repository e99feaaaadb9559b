"""LeViT, transformers 5.24: attention biases that an evaluating model keeps from its first call.

Run: python levit_biases.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers.models.levit.modeling_levit import LevitAttention

torch.manual_seed(0)
one, other = (LevitAttention(hidden_sizes=16, key_dim=8, num_attention_heads=2, attention_ratio=2, resolution=2) for _ in range(2))
for layer in (one, other):
    layer.eval()
    torch.nn.init.normal_(layer.projection.batch_norm.weight)
    torch.nn.init.normal_(layer.attention_biases)
tokens = torch.randn(1, 4, 16)

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
with torch.no_grad():
    wanted = other(tokens)
    one(tokens)
    one.load_state_dict(other.state_dict())
    stale = (one(tokens) - wanted).abs().max().item()
    one.train()
    one.eval()
    cleared = (one(tokens) - wanted).abs().max().item()
print(f"weights loaded after a call: off by {stale:.2g} from the layer they are of; after train() and eval() by {cleared:.2g}")

other.train()
other.eval()
other(tokens).sum().backward()
try:
    other(tokens).sum().backward()
    raised = False
except RuntimeError as error:
    raised = True
    print(f"a second forward and backward in evaluation raises: {str(error)[:60]}")
raise SystemExit(int(stale > 0 and raised))
