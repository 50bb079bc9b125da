"""Sums up a timeline of decoding steps (tests/gpu/timeline.c): how long each kernel alone kept the GPU.

    python3 tests/gpu/timeline.py FILE [STEPS]

Kernels overlap: they begin early, and run beside others. A kernel's time here is what the GPU would not have been
busy without it: from the later of its own beginning and the end of all before it, to its end. The idle time before it
is what nothing ran. Row fetches, which run beside everything, are apart. Steps are cut at `embed`; the last STEPS (10)
but the very last count."""

import re
import sys

FIRST = "embed"
BESIDE = "fetch"


def short(name):
    """A kernel's name without its namespace and most of its template's arguments."""
    found = re.search(r"\d+([a-z_]+kernel)(I[A-Za-z0-9_]*)?", name)
    return found.group(1) + (found.group(2) or "")[:28] if found else name[:44]


def read(path):
    events = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            begin, end, _, name = line.split(" ", 3)
            events.append((int(begin), int(end), short(name.strip())))
    return events


def main():
    events = read(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    # Before a step's first kernel its descriptors are copied.
    ends = [i - 1 for i, event in enumerate(events) if event[2].startswith(FIRST)][-steps - 2 : -1]
    if len(ends) < 2:
        sys.exit(f"{sys.argv[1]}: no whole step in it")
    sums = {}
    for first, last in zip(ends, ends[1:]):
        now = events[first][1]
        for begin, end, name in sorted(events[first + 1 : last + 1], key=lambda event: event[1]):
            entry = sums.setdefault(name, [0, 0, 0, 0])
            entry[0] += 1
            entry[3] += end - begin
            if not name.startswith(BESIDE):
                entry[1] += max(0, end - max(now, begin))
                entry[2] += max(0, begin - now)
                now = max(now, end)
    count = len(ends) - 1
    busy, idle = (sum(entry[i] for entry in sums.values()) / count / 1e3 for i in (1, 2))
    period = (events[ends[-1]][1] - events[ends[0]][1]) / count / 1e3
    print(f"{count} steps of {period:.0f} us: busy {busy:.0f}, idle {idle:.0f}")
    print(f"{'kernel':44} {'a step':>7} {'each, us':>9} {'alone, us':>9} {'step, us':>9} {'idle before':>11}")
    for name, (times, alone, before, whole) in sums.items():
        print(
            f"{name:44} {times / count:7.1f} {whole / times / 1e3:9.1f} {alone / times / 1e3:9.1f}"
            f" {alone / count / 1e3:9.1f} {before / count / 1e3:11.1f}"
        )


if __name__ == "__main__":
    main()
