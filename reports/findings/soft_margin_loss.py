"""torch: `soft_margin_loss` of a large negative margin.

Run: python soft_margin_loss.py    exits with 1 while the fault is there
"""
import torch
import torch.nn.functional as F

print(f"torch {torch.__version__}")
fault = False
for margin in (-80.0, -100.0, -1024.0):
    x = torch.tensor([margin], requires_grad=True)
    loss = F.soft_margin_loss(x, torch.ones(1))
    loss.backward()
    print(f"margin {margin:g}: loss {loss.item()}, gradient {x.grad.item()}; expected {-margin:g}, -1; "
          f"-logsigmoid gives {-F.logsigmoid(torch.tensor(margin)).item()}")
    fault |= not bool(loss.isfinite()) or not bool(x.grad.isfinite().all())
raise SystemExit(int(fault))
