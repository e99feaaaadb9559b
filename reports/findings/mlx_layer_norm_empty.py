"""MLX 0.32 on the CPU: the bias's gradient of `mx.fast.layer_norm` over no row at all is what was in memory, where it is 0.

Run: python mlx_layer_norm_empty.py    exits with 1 while the fault is there; torch only makes the arrays, and so uses memory
"""
import sys
from importlib.metadata import version

import mlx.core as mx
import torch

print(f"mlx {version('mlx')}, torch {torch.__version__}, {mx.default_device()}")
several = []
for _ in range(50):
    x, weight, bias, above = (mx.array(one) for one in (torch.zeros(2, 0, 3), torch.ones(3), torch.zeros(3), torch.zeros(2, 0, 3)))
    gradients = mx.vjp(lambda x, w, b: [mx.fast.layer_norm(x, w, b, 1e-5)], [x, weight, bias], [above])[1]
    mx.eval(gradients)
    several.append(gradients[2].tolist())
wrong = [one for one in several if any(one)]
print(f"gradient of the bias, a batch of 0: {len(wrong)} of {len(several)} times not 0, for one {wrong[-1] if wrong else None}")
print("right: [0.0, 0.0, 0.0], the sum over nothing")
sys.exit(int(bool(wrong)))
