#!/usr/bin/env python3
"""Make the bundled model from nothing: tokenizer, data, training, export.

    train.py --work DIR [--text-dir DIR ...] [--export DIR]

Runs on a CPU. Everything is seeded; an interrupted run continues from the last checkpoint in
the work directory when started again with the same arguments. Without --text-dir the prose share
of the data falls back to generated text.
"""

import argparse
import json
import random
import re
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from training import benchmark, data, evaluate, export, initialization, model as llama
from training import optimizer, prose, stories, tasks
from training import tokenizer as tokenization
from training.stages import STAGES

SEED = 20


def load_or_build_tokenizer(work, paragraphs):
    path = work / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    rng = random.Random(SEED)
    generated = []
    for _ in range(6000):
        generated.append(stories.plain(rng)[0][0])
        generated.append("".join(t for t, _ in stories.chat(rng)))
    for _ in range(150):
        for make in (tasks.niah, tasks.variable_tracking):
            generated.append("".join(t or "" for t, _ in make(rng, 600)))
    generated += benchmark.filler.take(rng, 4000)
    generated = [re.sub(r"<\|[a-z_]+\|>", "", text) for text in generated]
    sample = random.Random(SEED).sample(paragraphs, min(3000, len(paragraphs)))
    tok = tokenization.build(generated, sample)
    tokenization.save(tok, work)
    return tok


def loss_of(net, hidden_fn, batch):
    ids, weights, positions = (torch.from_numpy(x) for x in batch)
    ids = ids.long()
    hidden = hidden_fn(ids[:, :-1], positions, torch.bfloat16)
    target, weight = ids[:, 1:].reshape(-1), weights[:, 1:].reshape(-1)
    where = weight.nonzero()[:, 0]
    logits = net.logits(hidden.reshape(-1, hidden.shape[-1])[where])
    each = F.cross_entropy(logits.float(), target[where], reduction="none")
    weight = weight[where]
    good = (logits.argmax(-1) == target[where]).float()
    loss = (each * weight).sum() / weight.sum().clamp(min=1.0)
    return loss, ((good * weight).sum() / weight.sum().clamp(min=1.0)).item()


class Progress:
    """Prints a line now and then: bar, loss, accuracy per token, speed, time left."""

    def __init__(self, stage, steps):
        self.stage, self.steps = stage, steps
        self.smooth = {}
        self.mark, self.mark_step, self.tokens = time.time(), None, 0

    def _average(self, name, value):
        if value == value:
            self.smooth[name] = 0.95 * self.smooth.get(name, value) + 0.05 * value

    def step(self, index, loss, accuracy, tokens):
        if self.mark_step is None:
            self.mark_step = index
        self.tokens += tokens
        for name, value in (("loss", loss), ("right", accuracy)):
            self._average(name, value)
        elapsed = time.time() - self.mark
        if elapsed > 20 and index > self.mark_step:
            shown = " ".join(f"{name} {value:.3f}" for name, value in self.smooth.items())
            left = (self.steps - index) * elapsed / (index - self.mark_step)
            done = 20 * index // self.steps
            print(f"stage {self.stage} [{'#' * done:20s}] {index}/{self.steps} {shown} "
                  f"{self.tokens / elapsed:.0f} tok/s, {left / 60:.1f} min left", flush=True)
            self.mark, self.mark_step, self.tokens = time.time(), index, 0


def save_checkpoint(path, net, optimizers, stage, step, seconds):
    state = {"model": net.state_dict(), "optimizers": [o.state_dict() for o in optimizers],
             "stage": stage, "step": step, "seconds": seconds}
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def train_stage(net, hidden_fn, optimizers, encoder, paragraphs, stage, first, work, seconds):
    spec = STAGES[stage]
    muon, adam = optimizers
    progress = Progress(stage, spec["steps"])
    started = saved = evaluated = time.time()
    steps, (lr_first, lr_last) = spec["steps"], spec["lr"]
    for index, batch in data.batches((SEED, stage), first, steps, encoder, spec, paragraphs):
        lr = lr_first + (lr_last - lr_first) * index / steps
        lr *= min(1.0, (index + 1) / spec.get("warmup", 1))
        muon.param_groups[0]["lr"] = lr
        adam.param_groups[0]["lr"] = lr * spec["head"]
        loss, accuracy = loss_of(net, hidden_fn, batch)
        for o in optimizers:
            o.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(adam.param_groups[0]["params"], 1.0)
        for o in optimizers:
            o.step()
        progress.step(index, loss.item(), accuracy, batch[0].size)
        if time.time() - saved > 120 or index + 1 == steps:
            save_checkpoint(work / "checkpoint.pt", net, optimizers, stage, index + 1,
                            seconds + time.time() - started)
            saved = time.time()
        if time.time() - evaluated > 600 or index + 1 == steps:
            for length in spec["evaluate"]:
                print(f"stage {stage} step {index + 1} held out at {length}: "
                      f"{evaluate.quick_table(net, encoder, length)}", flush=True)
            evaluated = time.time()
    save_checkpoint(work / f"stage-{stage}.pt", net, optimizers, stage, steps,
                    seconds + time.time() - started)
    return seconds + time.time() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and tokenizer")
    parser.add_argument("--text-dir", action="append", default=[], help="public-domain prose")
    parser.add_argument("--export", type=Path, help="write the model directory here at the end")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(args.threads)

    paragraphs = prose.read(args.text_dir)
    encoder = data.Encoder(load_or_build_tokenizer(args.work, paragraphs))
    net = llama.Llama(llama.CONFIG)
    initialization.initialize(net, encoder.tok)
    initialization.freeze(net)
    optimizers = optimizer.make(net, weight_decay=0.02)
    stage, step, seconds = 0, 0, 0.0
    checkpoint = args.work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        net.load_state_dict(state["model"])
        for o, s in zip(optimizers, state["optimizers"]):
            o.load_state_dict(s)
        stage, step, seconds = state["stage"], state["step"], state["seconds"]
    count = sum(p.numel() for p in net.parameters())
    print(f"{count / 1e6:.2f}M parameters; {len(paragraphs)} paragraphs of prose; "
          f"from stage {stage} step {step}", flush=True)
    hidden_fn = net.hidden if args.no_compile else torch.compile(net.hidden, dynamic=False)
    while stage < len(STAGES):
        if step < STAGES[stage]["steps"]:
            print(f"stage {stage}: {json.dumps(STAGES[stage])}", flush=True)
            seconds = train_stage(net, hidden_fn, optimizers, encoder, paragraphs, stage, step,
                                  args.work, seconds)
        stage, step = stage + 1, 0
    if args.export:
        export.write(net, encoder.tok, args.export)
        print(f"exported after {seconds / 60:.0f} min of training")


if __name__ == "__main__":
    main()
