"""The longest request that a cluster serves, by its servers:

    python3 tests/cluster/measure_context.py [--servers 1,2,4,8,20] [--tier 16] [--parts 2]

Servers of a model with 96 small layers and random weights, each with a device tier of --tier pages of 64 tokens; a request of
one of them gets longer by a --parts of a tier at a time, from half of all tiers on, until it is refused or not answered. Every
answer is compared with that of one server with memory enough. Needs the packages of tests/e2e/requirements.txt.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from cluster import Cluster  # noqa: E402
from conftest import Servers  # noqa: E402
from harness import PAGE_TOKENS, Server, command  # noqa: E402

SHAPE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 96, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 3584,
         "max_position_embeddings": 65536, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
TOKEN_BYTES = 96 * 2 * 2 * 32 * 2
OUTPUT = 24


def prompt_of(tokens: int) -> list[int]:
    return [100 + (j * j * 31 + j * 7) % 3000 for j in range(tokens)]


def longest(model: pathlib.Path, servers: int, tier: int, parts: int, expected) -> tuple[int, str]:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        started = Servers(folder)
        cluster = Cluster(started, folder)
        options = ("--device-memory", str(tier * TOKEN_BYTES), "--host-memory", "2G", "--threads", "1", "--cluster-lend", "100",
                   "--cluster-wait", "20s", "--sequences", "4", "--step-tokens", "64", "--waiting-time", "0")
        try:
            for _ in range(servers):
                cluster.start(*options, model=model)
            cluster.wait_complete()
            served = 0
            for tokens in range(max(servers // 2, 1) * tier, 32 * tier, tier // parts):
                reply = cluster.members[0].post("/v1/completions", {
                    "prompt": prompt_of(tokens - OUTPUT), "max_tokens": OUTPUT, "temperature": 0, "ignore_eos": True,
                    "return_token_ids": True})
                if reply.status != 200:
                    return served, reply.error()["message"]
                assert reply.json()["choices"][0]["token_ids"] == expected(tokens), "other tokens than one server's"
                served = tokens
            return served, ""
        finally:
            cluster.kill_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="1,2,4,8")
    parser.add_argument("--tier", type=int, default=16, help="pages")
    parser.add_argument("--parts", type=int, default=2)
    options = parser.parse_args()
    tier = options.tier * PAGE_TOKENS
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "shape.json").write_text(json.dumps(SHAPE))
        made = command("make-model", "--shape", folder / "shape.json", "--seed", "1", folder / "model")
        assert made.returncode == 0, made.stderr
        known: dict[int, list[int]] = {}
        with Server(folder / "large.log", ("--threads", "1"), model=folder / "model") as large:
            def expected(tokens: int) -> list[int]:
                if tokens not in known:
                    known[tokens] = large.tokens(prompt_of(tokens - OUTPUT), max_tokens=OUTPUT, ignore_eos=True)
                return known[tokens]

            print("| servers | longest request, tokens | of one tier | the next one |\n|---|---|---|---|", flush=True)
            for count in map(int, options.servers.split(",")):
                tokens, why = longest(folder / "model", count, tier, options.parts, expected)
                print(f"| {count} | {tokens} | {tokens / tier:.2f} | {why} |", flush=True)


if __name__ == "__main__":
    main()
