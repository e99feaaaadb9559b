"""scaled_dot_product_attention, torch 2.13: without keys, queries whose sum overflows give NaN where zeros come otherwise.

Run: python sdpa_no_keys.py    exits with 1 while the fault is there
"""
import torch
from torch.nn.functional import scaled_dot_product_attention

print(f"torch {torch.__version__}")
fault = False
for dtype, size in ((torch.float16, 4e4), (torch.bfloat16, 3e38), (torch.float32, 3e38)):
    key = torch.zeros(1, 1, 0, 1, dtype=dtype)
    found = {}
    for rows in (1, 2):  # one such query has a finite sum, two have not
        query = torch.full((1, 1, rows, 1), size, dtype=dtype)
        assert bool(query.isfinite().all())
        found[rows] = scaled_dot_product_attention(query, key, key).flatten().tolist()
    far = torch.tensor([size, size, 0.0], dtype=dtype).reshape(3, 1, 1, 1)  # three sequences: the last is nothing but a zero
    apart = scaled_dot_product_attention(far, key.expand(3, 1, 0, 1), key.expand(3, 1, 0, 1)).flatten().tolist()
    print(f"{dtype}: one query of {size:g} gives {found[1]}, two give {found[2]}; "
          f"a batch of {size:g}, {size:g} and 0 gives {apart}")
    fault |= found[1] == [0.0] and found[2] != [0.0, 0.0]
raise SystemExit(int(fault))
