"""SwiftFormer, transformers 5.24: the weights of its additive attention are a softmax over an axis of length 1.

Run: python swiftformer_weights.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import SwiftFormerConfig
from transformers.models.swiftformer.modeling_swiftformer import SwiftFormerEfficientAdditiveAttention

torch.manual_seed(0)
attention = SwiftFormerEfficientAdditiveAttention(SwiftFormerConfig(), 8)
x = torch.randn(2, 5, 8)

print(f"transformers {transformers.__version__}, torch {torch.__version__}")
out = attention(x)
out.sum().backward()
gradient = attention.w_g.grad.abs().max().item()
with torch.no_grad():
    attention.w_g.mul_(-100)
    same = torch.equal(attention(x), out)
print(f"largest gradient of w_g: {gradient}; output with w_g times -100 is the same, bit for bit: {same}")
raise SystemExit(int(gradient == 0 and same))
