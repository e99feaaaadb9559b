"""labml-nn: layer and batch normalisation where the mean is large beside the deviation.

Run: python labml_layer_norm.py    exits with 1 while the fault is there
"""
from importlib.metadata import version

import torch
from labml_nn.normalization.batch_norm import BatchNorm
from labml_nn.normalization.layer_norm import LayerNorm

print(f"labml-nn {version('labml-nn')}, torch {torch.__version__}")
fault = False
for mean in (16.0, 1000.0, 10000.0):
    x = torch.tensor([[mean + 0.25, mean, mean, mean + 0.25]])  # exact in float32, and so are its mean and its deviations
    right = 0.125 / (0.125**2 + 1e-5) ** 0.5
    for module, given in ((LayerNorm(4, eps=1e-5), x), (BatchNorm(1, eps=1e-5), x.T)):
        found = module(given).flatten()[0].item()
        print(f"{type(module).__name__}, mean {mean:7g}: element 0 is {found}, expected {right:.7f}")
        fault |= not abs(found) <= 1.0  # the mean square is v / (v + eps), and all elements are as large: none is beyond 1
raise SystemExit(int(fault))
