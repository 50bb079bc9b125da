"""Makes tests/golden/demo/expected.json: what transformers computes with the bundled model.

    python3 make_demo.py [--model DIRECTORY] [--out FILE]      needs torch and transformers

Run it again whenever models/demo/model.safetensors changes. The file:

    format        1
    made_with     versions of torch and transformers
    model_sha256  of model.safetensors: the numbers hold for these weights only
    vocab         columns of the logits
    top           number of most likely tokens kept per position (20)
    cases         a list of
        name             what the prompt is
        prompt           token ids, beginning-of-text included
        positions        positions in the prompt that are kept, ascending: all of them up to 500
                         tokens; in longer prompts every 64th and the last 32
        top_ids          [positions][top] most likely next tokens there, most likely first
        top_logprobs     [positions][top] their natural-log probabilities, rounded to 1e-5
        greedy           ids that greedy decoding appends to the prompt, to the first end token
                         (included) or 48 tokens; empty where the prompt fills the context
        greedy_logprobs  [greedy] log probability of each of them
        greedy_margins   [greedy] by how much its logit leads the second best

Everything is computed in float32 from the stored bf16 weights, with transformers' attention.
Tokens whose margin is small may come out otherwise where keys and values are 16 bits.
"""

import argparse
import hashlib
import json
import pathlib
import random
import sys

import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "models" / "demo"))

from training import stories, tasks  # noqa: E402
from training.tokenizer import BOS, IM_END, IM_START  # noqa: E402

TOP = 20
GREEDY_TOKENS = 48
CONTEXT = 8192
WHOLE = 500  # up to this many tokens every position is kept
EVERY, LAST = 64, 32


def exact(tok, length, body, tail):
    """Ids of length tokens: BOS, as much of the body as fits, the tail."""
    encode = lambda text: tok.encode(text, add_special_tokens=False).ids  # noqa: E731
    head, end = encode(BOS + body), encode(tail)
    room = length - len(end)
    if len(head) < room:
        raise SystemExit(f"the body has {len(head)} tokens, {room} are needed")
    return head[:room] + end


def needles(length, rng, kind):
    """A text longer than length tokens made of needles, and a question about one of its first."""
    key_kind = "uuid" if kind == "uuid" else "pair"
    keys = {tasks.make_key(rng, key_kind): tasks.make_value(rng, kind) for _ in range(length // 12)}
    lines = [f"One of the special magic {kind}s for {k} is: {v}." for k, v in keys.items()]
    asked = list(keys)[len(keys) // 12]
    tail = (f".\nWhat is the special magic {kind} for {asked} mentioned in the provided text? "
            f"The special magic {kind} for {asked} mentioned in the provided text is")
    return "\n".join(lines), tail


def prompts(tok):
    rng = random.Random(20)
    story = " ".join(stories.story(rng) for _ in range(40))
    chat = (f"\n{IM_END}\n{IM_START}user\nPlease tell me a story.{IM_END}\n{IM_START}assistant\n")
    yield "begin of text alone", [tok.token_to_id(BOS)]
    yield "two tokens", exact(tok, 2, story, "")
    for length in (63, 64, 65):
        yield f"story of {length} tokens", exact(tok, length, story, "")
    yield "chat of 500 tokens", exact(tok, 500, f"{IM_START}user\n" + story, chat)
    yield "2048 tokens of numbers", exact(tok, 2048, *needles(2048, rng, "number"))
    yield "2048 tokens of uuids", exact(tok, 2048, *needles(2048, rng, "uuid"))
    yield "8128 tokens of numbers", exact(tok, CONTEXT - 64, *needles(CONTEXT, rng, "number"))
    yield "a full context of uuids", exact(tok, CONTEXT, *needles(CONTEXT, rng, "uuid"))


def kept_positions(length):
    if length <= WHOLE:
        return list(range(length))
    return sorted(set(range(0, length, EVERY)) | set(range(length - LAST, length)))


def rounded(values):
    return [round(v, 5) for v in values]


@torch.no_grad()
def case(model, name, prompt, ends):
    out = model(torch.tensor([prompt]), use_cache=True)
    positions = kept_positions(len(prompt))
    top = torch.log_softmax(out.logits[0, positions], -1).topk(TOP, dim=-1)
    greedy, logprobs, margins = [], [], []
    logits, cache = out.logits[0, -1], out.past_key_values
    while len(greedy) < min(GREEDY_TOKENS, CONTEXT - len(prompt)):
        best = logits.topk(2)
        token = best.indices[0].item()
        greedy.append(token)
        logprobs.append(torch.log_softmax(logits, -1)[token].item())
        margins.append((best.values[0] - best.values[1]).item())
        if token in ends:
            break
        out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        logits, cache = out.logits[0, -1], out.past_key_values
    return {
        "name": name,
        "prompt": prompt,
        "positions": positions,
        "top_ids": top.indices.tolist(),
        "top_logprobs": [rounded(row) for row in top.values.tolist()],
        "greedy": greedy,
        "greedy_logprobs": rounded(logprobs),
        "greedy_margins": rounded(margins),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "demo")
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent / "demo" / "expected.json")
    args = parser.parse_args()
    tok = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model.eval()
    cases = []
    for name, prompt in prompts(tok):
        cases.append(case(model, name, prompt, model.config.eos_token_id))
        said = tok.decode(cases[-1]["greedy"], skip_special_tokens=False)
        print(f"{name}: {len(prompt)} tokens, smallest margin "
              f"{min(cases[-1]['greedy_margins'], default=0):.3f}: {said!r}")
    weights = (args.model / "model.safetensors").read_bytes()
    expected = {
        "format": 1,
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "model_sha256": hashlib.sha256(weights).hexdigest(),
        "vocab": model.config.vocab_size,
        "top": TOP,
        "cases": cases,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(expected, separators=(",", ":")) + "\n")
    print(f"{args.out}: {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
