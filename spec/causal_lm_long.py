"""What must hold of a causal language model on sequences longer than the other properties draw: KV-1."""
from __future__ import annotations

from assay.cases import Example
from assay.spec.causal_lm import KEEPS, spec, steps_with_a_cache_give_what_one_pass_gives
from assay.spec.causal_lm_cases import model_of, same
from assay.subject import Subject


@spec.holds("KV-1", kills=("cache_of_thirty_two",), needs=("cache",), rests_on=(steps_with_a_cache_give_what_one_pass_gives,),
            given={"T": (40, 70, 36), "B": 1, "S": 1, "padding": "none", "weights": 0}, conventions=KEEPS, examples=0)
def long_sequences_in_steps_give_what_one_pass_gives(lm: Subject, example: Example) -> None:
    """Token by token beyond 32 and 64 tokens, where a cache that is too small, or turns round, would lose its oldest."""
    model = model_of(lm, example)
    ids = model.ids(example)
    whole = model.measured(ids)
    left, right = same(model.stepped(ids, None, range(1, ids.shape[1] + 1)), whole)
    assert left == right
