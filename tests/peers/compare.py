"""kvahead and llama.cpp on the same weights, in turns: tokens/s, the ratios, and how near kvahead is to what the
machine gives.

    python compare.py --pair NAME OURS THEIRS.gguf [WEIGHTS] [--pair ...] [--rows prefill:512,decode:16:4096,...]
                      [--llama llama_speed] [--kvahead build/kvahead] [--threads N] [--rounds N] [--seconds S]

OURS is a checkpoint's folder or a GGUF file, which may be THEIRS; WEIGHTS is for `--weights` (default auto).
Tokens/s are of the best round, as others on the machine only take away; each round's are of the median step. A
row's roof is the slower of reading what a step reads at the memory's speed, and of doing its products at the
arithmetic's: of int8 where the matrices are packed, of bf16 otherwise, as `kvahead bench` measures both in the
same run. Resident memory is the peak of a process that loads the model and says a few tokens.
With --threads 1, times are processor time: for a machine that others use as well.
docs/results/cpu.md says how to get the files.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

ROWS = "prefill:512,prefill:2048,decode:1:0,decode:1:16384,decode:16:0,decode:16:4096"


def llama(options, gguf):
    """Tokens/s by row."""
    command = [options.llama, gguf, str(options.threads), str(options.seconds), *options.rows]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {row[0]: float(row[3]) for row in map(str.split, out.splitlines())}


def best_roofs(result):
    before, after = result["roofs_before"], result["roofs_after"]
    return {name: max(before[name], after[name]) for name in before}


def roof_of(row, roofs, packed):
    """Tokens/s that the machine would allow, and of what kind."""
    read = (row["weight_bytes"] + row["kv_bytes"] + row.get("fetched_bytes", 0)) / roofs["read_bytes_per_s"]
    products = roofs["int8_ops_per_s"] if packed else roofs["bf16_flops_per_s"]
    products = row["flops"] / (products or roofs["f32_flops_per_s"])
    tokens = row["prompt_tokens"] if row["what"] == "prefill" else row["batch"]
    return tokens / max(read, products), "read" if read > products else "products"


def kvahead(options, model, weights):
    """Tokens/s and roof by row. Batches have depths of their own: one run for each."""
    found = {}
    rows = [row.split(":") for row in options.rows]
    prefills = [row[1] for row in rows if row[0] == "prefill"]
    batches = {row[1]: [other[2] for other in rows if other[0] == "decode" and other[1] == row[1]]
               for row in rows if row[0] == "decode"}
    runs = [("1", batches.pop("1", []), prefills)] + [(batch, depths, []) for batch, depths in batches.items()]
    for batch, depths, prompts in runs:
        if not depths and not prompts:
            continue
        command = [options.kvahead, "bench", model, "--weights", weights, "--json", "-", "--no-mixed"]
        command += ["--threads", str(options.threads), "--batch", batch, "--depth", ",".join(depths) or "0"]
        command += ["--cpu-time"] if options.threads == 1 else []
        command += ["--prefill", ",".join(prompts) or "0", "--repetitions", "200", "--row-time", f"{options.seconds}s"]
        result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        roofs = best_roofs(result)
        packed = weights.startswith("int") or (weights == "auto" and model.endswith(".gguf"))
        for row in result["rows"]:
            if row["what"] == "prefill":
                name, speed = f"prefill:{row['prompt_tokens']}", row.get("prefill_tokens_per_s")
            else:
                name, speed = f"decode:{row['batch']}:{row['depth']}", row.get("decode_tokens_per_s")
            if speed:
                found[name] = speed, *roof_of(row, roofs, packed)
    return found


def peak_bytes(command):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return usage.ru_maxrss * 1024


def print_memory(options, name, ours, theirs, weights):
    say = [options.kvahead, "generate", "--model", ours, "--weights", weights, "--threads", str(options.threads)]
    us = peak_bytes(say + ["--context", "1024", "--max-tokens", "16", "--temperature", "0", "a b c"])
    them = peak_bytes([options.llama, theirs, str(options.threads), "1", "decode:1:0"])
    size = pathlib.Path(theirs).stat().st_size
    print(f"{name}: resident at most {us / 2**20:.0f} MiB, llama.cpp {them / 2**20:.0f} MiB; "
          f"{theirs} has {size / 2**20:.0f} MiB")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pair", required=True, action="append", nargs="+")
    parser.add_argument("--rows", default=ROWS, type=lambda text: text.split(","))
    parser.add_argument("--llama", default="./llama_speed")
    parser.add_argument("--kvahead", default="build/kvahead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    pairs = {pair[0]: (*pair[1:], "auto")[:3] for pair in options.pair if len(pair) in (3, 4)}
    if len(pairs) < len(options.pair):
        sys.exit("--pair takes NAME OURS THEIRS.gguf [WEIGHTS], and each NAME once")
    ours = {name: [] for name in pairs}
    theirs = {name: [] for name in pairs}
    for _ in range(options.rounds):
        for name, (model, gguf, weights) in pairs.items():
            ours[name].append(kvahead(options, model, weights))
            theirs[name].append(llama(options, gguf))
    print("| model | row | kvahead | llama.cpp | ratio | roof | | of it |\n|---|---|---|---|---|---|---|---|")
    for name in pairs:
        for row in options.rows:
            us, _, _ = max(run[row] for run in ours[name])
            roof, kind = max(run[row][1:] for run in ours[name])
            them = max(run[row] for run in theirs[name])
            print(f"| {name} | {row} | {us:.1f} | {them:.1f} | {us / them:.2f} | {roof:.1f} | {kind} "
                  f"| {100 * us / roof:.0f}% |")
    for name, (model, gguf, weights) in pairs.items():
        print_memory(options, name, model, gguf, weights)


main()
