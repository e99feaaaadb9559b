"""pixel_unshuffle and pixel_shuffle, torch 2.13: an empty batch comes back in its own shape.

Run: python pixel_unshuffle_empty.py    exits with 1 while the fault is there
"""
import torch
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

print(f"torch {torch.__version__}")
fault = False
for function, shape in ((pixel_unshuffle, (1, 2, 2)), (pixel_shuffle, (4, 1, 1))):
    one, none = (tuple(function(torch.zeros(batch, *shape), 2).shape) for batch in (1, 0))
    print(f"{function.__name__}: one image of {shape} gives {one}, none gives {none}, should be {(0, *one[1:])}")
    fault |= none != (0, *one[1:])
raise SystemExit(int(fault))
