"""Runs the deliberate defects of ../simt/mutations.txt as PTX: which of them the executor and the cases notice.

    python3 tests/cuda/ptx/mutate.py BUILD FOLDER [--only N,N...] [--all-rounds]

BUILD is a build folder with tests/kernels/checkasm and tests/cuda/ptx/kvahead-cuda-ptx.so. For each defect the sources
that have it are compiled to PTX, and the operators that ../mutations.c names for the file run with it (PTX_FOLDER,
runtime.cpp) until one fails. FOLDER is for what is compiled, and for results.tsv: number, file, name, result,
operator, seconds, message. Numbers that are there already are left out: a run that was cut goes on.

    wrong     an operator's results differ, or it ends in an error
    defect    the executor or the runtime ended the program, and says why
    crash     of the process
    timeout   an operator did not end
    missed    all operators passed
    same      the compiler makes the same PTX of it: host code, or no difference
    host      checked by parts other than operators: host code
    broken    does not compile

--all-rounds runs those that were missed once more, for all-rounds.tsv: with all cases of an operator, which is not told
to be --quick, and four seeds, as the simulated sources are.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
NVCC = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
QUICK_S, ALL_ROUNDS_S, SEEDS = 120, 280, range(1, 5)


def simt_mutations():
    spec = importlib.util.spec_from_file_location("simt_mutate", ROOT / "tests/cuda/simt/mutate.py")
    simt_mutate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(simt_mutate)
    return list(simt_mutate.read_mutations(ROOT / "tests/cuda/simt/mutations.txt"))


def read_checks():
    """What checks a file: the names of operators; none where it is parts of the module."""
    table = (ROOT / "tests/cuda/mutations.c").read_text()
    rows = re.findall(r'\{"([^"]+)",\s*MUTATIONS_OF_(\w+),\s*"([^"]+)"\}', table)
    return {file: parts.split() if who == "OPERATORS" else [] for file, who, parts in rows}


def includes(file, seen=None):
    seen = set() if seen is None else seen
    for name in re.findall(r'#include "kernels/cuda/([^"]+)"', (ROOT / "kernels/cuda" / file).read_text()):
        if name not in seen:
            seen.add(name)
            includes(name, seen)
    return seen


class Bench:
    def __init__(self, build, folder):
        self.build, self.folder = build.resolve(), folder.resolve()
        self.sources, self.ptx, self.mutated = (self.folder / name for name in ("sources", "unchanged", "mutated"))
        shutil.rmtree(self.sources, ignore_errors=True)
        shutil.copytree(ROOT / "kernels/cuda", self.sources / "kernels/cuda")
        self.ptx.mkdir(parents=True, exist_ok=True)
        self.checks = read_checks()
        self.included = {path.name: includes(path.name) for path in (ROOT / "kernels/cuda").glob("*.cu")}
        self.cost_s = {}  # of units and operators, unchanged

    def compile(self, unit, to):
        """The compiler's complaint, or nothing."""
        begin = time.monotonic()
        path = to / unit.replace(".cu", ".ptx")
        path.unlink(missing_ok=True)
        made = subprocess.run([NVCC, "-ptx", "-arch=compute_80", "-std=c++20", "-O3", "-lineinfo",
                               '-DKVA_VERSION="mutated"', "-I", self.sources, "-I", ROOT,
                               self.sources / "kernels/cuda" / unit, "-o", path],
                              capture_output=True, text=True)
        self.cost_s.setdefault(unit, time.monotonic() - begin)
        return made.stderr if made.returncode else ""

    def same(self, unit):
        """Whether the PTX is that of the unchanged source, lines aside."""
        def code(path):
            text = path.read_text().split("\t.section\t.debug", 1)[0]
            return [line for line in text.splitlines() if not re.match(r"\s*(\.loc|\.file|//|\$L__tmp)", line)]
        name = unit.replace(".cu", ".ptx")
        return code(self.mutated / name) == code(self.ptx / name)

    def check(self, op, folder, limit_s, quick=True, seed=1):
        """What became of it, and the line that says so."""
        begin, lines, late = time.monotonic(), [], threading.Event()
        command = [self.build / "tests/kernels/checkasm", "--module", self.build / "tests/cuda/ptx/kvahead-cuda-ptx.so",
                   "--op", op, "--seed", str(seed)] + ["--quick"] * quick
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env={**os.environ, "PTX_FOLDER": str(folder)})

        def stop():
            late.set()
            process.kill()
        timer = threading.Timer(limit_s, stop)
        timer.start()
        result = None
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("FAILED"):
                result = "wrong"
                process.kill()
                break
            if line.startswith("simt:"):
                result = "defect"
                break
        code = process.wait()
        timer.cancel()
        if not result:
            result = "timeout" if late.is_set() else "crash" if code < 0 else "wrong" if code else "passed"
        self.cost_s.setdefault(op, time.monotonic() - begin)
        return result, lines[-1] if lines and result != "passed" else ""

    def units_of(self, file, op):
        """The sources to compile for an operator: all that have the file, unless some are its own."""
        units = [file] if file.endswith(".cu") else [unit for unit, names in self.included.items() if file in names]
        return [unit for unit in sorted(units) if op in self.checks.get(unit, [])] or sorted(units)

    def measure(self, files):
        """The unchanged sources, all of them: the build's may be others. What they cost, and that they pass."""
        for unit in sorted(self.included):
            if self.compile(unit, self.ptx):
                sys.exit(f"mutate.py: {unit} does not compile")
        for op in sorted({op for file in files for op in self.checks[file]}):
            result, line = self.check(op, self.ptx, 1000)
            print(f"{op}: {result}, {self.cost_s[op]:.1f} s", flush=True)
            if result != "passed":
                sys.exit(f"mutate.py: unchanged, {op}: {line}")

    def cost_of(self, file):
        return min((self.cost_s[op] + sum(self.cost_s[unit] for unit in self.units_of(file, op))
                    for op in self.checks[file]), default=0)

    def run(self, mutation, quick):
        """Result, operator, message."""
        _, _, file, old, new = mutation
        ops = self.checks[file]
        if not ops:
            return "host", "", ""
        shutil.rmtree(self.mutated, ignore_errors=True)
        shutil.copytree(self.ptx, self.mutated, copy_function=os.link)
        path = self.sources / "kernels/cuda" / file
        text = (ROOT / "kernels/cuda" / file).read_text()
        if text.count(old) != 1:
            sys.exit(f"mutate.py: {file} has the text {text.count(old)} times: {old}")
        path.write_text(text.replace(old, f"{{ {new} }}" if ";" in old else f"({new})"))
        try:
            return self.run_ops(file, ops, quick)
        finally:
            path.write_text(text)

    def run_ops(self, file, ops, quick):
        differs, ran = {}, []
        for op in sorted(ops, key=lambda op: self.cost_s[op]):
            for unit in self.units_of(file, op):
                if unit in differs:
                    continue
                complaint = self.compile(unit, self.mutated)
                if complaint:
                    return "broken", unit, complaint.splitlines()[0]
                differs[unit] = not self.same(unit)
            if not any(differs[unit] for unit in self.units_of(file, op)):
                continue
            ran.append(op)
            limit_s = QUICK_S + self.cost_s[op] if quick else ALL_ROUNDS_S
            for seed in [1] if quick else SEEDS:
                result, message = self.check(op, self.mutated, limit_s, quick, seed)
                if result != "passed":
                    return result, op, f"seed {seed}: {message}"
        return ("missed" if ran else "same"), " ".join(ran), ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--all-rounds", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    quick_path, all_path = args.folder / "results.tsv", args.folder / "all-rounds.tsv"
    rows = [line.split("\t") for line in quick_path.read_text().splitlines()] if quick_path.exists() else []
    results = all_path if args.all_rounds else quick_path
    done = {int(line.split("\t")[0]) for line in results.read_text().splitlines()} if results.exists() else set()
    wanted = {int(row[0]) for row in rows if row[3] == "missed"} if args.all_rounds else None
    mutations = [mutation for mutation in simt_mutations()
                 if mutation[0] not in done and (not args.only or mutation[0] in args.only)
                 and (wanted is None or mutation[0] in wanted)]
    bench = Bench(args.build, args.folder)
    bench.measure({mutation[2] for mutation in mutations})
    for mutation in sorted(mutations, key=lambda mutation: (bench.cost_of(mutation[2]), mutation[0])):
        begin = time.monotonic()
        result, op, message = bench.run(mutation, not args.all_rounds)
        number, name, file, _, _ = mutation
        fields = [str(number), file, name, result, op, f"{time.monotonic() - begin:.0f}", message.replace("\t", " ")]
        with results.open("a") as out:
            out.write("\t".join(fields) + "\n")
        print("\t".join(fields), flush=True)


if __name__ == "__main__":
    main()
