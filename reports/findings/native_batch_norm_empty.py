"""torch 2.13: the gradient of `torch.native_batch_norm` over a batch of no rows kills the interpreter (division by zero).

Run: python native_batch_norm_empty.py    exits with 1 while the fault is there
"""
import subprocess
import sys

import torch

PROGRAM = """
import torch
x = torch.zeros(0, 3, requires_grad=True)
weight, bias = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
mean, var = torch.zeros(3), torch.ones(3)
if {native}:
    y = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.1, 1e-5)[0]
else:
    y = torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.1, 1e-5)
y.sum().backward()
print(x.grad.shape, weight.grad.tolist(), bias.grad.tolist())
"""

print(f"torch {torch.__version__}")
codes = {}
for native in (False, True):
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(native=native)], capture_output=True, text=True)
    name = "torch.native_batch_norm" if native else "torch.nn.functional.batch_norm"
    codes[native] = ended.returncode
    print(f"{name}: {ended.stdout.strip() or f'killed by signal {-ended.returncode}'}")
sys.exit(int(codes[False] == 0 and codes[True] != 0))
