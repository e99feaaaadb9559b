"""ProphetNet, transformers 5.24: the decoder's logits at a token depend on later tokens and on how many there are.

Run: python prophetnet_future.py    exits with 1 while the fault is there
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import ProphetNetConfig, ProphetNetForCausalLM

config = ProphetNetConfig(
    vocab_size=97, hidden_size=32, decoder_ffn_dim=48, num_decoder_layers=2, num_decoder_attention_heads=4,
    max_position_embeddings=64, is_decoder=True, add_cross_attention=False,
    dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, init_std=0.5)
torch.manual_seed(0)
model = ProphetNetForCausalLM(config).eval()
ids = torch.tensor([[5, 17, 42, 8, 63, 29]])
other = torch.cat([ids[:, :2], torch.tensor([[50]]), ids[:, 3:]], 1)  # another third token


def apart() -> tuple[float, float]:
    """What the third token changes at the first two, and what four tokens less behind them change."""
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits[:, :2]
        return ((model(other, use_cache=False).logits[:, :2] - whole).abs().max().item(),
                (model(ids[:, :2], use_cache=False).logits - whole).abs().max().item())


print(f"transformers {transformers.__version__}, torch {torch.__version__}")
later, length = apart()
print(f"logits of the first two tokens: another third token changes them by {later:.1e}, four tokens less by {length:.1e}")
for layer in model.prophetnet.decoder.layers:
    layer.self_attn.relative_pos_embeddings.weight.data.zero_()
    layer.self_attn.relative_pos_embeddings.bias.data.zero_()
plain, shorter = apart()
print(f"with relative_pos_embeddings set to zero: by {plain:.1e} and {shorter:.1e}")
raise SystemExit(int(later > 0 and plain == 0))
