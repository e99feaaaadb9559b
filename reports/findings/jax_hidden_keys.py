"""jax 0.10: a query whose visible keys all have a bias of -inf attends to the keys that its mask hides.

Run: python jax_hidden_keys.py    exits with 1 while the fault is there
"""
import sys

import jax
import jax.numpy as jnp

print(f"jax {jax.__version__}")
q, k = jnp.zeros((1, 1, 1, 1)), jnp.zeros((1, 3, 1, 1))
v = jnp.array([1.0, 10.0, 100.0]).reshape(1, 3, 1, 1)
mask = jnp.array([False, True, True]).reshape(1, 1, 1, 3)
hidden = jnp.array([0.0, -jnp.inf, -jnp.inf]).reshape(1, 1, 1, 3)
found = {}
for name, options in {
    "the mask alone, all keys": {"mask": mask & False},
    "the bias alone, all keys": {"bias": hidden - jnp.inf},
    "the mask the first key, the bias the others": {"mask": mask, "bias": hidden},
}.items():
    found[name] = float(jax.nn.dot_product_attention(q, k, v, **options).reshape(()))
    print(f"values 1, 10, 100, hidden by {name}: {found[name]}")
sys.exit(int(found["the mask the first key, the bias the others"] == 1.0))
