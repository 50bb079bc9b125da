"""Held-out accuracy. Exact match of greedy decoding, measured in one forward pass.

An answer is right when the most likely token at every one of its positions is the answer's
token; greedy decoding writes exactly that answer then, and another one otherwise.
"""

import random

import torch

from . import tasks
from .tokenizer import EOS, IM_END

CELLS = {
    "single": {"hay": "noise", "needle_count": 1},
    "single_essay": {"hay": "essay", "needle_count": 1},
    "multikey_2": {"hay": "needle"},
    "multikey_3": {"hay": "needle", "key_kind": "uuid", "value_kind": "uuid"},
    "vt": None,
}


def sample(cell, seed, length, style, questions=1):
    rng = random.Random(f"evaluation-{cell}-{seed}-{length}-{style}")
    args = CELLS[cell]
    if args is None:
        return tasks.variable_tracking(rng, length - 8, style=style, example=True)
    args = {"key_kind": "pair", "value_kind": "number", **args}
    return tasks.niah(rng, length - 8, style=style, per_key=1, keys_per_question=1,
                      question_count=questions, **args)


@torch.no_grad()
def answers_right(model, encoder, pieces):
    """For every answer of the sequence: whether greedy decoding would write it exactly."""
    ids, weights = encoder.pieces(pieces)
    ids, weights = torch.from_numpy(ids).long(), torch.from_numpy(weights)
    hidden = model.hidden(ids[None, :-1], torch.arange(len(ids) - 1)[None], torch.bfloat16)[0]
    where = (weights[1:] > 0.5).nonzero()[:, 0]
    good = model.logits(hidden[where]).argmax(-1) == ids[1:][where]
    ends = {encoder.tok.token_to_id(EOS), encoder.tok.token_to_id(IM_END)}
    results, right = [], True
    for position, ok in zip(where.tolist(), good.tolist()):
        if ids[position + 1].item() in ends:
            results.append(right)
            right = True
        else:
            right = right and ok
    if not ids[-1].item() in ends and where.numel() and not results:
        results.append(right)
    return results


def cell_accuracy(model, encoder, cell, length, count, questions, styles=("plain", "chat_prefix")):
    """(right, asked) over count sequences, half of them in each style."""
    right = asked = 0
    for i in range(count):
        pieces = sample(cell, i, length, styles[i % len(styles)], questions)
        got = answers_right(model, encoder, pieces)
        right += sum(got)
        asked += len(got)
    return right, asked


def quick_table(model, encoder, length):
    """One line of accuracies for the training log."""
    out = []
    for cell in CELLS:
        count, questions = (4, 6) if cell.startswith("multikey") else (8, 1)
        if length >= 4096:
            count = max(2, count // 2)
        right, asked = cell_accuracy(model, encoder, cell, length, count, questions)
        out.append(f"{cell} {right}/{asked}")
    return ", ".join(out)
