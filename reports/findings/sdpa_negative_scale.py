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
        scores = (query.double() @ key.double().mT * scale).masked_fill(~keep, float("-inf"))
        right = scores.softmax(-1) @ value.double()
        flag = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale)
        mask = scaled_dot_product_attention(query, key, value, attn_mask=keep, scale=scale)
        far = {name: float((out.double() - right).abs().max()) for name, out in (("is_causal", flag), ("attn_mask", mask))}
        print(f"{dtype} scale={scale}: largest error {far['is_causal']:.1e} by is_causal, {far['attn_mask']:.1e} by attn_mask")
        assert far["attn_mask"] < 0.05
        fault |= not far["is_causal"] < 0.05
raise SystemExit(int(fault))
