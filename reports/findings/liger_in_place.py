"""Liger-Kernel 0.8: rotary embedding, SwiGLU and cross-entropy write over what they were given, and autograd is not told.

Run: TRITON_INTERPRET=1 python liger_in_place.py    exits with 1 while the fault is there; with a GPU, without the variable
"""
import sys
from importlib.metadata import version

import numpy
import torch
import triton.language as tl
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
from liger_kernel.ops.rope import LigerRopeFunction
from liger_kernel.ops.swiglu import LigerSiLUMulFunction
from triton.runtime import interpreter

print(f"liger-kernel {version('liger-kernel')}, triton {version('triton')}, torch {torch.__version__}")
own = interpreter._implicit_cvt  # the interpreter leaves floats to Python; the compiler makes float32 of them, which have `.to`
interpreter._implicit_cvt = lambda value: own(value) if not isinstance(value, float) else tl.tensor(
    interpreter.TensorHandle(numpy.array([value], dtype=numpy.float32), tl.float32), tl.float32)
device = "cuda" if torch.cuda.is_available() else "cpu"
drawn = torch.Generator().manual_seed(0)
angles = torch.arange(3.0, device=device)[None, :, None] * torch.ones(1, 1, 4, device=device)

# Queries of one layout are left alone, those of the other are not.
overwritten = {}
for layout in ("(B,H,T,D) in memory", "(B,T,H,D) in memory"):
    q = torch.randn(1, 2, 3, 4, generator=drawn).to(device)
    if layout.startswith("(B,T"):
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
    before, version_before = q.clone(), q._version
    LigerRopeFunction.apply(q, q.clone(), angles.cos(), angles.sin())
    overwritten[layout] = not torch.equal(q, before)
    print(f"rotary, queries {layout}: overwritten {overwritten[layout]}, autograd told {q._version > version_before}")

# What was saved for the gradient of q * q is not q any more: 2·q is the gradient.
q = torch.randn(1, 3, 2, 4, generator=drawn).to(device).transpose(1, 2).requires_grad_()
before = q.detach().clone()
square = (q * q).sum()
LigerRopeFunction.apply(q, q.detach().clone(), angles.cos(), angles.sin())
(found,) = torch.autograd.grad(square, q)
wrong = not torch.allclose(found, 2 * before)
print(f"gradient of the sum of q * q, taken after the rotation: off by {(found - 2 * before).abs().max():.3g}")

# The activations are overwritten by their gradients: the second backward through one graph starts from those.
gate, up = (torch.randn(2, 4, generator=drawn).to(device).requires_grad_() for _ in range(2))
kept = gate.detach().clone()
out = LigerSiLUMulFunction.apply(gate, up)
twice = [torch.autograd.grad(out.sum(), gate, retain_graph=True)[0].clone() for _ in range(2)]
print(f"SwiGLU, gradient of the gate twice through one graph: {(twice[0] - twice[1]).abs().max():.3g} apart; "
      f"gate overwritten {not torch.equal(gate, kept)}")

logits = torch.randn(2, 5, generator=drawn).to(device).requires_grad_()
before = logits.detach().clone()
LigerCrossEntropyFunction.apply(logits, torch.tensor([1, 2], device=device), None)
print(f"cross-entropy, logits overwritten by the forward: {not torch.equal(logits, before)}")
print("right: what is given to a function stays as it is, or autograd is told (mark_dirty), so that it can refuse")
sys.exit(int(wrong or not torch.equal(*twice)))
