#!/usr/bin/env python3
"""stream.py - what `kvahead eval --stream --json` has said, as a table by quarters and a picture.

    python3 docs/pictures/stream.py RESULT.json... [--svg FILE]

Perplexity is the geometric mean of a quarter's windows, memory the most at the end of one.
"""

import argparse
import json
import math
import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from kvahead_quality.plots import COLOURS, STYLE


def policies(paths):
    for path in paths:
        result = json.loads(path.read_text())
        for policy in result["policies"]:
            windows = [window for window in policy["windows"] if window]
            yield policy["policy"], result["arguments"]["tokens"], windows


def table(rows):
    print("| policy | tokens | perplexity | device KiB | host KiB |")
    print("|---|---|---:|---:|---:|")
    for name, tokens, windows in rows:
        quarter = math.ceil(len(windows) / 4)
        for first in range(0, len(windows), quarter):
            part = windows[first : first + quarter]
            nll = sum(math.log(window["perplexity"]) for window in part) / len(part)
            device, host = (max(window[key] for window in part) / 1024 for key in ("device_bytes", "host_bytes"))
            span = f"{first * tokens:,} to {(first + len(part)) * tokens:,}"
            print(f"| `{name}` | {span} | {math.exp(nll):.0f} | {device:.0f} | {host:.0f} |")


def picture(rows, path):
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
        for colour, (name, tokens, windows) in zip(COLOURS, rows):
            at = [(i + 1) * tokens / 1e6 for i in range(len(windows))]
            left.plot(at, [window["perplexity"] for window in windows], color=colour, lw=0.9, label=name)
            both = [(window["device_bytes"] + window["host_bytes"]) / 2**20 for window in windows]
            right.plot(at, both, color=colour, lw=1.4)
        left.set(xlabel="millions of tokens", ylabel="perplexity of a window", ylim=(0, None))
        right.set(xlabel="millions of tokens", ylabel="MiB of both tiers", ylim=(0, None))
        left.legend(fontsize=7)
        figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", type=pathlib.Path, nargs="+")
    parser.add_argument("--svg", type=pathlib.Path)
    args = parser.parse_args()
    rows = list(policies(args.results))
    table(rows)
    if args.svg:
        picture(rows, args.svg)


if __name__ == "__main__":
    main()
