"""x-transformers 2.31: a query that mask and causality together leave without a key attends to every key, later ones too.

Run: python x_transformers_no_keys.py    exits with 1 while the fault is there
"""
import sys
from importlib.metadata import version

import torch
from x_transformers.attend import Attend

print(f"x-transformers {version('x-transformers')}, torch {torch.__version__}")
q = k = torch.zeros(1, 1, 3, 1)
v = torch.tensor([100.0, 1.0, 7.0]).reshape(1, 1, 3, 1)
mask = torch.tensor([False, True, True]).reshape(1, 1, 1, 3)  # the first token is padding: its query has no key under causality
found = {}
for flash in (False, True):
    found[flash] = Attend(causal=True, flash=flash)(q, k, v, mask=mask)[0].flatten().tolist()
    print(f"Attend(causal=True, flash={flash}), first key hidden: {found[flash]}")
alone = Attend(causal=False)(q, k, v, mask=torch.zeros(1, 1, 3, 3, dtype=torch.bool))[0].flatten().tolist()
print(f"Attend(causal=False, flash=False), all keys hidden: {alone}")
print("right: 0 for a query without keys, as flash=True gives it, and as the mask alone does")
sys.exit(int(found[False][0] != 0))
