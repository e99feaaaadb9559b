"""scaled_dot_product_attention, torch 2.13: is_causal with a scale of zero or below gives NaN; the same mask as a tensor does not.

Run: python sdpa_negative_scale.py    exits with 1 while the fault is there
"""
import torch
from torch.nn.functional import scaled_dot_product_attention

print(f"torch {torch.__version__}")
fault = False
keep = torch.ones(3, 3, dtype=torch.bool).tril()
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    query, key, value = torch.randn(3, 1, 1, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    for scale in (0.5, 0.0, -0.5):
        flag = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        mask = scaled_dot_product_attention(query, key, value, attn_mask=keep, scale=scale)
        print(f"{dtype} scale={scale}: {int(flag.isnan().sum())} of {flag.numel()} elements are NaN by is_causal, "
              f"{int(mask.isnan().sum())} by attn_mask; the last row is {flag[..., -1, :].flatten().tolist()}, "
              f"{mask[..., -1, :].flatten().tolist()}")
        assert bool(mask.isfinite().all())
        fault |= bool(flag.isnan().any())
raise SystemExit(int(fault))
