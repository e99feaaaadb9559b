"""litgpt 0.5.13: the frequencies of rotary embeddings under YaRN.

Run: python litgpt_yarn.py    exits with 1 while the fault is there
"""
import math
from importlib.metadata import version

import torch
from litgpt.model import build_rope_cache

WIDTH, BASE, FACTOR, LENGTH, FAST, SLOW = 64, 10000, 16.0, 4096, 32.0, 1.0

extra = {"factor": FACTOR, "beta_fast": FAST, "beta_slow": SLOW, "original_max_seq_len": LENGTH}
cos, sin = build_rope_cache(2, WIDTH, base=BASE, extra_config=extra)
angles = torch.atan2(sin[1].double(), cos[1].double())[: WIDTH // 2]  # at position 1 the angle is the frequency

print(f"litgpt {version('litgpt')}, torch {torch.__version__}; frequency / unscaled frequency, 1 to 1/{FACTOR:g}")
fault = False
for i in (0, 8, 24, 31):
    plain = BASE ** (-2 * i / WIDTH)
    turns = LENGTH * plain / (2 * math.pi)  # how often the pair turns within the original length
    right = 1.0 if turns > FAST else 1.0 / FACTOR  # pairs between SLOW and FAST turns, which are blended, are left out here
    assert turns > FAST or turns < SLOW
    found = angles[i].item() / plain
    print(f"pair {i:2}: {turns:9.3f} turns: {found:.4f}, expected {right:.4f}")
    fault |= abs(math.log(found / right)) > math.log(FACTOR) / 2
raise SystemExit(int(fault))
