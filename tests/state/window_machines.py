"""State of key/value caches: windows whose oldest keys are let go, and blocks that are shared, copied and freed."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from held import Machine, formula, source, within
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, precondition, rule
from torch import Tensor

HEADS, GROUPS, WIDTH = 2, 1, 4


class WindowMachine(Machine):
    """However the cache was cut, new queries give what attention over all keys within the window gives."""

    @initialize(window=st.integers(1, 4), rows=st.integers(1, 2))
    def start(self, window: int, rows: int) -> None:
        self.window, self.drawn = window, 0
        self.k, self.v = (torch.zeros(rows, GROUPS, 0, WIDTH) for _ in range(2))
        self.gone = 0  # oldest keys that the cache no longer has

    @rule(size=st.integers(1, 4))
    def append(self, size: int) -> None:
        """New tokens, and the answers to their queries."""
        self.drawn += 1
        new = torch.randn(3, len(self.k), HEADS, size, WIDTH, generator=source(self.drawn))
        self.k, self.v = (torch.cat([held, one[:, :GROUPS]], 2) for held, one in zip((self.k, self.v), new[1:], strict=True))
        options = {"causal": True, "window": self.window}
        found = self.make(new[0], self.k[:, :, self.gone:], self.v[:, :, self.gone:], **options)
        within(found, formula("attention", {"q": new[0], "k": self.k, "v": self.v, **options})[0],
               f"{size} new tokens, {self.k.shape[2] - self.gone} of {self.k.shape[2]} keys cached, window {self.window}")

    @rule(keep=st.integers(0, 3))
    def evict(self, keep: int) -> None:
        """Keys that no later query sees are let go, all of them or but for a few."""
        reach = self.k.shape[2] - (self.window - 1)
        self.gone = max(self.gone, reach - keep)

    @rule(chosen=st.lists(st.integers(0, 1), min_size=1, max_size=2))
    def reorder_beams(self, chosen: list[int]) -> None:
        rows = torch.tensor(chosen) % len(self.k)
        self.k, self.v = self.k[rows], self.v[rows]


@dataclass(eq=False)
class Paged:
    """A sequence: its blocks, and its keys and values as they came."""

    blocks: list[int] = field(default_factory=list)
    k: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)


class BlocksMachine(Machine):
    """Whatever was appended, forked, freed and moved, each sequence attends to its own tokens."""

    sequences = Bundle("sequences")
    room, size = 24, 2

    @initialize()
    def start(self) -> None:
        self.drawn = 0
        self.cache = [torch.randn(self.room, self.size, GROUPS, WIDTH, generator=source(n)) for n in (1, 2)]
        self.users = [0] * self.room
        self.alive: list[Paged] = []

    @rule(target=sequences)
    def begin(self) -> Paged:
        self.alive.append(Paged())
        return self.extended(self.alive[-1])

    @rule(sequence=sequences)
    def append(self, sequence: Paged) -> None:
        if sequence in self.alive:
            self.extended(sequence)

    @rule(target=sequences, sequence=sequences)
    def fork(self, sequence: Paged) -> Paged:
        """Blocks are shared until one side writes."""
        twin = Paged(list(sequence.blocks), list(sequence.k), list(sequence.v))
        if sequence in self.alive:
            self.alive.append(twin)
            for block in twin.blocks:
                self.users[block] += 1
        return twin

    @rule(sequence=sequences)
    def free(self, sequence: Paged) -> None:
        """Its blocks go back; whoever takes them finds old content."""
        if sequence in self.alive:
            self.alive.remove(sequence)
            for block in sequence.blocks:
                self.users[block] -= 1

    @precondition(lambda self: self.alive)
    @rule(seed=st.integers(0, 3))
    def move_blocks(self, seed: int) -> None:
        """All blocks change places, and the tables with them."""
        order = torch.randperm(self.room, generator=source(seed))
        place = torch.argsort(order).tolist()
        self.cache = [one[order] for one in self.cache]
        self.users = [self.users[old] for old in order.tolist()]
        for sequence in self.alive:
            sequence.blocks = [place[block] for block in sequence.blocks]

    @invariant()
    def every_sequence_attends_to_its_own_tokens(self) -> None:
        if not getattr(self, "alive", None):
            return
        longest = max(len(one.blocks) for one in self.alive)
        table = torch.tensor([one.blocks + [0] * (longest - len(one.blocks)) for one in self.alive], dtype=torch.int32)
        lengths = torch.tensor([len(one.k) for one in self.alive], dtype=torch.int32)
        q = torch.randn(len(self.alive), HEADS, WIDTH, generator=source(self.drawn))
        found = self.make(q, *(one.clone() for one in self.cache), table, lengths)
        for b, one in enumerate(self.alive):
            k, v = (torch.stack(rows)[None] for rows in (one.k, one.v))  # (1,n,G,D): one block holds it all
            alone = {"q": q[b : b + 1], "k_cache": k, "v_cache": v, "block_table": torch.zeros(1, 1, dtype=torch.int32),
                     "lengths": lengths[b : b + 1]}
            within(found[b : b + 1], formula("paged_attention", alone)[0], f"sequence {b} of {len(one.k)} tokens")

    def extended(self, sequence: Paged) -> Paged:
        """One more token; a shared block is copied before it is written."""
        slot = len(sequence.k) % self.size
        if slot == 0 or self.users[sequence.blocks[-1]] > 1:
            free = [block for block, users in enumerate(self.users) if not users]
            if not free:
                return sequence
            if slot:
                old = sequence.blocks.pop()
                self.users[old] -= 1
                for one in self.cache:
                    one[free[0]] = one[old]
            self.users[free[0]] += 1
            sequence.blocks.append(free[0])
        self.drawn += 1
        new = torch.randn(2, GROUPS, WIDTH, generator=source(100 + self.drawn))
        for one, token, log in zip(self.cache, new, (sequence.k, sequence.v), strict=True):
            one[sequence.blocks[-1], slot] = token
            log.append(token)
        return sequence
