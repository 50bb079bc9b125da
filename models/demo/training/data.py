"""Training batches: rows of token ids, loss weights and positions.

Batch number n of a stage depends only on (seed, stage, n), so an interrupted run goes on with
exactly the batches it would have seen.
"""

import multiprocessing
import random

import numpy as np

from . import stories, tasks
from .tokenizer import BOS, EOS, IM_END, SPECIALS

MAX_POSITION = 8192
# Sum of the loss weights of a row, per token of the row.
ROW_SHARE = 0.1


class Encoder:
    """Turns (text, weight) pieces into ids and one weight per token."""

    def __init__(self, tok):
        self.tok = tok
        self.bos = tok.token_to_id(BOS)
        self.eos = tok.token_to_id(EOS)
        self.special_ids = {tok.token_to_id(s) for s in SPECIALS}
        obvious = [EOS, IM_END, "\u0120", ".", ",", "-"]
        self.obvious_ids = np.array([tok.token_to_id(t) for t in obvious], dtype=np.int32)
        self.plain_ids = np.array([i for i in range(tok.get_vocab_size())
                                   if i not in self.special_ids], dtype=np.int32)

    def _stretch(self, pieces):
        """One text encoded at once; a token belongs to the piece that it starts in."""
        encoding = self.tok.encode("".join(t for t, _ in pieces), add_special_tokens=False)
        ends = np.cumsum([len(t) for t, _ in pieces])
        weights = np.array([w for _, w in pieces], dtype=np.float32)
        starts = np.array([a for a, _ in encoding.offsets], dtype=np.int64)
        index = np.searchsorted(ends, starts, side="right")
        return np.array(encoding.ids, dtype=np.int32), weights[index]

    def pieces(self, pieces):
        ids, weights, stretch = [[self.bos]], [[0.0]], []
        for piece in [*pieces, tasks.BREAK]:
            if piece is not tasks.BREAK:
                stretch.append(piece)
            elif stretch:
                new_ids, new_weights = self._stretch(stretch)
                ids.append(new_ids)
                weights.append(new_weights)
                stretch = []
        return (np.concatenate(ids).astype(np.int32), np.concatenate(weights).astype(np.float32))

    def repeats(self, rng, length):
        """Random tokens among which earlier spans come back; the loss is on what is predictable."""
        np_rng = np.random.default_rng(rng.getrandbits(63))
        if rng.random() < 0.3:
            alphabet = np_rng.choice(self.plain_ids, size=rng.choice([8, 16, 64, 256, 1024]))
        else:
            alphabet = self.plain_ids
        ids = np_rng.choice(alphabet, size=length).astype(np.int32)
        weights = np.zeros(length, dtype=np.float32)
        skip = 1 if len(alphabet) > 1000 else 3 if len(alphabet) > 32 else 6
        at = max(8, int(length * rng.uniform(0.1, 0.5)))
        while at < length:
            span = min(rng.randrange(skip + 3, 48 if rng.random() < 0.8 else 200), length - at, at)
            source = rng.randrange(0, at - span + 1)
            ids[at:at + span] = ids[source:source + span]
            weights[at + skip:at + span] = 0.5
            at += span + (rng.randrange(0, 8) if rng.random() < 0.3 else 0)
        ids[0] = self.bos
        weights[0] = 0.0
        return ids, weights


def _document(kind, rng, encoder, length, prose):
    if kind == "repeats":
        return encoder.repeats(rng, length)
    if kind == "prose" and prose:
        at, text = rng.randrange(len(prose)), []
        while sum(map(len, text)) < 3.3 * length:
            text.append(prose[at % len(prose)])
            at += 1
        return encoder.pieces([("\n\n".join(text), stories.LANGUAGE_WEIGHT)])
    if kind == "chat":
        return encoder.pieces(stories.chat(rng))
    if kind in ("story", "prose"):
        return encoder.pieces(stories.plain(rng))
    budget = length - 8
    if kind == "niah":
        return encoder.pieces(tasks.niah(rng, budget))
    if kind == "needles":
        return encoder.pieces(tasks.niah(rng, budget, hay="needle", key_kind="pair",
                                         value_kind="number", keys_per_question=1))
    if kind == "uuids":
        return encoder.pieces(tasks.niah(rng, budget, hay="needle", key_kind="uuid",
                                         value_kind="uuid", keys_per_question=1))
    if kind == "single":
        return encoder.pieces(tasks.niah(rng, budget, hay=rng.choice(["noise", "essay"]),
                                         needle_count=rng.choice([1, 1, 2, 4, 8]), per_key=1,
                                         value_kind="number", question_count=2,
                                         keys_per_question=1))
    if kind == "vt":
        return encoder.pieces(tasks.variable_tracking(rng, budget))
    raise ValueError(f"unknown kind of training document: {kind}")


def _row(rng, encoder, length, mix, prose):
    """length + 1 tokens: documents of one kind until the row is full."""
    kind = rng.choices(list(mix), weights=list(mix.values()))[0]
    ids, weights, total = [], [], 0
    while total < length + 1:
        if total and length + 1 - total < 60 and kind not in ("chat", "story", "prose"):
            kind = "repeats"
        new_ids, new_weights = _document(kind, rng, encoder, length + 1 - total, prose)
        ids.append(new_ids)
        weights.append(new_weights)
        total += len(new_ids)
        if kind not in ("chat", "story", "prose", "repeats") and length + 1 - total < length // 2:
            kind = rng.choice(["vt", "chat", "story"])
    ids, weights = np.concatenate(ids)[:length + 1], np.concatenate(weights)[:length + 1]
    return ids, _balanced(encoder, ids, weights)


def _balanced(encoder, ids, weights):
    """Give every row about the same share of the loss, and little of it to obvious tokens."""
    weights = np.where((weights > 0.9) & np.isin(ids, encoder.obvious_ids), 0.2, weights)
    total = weights[1:].sum()
    if total == 0.0:
        return weights
    return (weights * np.clip(ROW_SHARE * len(ids) / total, 0.1, 8.0)).astype(np.float32)


def _positions(rng, length, gap_share):
    """0..length-1, or the same with one to three gaps, so that short rows see long distances."""
    positions = np.arange(length, dtype=np.int32)
    slack = MAX_POSITION - length
    if slack <= 0 or rng.random() >= gap_share:
        return positions
    for _ in range(rng.choice([1, 1, 2, 3])):
        gap = int(slack * rng.random() ** 1.5)
        slack -= gap
        positions[rng.randrange(1, length):] += gap
    return positions


def make_batch(stream, index, encoder, spec, prose):
    """Batch `index` of the stream (seed, stage)."""
    rng = random.Random(f"{stream}-{index}")
    length, rows, _ = rng.choices(spec["shapes"], weights=[s[2] for s in spec["shapes"]])[0]
    ids = np.empty((rows, length + 1), dtype=np.int32)
    weights = np.empty((rows, length + 1), dtype=np.float32)
    positions = np.empty((rows, length), dtype=np.int32)
    for row in range(rows):
        ids[row], weights[row] = _row(rng, encoder, length, spec["mix"], prose)
        positions[row] = _positions(rng, length, spec.get("gaps", 0.0))
    return ids, weights, positions


def _produce(queue, stream, first, count, encoder, spec, prose):
    for index in range(first, count):
        queue.put((index, make_batch(stream, index, encoder, spec, prose)))
    queue.put(None)


def batches(stream, first, count, encoder, spec, prose):
    """Yield (index, batch) made ahead of time by one other process."""
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=6)
    worker = context.Process(target=_produce, daemon=True,
                             args=(queue, stream, first, count, encoder, spec, prose))
    worker.start()
    try:
        while (item := queue.get()) is not None:
            yield item
    finally:
        worker.terminate()
        worker.join()
