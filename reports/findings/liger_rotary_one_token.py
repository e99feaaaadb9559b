"""Liger-Kernel 0.8: with one token (a decoding step) the rotary embedding of a batch turns the wrong rows, others not at all.

Run: TRITON_INTERPRET=1 python liger_rotary_one_token.py    exits with 1 while the fault is there; with a GPU, without the variable
"""
import sys
from importlib.metadata import version

import torch
from liger_kernel.ops.rope import LigerRopeFunction

print(f"liger-kernel {version('liger-kernel')}, triton {version('triton')}, torch {torch.__version__}")
device = "cuda" if torch.cuda.is_available() else "cpu"
drawn = torch.Generator().manual_seed(0)
angles = torch.tensor([[[1.0, 0.5, 1.0, 0.5]]], device=device)  # (1, T, D) of one token


def turned(x: torch.Tensor) -> torch.Tensor:
    """The rotation of Hugging Face's Llama, by its formula."""
    first, second = x.chunk(2, -1)
    return x * angles.cos()[:, None] + torch.cat([-second, first], -1) * angles.sin()[:, None]


wrong = False
for name, q in (("(B,H,T,D) in memory", torch.randn(3, 2, 1, 4, generator=drawn).to(device)),
                ("(B,T,H,D) in memory", torch.randn(3, 1, 2, 4, generator=drawn).to(device).transpose(1, 2))):
    right = turned(q)
    found = LigerRopeFunction.apply(q.clone(), q.clone(), angles.cos(), angles.sin())[0]
    off = (found - right).abs().amax((2, 3))
    print(f"three queries of one token, two heads, {name}: off by at most, (B, H)\n{off}")
    wrong |= not torch.allclose(found, right, atol=1e-5)
print("right: 0 everywhere, however the queries lie in memory")
sys.exit(int(wrong))
