#!/usr/bin/env python3
"""Holds the inner loops of the CUDA kernels against the roofs of three cards: tests/cuda/roofs.py [--markdown]

roofs.tsv names loops: the column of budget.tsv that counts the instructions of a turn, how often it is
taken, what is issued besides, what of all is for the pipe of logic and shifts (0: not counted), bytes
that memory gives for it, and products of tiles (m16n8k16). Of each card are known bytes and
instructions that a multiprocessor gets in a cycle, and what a product takes of it. What takes longest
of memory, issue, logic and products binds; the share is what that leaves of memory's bandwidth, or of
the products' peak, and must be as much as the table says. It is a bound, by counts: what waits for
latencies, caches and launches comes on top.

The machine code itself is held against budget.tsv by budget.py. 4090s run the code of sm_80.
"""
import argparse
import csv
import sys
from pathlib import Path

HERE = Path(__file__).parent

# name: architecture, multiprocessors, GHz, TB/s, cycles a product takes of a multiprocessor's peak, and by mma.sync
CARDS = {
    "h200": ("H200", "sm_90a", 132, 1.80, 4.3, 1.0, 1.6),
    "a100": ("A100 80 GB", "sm_80", 108, 1.41, 2.0, 2.0, 2.0),
    "rtx4090": ("RTX 4090", "sm_80", 128, 2.52, 1.0, 8.0, 8.0),
}
ISSUED, LOGIC = 4, 2  # instructions a cycle, and those of logic and shifts


def read(name):
    with open(HERE / name, encoding="utf-8") as file:
        file.readline()
        return list(csv.DictReader(file, delimiter="\t"))


def share(loop, instructions, card):
    """(percent of the roof, what binds)"""
    _, _, processors, ghz, bandwidth, peak, by_mma = CARDS[card]
    products = int(loop["products"])
    cycles = {
        "memory": int(loop["bytes"]) / (bandwidth * 1e3 / processors / ghz),
        "issue": instructions / ISSUED,
        "logic": int(loop["logic"]) / LOGIC,
        "products": products * by_mma,
    }
    binds = max(cycles, key=cycles.get)
    roof = cycles["memory"] if loop["bound"] == "memory" else products * peak
    return 100 * roof / cycles[binds], binds


def main():
    parser = argparse.ArgumentParser(description="Holds the kernels' inner loops against the roofs of cards.")
    parser.add_argument("--markdown", action="store_true", help="print the table for the documents")
    markdown = parser.parse_args().markdown
    budget = {(row["arch"], row["source"], row["kernel"]): row for row in read("budget.tsv")}
    wrong = []
    if markdown:
        print("| loop | instructions | bytes | products | " + " | ".join(card[0] for card in CARDS.values()) + " |")
        print("|---|---|---|---|" + "---|" * len(CARDS))
    for loop in read("roofs.tsv"):
        cells, counts = [], []
        for card, (_, arch, *_) in CARDS.items():
            row = budget.get((arch, loop["source"], loop["kernel"]))
            if not row:
                sys.exit(f"roofs.py: budget.tsv has no {arch} {loop['source']} {loop['kernel']}")
            instructions = int(row[loop["column"]]) * int(loop["turns"]) + int(loop["beside"])
            percent, binds = share(loop, instructions, card)
            counts.append(instructions)
            cells.append(f"{percent:.0f}%, {binds}")
            if percent < float(loop[card]):
                wrong.append(f"{loop['loop']} ({loop['kernel']}): {percent:.0f}% of what a {CARDS[card][0]} allows, "
                             f"the table says {loop[card]}%: {binds} binds, {instructions} instructions")
        if markdown:
            print(f"| {loop['loop']} | {counts[0]} | {loop['bytes']} | {loop['products']} | {' | '.join(cells)} |")
    print("\n".join(wrong), end="\n" * bool(wrong))
    if not markdown:
        print(f"{len(read('roofs.tsv'))} loops, {len(CARDS)} cards: {len(wrong)} below what they are to reach")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
