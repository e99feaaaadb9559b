"""Liger-Kernel 0.8: the gradient of cross-entropy is the logits themselves where these do not lie row by row in memory.

Run: TRITON_INTERPRET=1 python liger_cross_entropy_strides.py    exits with 1 while the fault is there; with a GPU, without it
"""
import sys
from importlib.metadata import version

import torch
import torch.nn.functional as F
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

print(f"liger-kernel {version('liger-kernel')}, triton {version('triton')}, torch {torch.__version__}")
device = "cuda" if torch.cuda.is_available() else "cpu"
drawn, targets = torch.tensor([[1.0, 2.0, 4.0], [3.0, 0.0, 5.0]], device=device), torch.tensor([0, 2], device=device)
wrong = False
for layout, logits in (("rows", drawn.clone()), ("columns", drawn.mT.contiguous().mT)):
    (right,) = torch.autograd.grad(F.cross_entropy(leaf := drawn.clone().requires_grad_(), targets), leaf)
    leaf = logits.requires_grad_()
    (found,) = torch.autograd.grad(LigerCrossEntropyFunction.apply(leaf, targets, None)[0], leaf)
    print(f"logits in memory by {layout}: gradient {found.tolist()}")
    wrong |= not torch.allclose(found, right, atol=1e-6)
print(f"right: {right.tolist()}, however the logits lie")
sys.exit(int(wrong))
