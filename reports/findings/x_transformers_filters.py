"""x-transformers 2.31: `top_p` with thres=1 drops tokens, and `top_k` with k=0 leaves none.

Run: python x_transformers_filters.py    exits with 1 while either fault is there
"""
import sys
from importlib.metadata import version

import torch
from x_transformers.autoregressive_wrapper import top_k, top_p

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
logits = 3 * torch.randn(2000, 1000, generator=torch.Generator().manual_seed(0))
lost = torch.isneginf(top_p(logits, thres=1.0)).sum(-1)
print("top_p(thres=1.0) of 2,000 rows of 1,000 logits, normal times 3: "
      f"{int((lost > 0).sum())} rows lose tokens, {int(lost.max())} the most in one")
empty = top_k(torch.tensor([[2.0, 1.0]]), k=0)
print(f"top_k(k=0) of [2, 1]: {empty.tolist()}, as probabilities {empty.softmax(-1).tolist()}")
sys.exit(int(bool((lost > 0).any()) or bool(torch.isneginf(empty).all())))
