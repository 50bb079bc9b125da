#!/usr/bin/env python3
"""Holds the CUDA module's machine code against a table of budgets: tests/cuda/budget.py MODULE [--write]

What the compiler made of every kernel for every architecture: registers of a thread, its stack
(where spills go), static shared memory, instructions; of all its pieces without a branch that have
products of tiles (HMMA, IMMA) the instructions and the products; and of its innermost loops the one
that asks global memory for the most bytes: what a warp issues in one turn of it, and bytes. Then what a
warp asks global memory for before it waits for the kernel ahead of it (sm_90 and newer), which only
products of few rows do, and which must be as much as the table says.
budget.tsv has the table. More than it says, fewer products or bytes (a loop is unrolled less), a
kernel that it lacks or that is gone: fails. --write makes it again.

Needs cuobjdump and nvdisasm (KVAHEAD_CUDA_TOOLS names their folder, or they are on PATH or in
CUDA's), and the nvcc that the table was written with, since others count otherwise; else it is
skipped, with exit code 77.
"""
import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("budget.tsv")
CEILINGS = ["registers", "stack", "shared", "instructions", "mma_turn", "load_turn", "early_bytes"]
FLOORS = ["mma", "load_bytes", "early_bytes"]
COLUMNS = ["registers", "stack", "shared", "instructions", "mma_turn", "mma", "load_turn", "load_bytes", "early_bytes"]
WARP = 32


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def find_tool(name):
    for folder in [os.environ.get("KVAHEAD_CUDA_TOOLS"), None, "/usr/local/cuda/bin"]:
        found = shutil.which(name, path=folder) if folder else shutil.which(name)
        if found:
            return found
    skip(f"{name} is not installed")


def demangle(names):
    names = sorted(names)
    if not shutil.which("c++filt"):
        skip("c++filt is not installed")
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = [re.sub(r"\(.*", "", re.sub(r"^void ", "", line)) for line in text.splitlines()]
    return dict(zip(names, short))


def read_usage(cuobjdump, module):
    """{(arch, source, mangled name): [registers, stack, shared]}"""
    text = subprocess.run([cuobjdump, "--dump-resource-usage", module], capture_output=True, text=True, check=True).stdout
    ret, arch, source, name = {}, None, None, None
    for line in text.splitlines():
        if line.startswith("arch = "):
            arch = line[7:].strip()
        elif line.startswith("identifier = "):
            source = Path(line[13:].strip()).name
        elif match := re.match(r" *Function (\S+):", line):
            name = match[1]
        elif name and "REG:" in line:
            value = {key: int(n) for key, n in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", line)}
            ret[arch, source, name] = [value["REG"], value["STACK"] + value["LOCAL"], value["SHARED"]]
            name = None
    return ret


def width(opcode):
    """Bytes that a thread moves."""
    for word, count in (("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)):
        if word in opcode.split("."):
            return count
    return 4


class Code:
    """A kernel's instructions: [(address, opcode, target of a branch or None)]."""

    def __init__(self):
        self.lines = []

    def inner_loops(self):
        """[(first, last)] of the bodies that have no other loop in them."""
        ends = {}
        for at, opcode, target in self.lines:
            if opcode.startswith("BRA") and target is not None and target < at:
                ends[target] = max(ends.get(target, 0), at)
        loops = list(ends.items())
        return [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]

    def turn(self, loop):
        """What a warp issues in one turn: (instructions, bytes that it asks for)."""
        count = loaded = 0
        for at, opcode, _ in self.lines:
            if not loop[0] <= at <= loop[1] or opcode == "NOP":
                continue
            count += 1
            base = opcode.split(".")[0]
            if base in ("LDG", "LDGSTS"):
                loaded += WARP * width(opcode)
        return count, loaded

    def products(self):
        """Of all pieces without a branch that have products: (instructions, products)."""
        targets = {target for _, _, target in self.lines if target is not None}
        ret, count, products = [0, 0], 0, 0
        for at, opcode, _ in [*self.lines, (None, "EXIT", None)]:
            if at is None or at in targets:
                ret = [ret[0] + (count if products else 0), ret[1] + products]
                count = products = 0
            count += opcode != "NOP"
            products += opcode.split(".")[0] in ("HMMA", "IMMA")
            if opcode.split(".")[0] in ("BRA", "EXIT", "RET", "BSYNC"):
                ret = [ret[0] + (count if products else 0), ret[1] + products]
                count = products = 0
        return ret

    def early(self, arch):
        """Bytes that a warp loads before it waits; -1: it does more than that, or never waits."""
        loaded = 0
        for _, opcode, _ in self.lines:
            base = opcode.split(".")[0]
            if base == "ACQBULK":
                return loaded
            if base in ("STG", "ST", "LD", "RED", "ATOM", "ATOMG", "LDGSTS"):
                break
            if base == "LDG":
                loaded += WARP * width(opcode)
        return -1 if int(re.search(r"\d+", arch)[0]) >= 90 else 0

    def numbers(self, arch):
        turns = [self.turn(loop) for loop in self.inner_loops()]
        mma = self.products()
        load = max((t for t in turns if t[1]), key=lambda t: (t[1], -t[0]), default=(0, 0))
        count = sum(opcode != "NOP" for _, opcode, _ in self.lines)
        return [count, *mma, *load, self.early(arch)]


LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);")


def read_code(cuobjdump, module):
    """{(arch, source, mangled name): Code}"""
    ret, arch, source, code = {}, None, None, None
    process = subprocess.Popen([cuobjdump, "-sass", module], stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("arch = "):
            arch = line[7:].strip()
        elif line.startswith("identifier = "):
            source = Path(line[13:].strip()).name
        elif match := re.match(r"\s*Function : (\S+)", line):
            code = ret[arch, source, match[1]] = Code()
        elif code and (match := LINE.match(line)):
            target = re.search(r"0x([0-9a-f]+)\s*$", match[3]) if match[2].startswith("BRA") else None
            code.lines.append((int(match[1], 16), match[2], int(target[1], 16) if target else None))
    if process.wait():
        sys.exit(f"budget.py: {cuobjdump} -sass failed")
    return ret


def compiler():
    text = subprocess.run([find_tool("nvcc"), "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V(\d+\.\d+\.\d+)", text)[1]


def measure(module):
    """{(arch, source, kernel): {column: number}}"""
    cuobjdump = find_tool("cuobjdump")
    # cuobjdump calls nvdisasm by its name.
    os.environ["PATH"] = f"{Path(find_tool('nvdisasm')).parent}:{os.environ['PATH']}"
    usage, codes = read_usage(cuobjdump, module), read_code(cuobjdump, module)
    if usage.keys() != codes.keys() or not codes:
        sys.exit(f"budget.py: cuobjdump lists {len(usage)} kernels of {module} and disassembles {len(codes)}")
    names = demangle({name for _, _, name in codes})
    return {(arch, source, names[name]): dict(zip(COLUMNS, usage[arch, source, name] + code.numbers(arch)))
            for (arch, source, name), code in codes.items()}


def read_table():
    with open(TABLE, encoding="utf-8") as file:
        release = file.readline().split()[-1]
        rows = csv.DictReader(file, delimiter="\t")
        return release, {(row["arch"], row["source"], row["kernel"]): {c: int(row[c]) for c in COLUMNS} for row in rows}


def write_table(release, found):
    with open(TABLE, "w", encoding="utf-8", newline="") as file:
        file.write(f"# written by tests/cuda/budget.py --write with nvcc {release}\n")
        rows = csv.writer(file, delimiter="\t", lineterminator="\n")
        rows.writerow(["arch", "source", "kernel", *COLUMNS])
        for key, numbers in sorted(found.items()):
            rows.writerow([*key, *(numbers[c] for c in COLUMNS)])


def compare(budget, found):
    """What is wrong, a line each."""
    ret = [f"{' '.join(key)}: is not in the table" for key in found.keys() - budget.keys()]
    ret += [f"{' '.join(key)}: is in the table and not in the module" for key in budget.keys() - found.keys()]
    for key in found.keys() & budget.keys():
        for c in COLUMNS:
            have, may = found[key][c], budget[key][c]
            if (c in CEILINGS and have > may) or (c in FLOORS and have < may):
                ret.append(f"{' '.join(key)}: {c} {have}, the table says {may}")
    return sorted(ret)


def main():
    parser = argparse.ArgumentParser(description="Holds the CUDA module's machine code against budget.tsv.")
    parser.add_argument("module")
    parser.add_argument("--write", action="store_true", help="write the table from what is found")
    args = parser.parse_args()
    if not Path(args.module).exists():
        skip(f"{args.module} is not there: no CUDA toolkit built it")
    release = compiler()
    if not args.write and release != read_table()[0]:
        skip(f"the table is of nvcc {read_table()[0]}, here is {release}")
    found = measure(args.module)
    if args.write:
        write_table(release, found)
        print(f"{len(found)} rows written to {TABLE.name}")
        return
    wrong = compare(read_table()[1], found)
    print("\n".join(wrong))
    archs = sorted({key[0] for key in found})
    print(f"{len(found) // len(archs)} kernels for {', '.join(archs)}: {len(wrong)} beyond their budgets, "
          f"{sum(n['stack'] > 0 for n in found.values())} with a stack")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
