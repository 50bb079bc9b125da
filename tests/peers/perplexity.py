"""Perplexity of a text as llama.cpp's llama-perplexity takes it: the text's tokens are cut into pieces of so
many, and of each piece the second half counts.

    python perplexity.py --model FILE.gguf --text FILE [--kvahead build/kvahead] [--weights auto,bf16,...]
                         [--llama llama-perplexity] [--tokens 512] [--pieces N] [--threads N]

The tokens are kvahead's; llama-perplexity makes its own of the same file. No BOS is put before pieces: the
script refuses models that want one.
"""

import argparse
import json
import math
import re
import subprocess
import tempfile
import urllib.request


def token_ids(options):
    command = [options.kvahead, "tokenize", "--model", options.model, "--ids"]
    with open(options.text, encoding="utf-8") as text:
        plain, raw = (
            subprocess.run(command + extra, input=text.read(), capture_output=True, text=True, check=True).stdout
            for extra in ([], ["--raw"]) if not text.seek(0)
        )
    assert plain == raw, f"{options.model} wants a BOS"
    return list(map(int, plain.split()))


def log_probability(port, ids):
    """Of the second half of `ids`, each after all before it."""
    body = {"model": "m", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0, "cache_salt": str(ids[:8])}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        entries = json.load(answer)["choices"][0]["prompt_logprobs"]
    return sum(entries[i][str(ids[i])]["logprob"] for i in range(len(ids) // 2 + 1, len(ids)))


def ours(options, weights, pieces):
    command = [options.kvahead, "serve", "--model", options.model, "--model-name", "m", "--port", "0"]
    command += ["--weights", weights, "--context", str(options.tokens + 64), "--threads", str(options.threads)]
    command += ["--weights-cache", tempfile.gettempdir()] if weights.startswith("int") else []
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for line in server.stderr:
            if found := re.search(r"serving .*:(\d+) after", line):
                break
        else:
            raise SystemExit(f"kvahead ended with {server.wait()}")
        total = sum(log_probability(found[1], piece) for piece in pieces)
    finally:
        server.terminate()
        server.wait()
    return math.exp(-total / len(pieces) / (options.tokens - options.tokens // 2 - 1))


def theirs(options, count):
    command = [options.llama, "-m", options.model, "-f", options.text, "-c", str(options.tokens)]
    command += ["--chunks", str(count), "-t", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(re.search(r"PPL = ([\d.]+)", done.stdout + done.stderr)[1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--kvahead", default="build/kvahead")
    parser.add_argument("--weights", default="auto")
    parser.add_argument("--llama")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--pieces", type=int, default=1 << 20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    ids = token_ids(options)
    count = min(options.pieces, len(ids) // options.tokens)
    pieces = [ids[i * options.tokens:(i + 1) * options.tokens] for i in range(count)]
    print(f"{count} pieces of {options.tokens} tokens")
    if options.llama:
        print(f"llama.cpp {theirs(options, count):.4f}", flush=True)
    for weights in options.weights.split(","):
        print(f"kvahead {weights} {ours(options, weights, pieces):.4f}", flush=True)


main()
