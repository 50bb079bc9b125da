"""kvahead and llama.cpp on the same weights, in turns, and the ratios.

    python compare.py --model DIR --bf16 OUT.gguf [--q8 Q8.gguf] [--llama llama_speed] [--kvahead build/kvahead]
                      [--threads N] [--rounds N] [--seconds S]

bf16 against `--weights file`, Q8_0 against `--weights int8`. What is printed is the median over the rounds of tokens/s.
docs/results/cpu.md says how to get the files.
"""

import argparse
import json
import statistics
import subprocess

PREFILLS = (512, 2048)
DECODES = ((1, 0), (1, 32768), (16, 0), (16, 4096))


def names():
    return [f"prefill:{n}" for n in PREFILLS] + [f"decode:{b}:{d}" for b, d in DECODES]


def llama(options, gguf):
    """Tokens/s by name."""
    command = [options.llama, gguf, str(options.threads), str(options.seconds), *names()]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {row[0]: float(row[3]) for row in map(str.split, out.splitlines())}


def kvahead(options, weights):
    """Batches have depths of their own: one run for each."""
    found = {}
    for batch in sorted({batch for batch, _ in DECODES}):
        depths = ",".join(str(d) for b, d in DECODES if b == batch)
        prefills = ",".join(map(str, PREFILLS)) if batch == 1 else "0"
        command = [options.kvahead, "bench", options.model, "--weights", weights, "--json", "-", "--no-mixed"]
        command += ["--threads", str(options.threads), "--batch", str(batch), "--depth", depths]
        command += ["--prefill", prefills, "--repetitions", "200", "--row-time", f"{options.seconds}s"]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for row in json.loads(out)["rows"]:
            if row["what"] == "prefill":
                found[f"prefill:{row['prompt_tokens']}"] = row["prefill_tokens_per_s"]
            else:
                found[f"decode:{row['batch']}:{row['depth']}"] = row["decode_tokens_per_s"]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--bf16", required=True)
    parser.add_argument("--q8")
    parser.add_argument("--llama", default="./llama_speed")
    parser.add_argument("--kvahead", default="build/kvahead")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=3)
    options = parser.parse_args()
    pairs = [("bf16", "file", options.bf16)] + ([("8 bit", "int8", options.q8)] if options.q8 else [])
    ours = {name: [] for name, _, _ in pairs}
    theirs = {name: [] for name, _, _ in pairs}
    for _ in range(options.rounds):
        for name, weights, gguf in pairs:
            ours[name].append(kvahead(options, weights))
            theirs[name].append(llama(options, gguf))
    print("| weights | | kvahead | llama.cpp | ratio |\n|---|---|---|---|---|")
    for name, _, _ in pairs:
        for what in names():
            us = statistics.median(run[what] for run in ours[name])
            them = statistics.median(run[what] for run in theirs[name])
            print(f"| {name} | {what} | {us:.1f} | {them:.1f} | {us / them:.2f} |")


main()
