#!/usr/bin/env python3
"""Score a model directory on the benchmark tasks of clients/quality, greedily, in PyTorch.

    evaluate.py MODEL_DIR [--lengths 4096,8192] [--tasks niah_single_1,vt] [--samples 100] [--chat]

The samples are those that clients/quality makes for the same seed. KV and activations are bf16.
Prints one line per task and length: mean score, 95% interval (Wilson, from the mean), samples.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from training import benchmark
from training import model as llama
from training.tokenizer import BOS, EOS, IM_END, IM_START
from kvahead_quality.score import string_match_all


class Reader:
    """The model with its tokenizer; generate() is greedy decoding with a KV cache."""

    def __init__(self, directory):
        config = json.loads((directory / "config.json").read_text())
        self.net = llama.Llama(dict(llama.CONFIG, **config))
        weights = load_file(str(directory / "model.safetensors"))
        self.net.load_state_dict({name: w.float() for name, w in weights.items()})
        self.tok = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.ends = {self.tok.token_to_id(EOS), self.tok.token_to_id(IM_END)}

    def encode(self, text, chat):
        if chat:
            text = f"{IM_START}user\n{text.strip()}{IM_END}\n{IM_START}assistant\n"
        return self.tok.encode(BOS + text, add_special_tokens=False).ids

    @torch.no_grad()
    def generate(self, ids, max_tokens):
        cache, out, start = llama.Cache(), [], 0
        step = torch.tensor([ids])
        while len(out) < max_tokens:
            positions = torch.arange(start, start + step.shape[1])[None]
            hidden = self.net.hidden(step, positions, torch.bfloat16, cache)
            token = self.net.logits(hidden[:, -1]).argmax(-1).item()
            if token in self.ends:
                break
            out.append(token)
            start += step.shape[1]
            step = torch.tensor([[token]])
        return self.tok.decode(out, skip_special_tokens=False)


def interval(mean, count):
    """Wilson's 95% interval; for shares of references it is a little too wide."""
    z = 1.96
    middle = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(mean * (1 - mean) / count + z * z / (4 * count * count))
    half /= 1 + z * z / count
    return max(0.0, middle - half), min(1.0, middle + half)


def score(reader, task, length, seed, samples, chat):
    total, shown = 0.0, None
    count = lambda text: len(reader.encode(text, chat))  # noqa: E731
    for index in range(samples):
        sample = benchmark.fit(benchmark.TASKS[task], length, seed, index, count).sample
        said = reader.generate(reader.encode(sample.text, chat), sample.max_tokens)
        total += string_match_all(said, sample.references)
        shown = shown or (sample.references, said)
    return total / samples, shown


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--lengths", default="4096,8192")
    parser.add_argument("--tasks", default="niah_single_1,niah_multikey_2,niah_multikey_3,"
                                           "niah_multivalue,niah_multiquery,vt,cwe,fwe")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7001)
    parser.add_argument("--chat", action="store_true", help="prompts through the chat template")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="print the first answer of each cell")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    reader = Reader(args.model)
    for length in map(int, args.lengths.split(",")):
        for task in args.tasks.split(","):
            began = time.time()
            mean, shown = score(reader, task, length, args.seed, args.samples, args.chat)
            low, high = interval(mean, args.samples)
            print(f"{'chat ' if args.chat else 'plain'} {length:5d} {task:18s} {100 * mean:5.1f}% "
                  f"[{100 * low:.1f}, {100 * high:.1f}] n={args.samples} "
                  f"{time.time() - began:.0f}s", flush=True)
            if args.show:
                print("   ", shown, flush=True)


if __name__ == "__main__":
    main()
