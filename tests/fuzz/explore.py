"""Runs the exploring fuzzers that tests/fuzz/build makes.

    explore.py check [seconds]             every target: its corpus, then exploration; fails on a finding, or
                                           where the corpus reaches less than coverage.txt demands
    explore.py long [target|all] [minutes] explores, and adds to the corpora what reached new code
    explore.py floors                      writes coverage.txt: 90% of what each corpus reaches now

What coverage.txt demands is reached by the committed inputs alone, so it depends on no clock. A finding is a crash, a leak,
an input that takes a minute or more memory than a request could: it lies in build-fuzz/found.
"""

import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = ROOT / "build-fuzz"
FOUND = BUILD / "found"
CORPUS = HERE / "corpus"
FLOORS = HERE / "coverage.txt"
AT_A_TIME = 2
SHARE = 0.9
# Of a corpus's file: small inputs are what mutation does most with, and what a person can read.
FILE_BYTES_MAX = 6144


def targets():
    names = sorted(path.name for path in CORPUS.iterdir())
    missing = [name for name in names if not (BUILD / f"tests/fuzz/explore_{name}").is_file()]
    if missing:
        sys.exit(f"build-fuzz has no fuzzer for {', '.join(missing)}: run tests/fuzz/build")
    return names


def floors():
    lines = [line.split() for line in FLOORS.read_text().splitlines() if line and not line.startswith("#")]
    return {name: int(edges) for name, edges in lines}


def run(target, *arguments):
    environment = dict(os.environ, ASAN_OPTIONS="detect_leaks=1:allocator_may_return_null=1",
                       UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1")
    return subprocess.run([BUILD / f"tests/fuzz/explore_{target}", *map(str, arguments)], env=environment, cwd=ROOT,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def reached(output, stage):
    """(edges, features) that libFuzzer reports at INITED (the corpus alone) or DONE."""
    found = re.findall(rf"{stage} +cov: (\d+) ft: (\d+)", output)
    return tuple(map(int, found[-1])) if found else (0, 0)


def explore(target, seconds, new):
    """Corpus, then exploration, whose inputs with new coverage go to the folder `new`."""
    FOUND.mkdir(exist_ok=True)
    return run(target, f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=3072", "-print_final_stats=1",
               f"-artifact_prefix={FOUND}/{target}-", new, CORPUS / target)


def findings(target, done):
    if done.returncode == 0:
        return []
    lines = re.findall(r"^(?:SUMMARY|ERROR|==\d+==ERROR|the server |client: ).*$", done.stdout, re.M)[-3:]
    wrote = re.findall(r"Test unit written to (\S+)", done.stdout)
    return lines + [f"again with: build-fuzz/tests/fuzz/explore_{target} {os.path.relpath(path, ROOT)}" for path in wrote]


def executions(output):
    found = re.findall(r"stat::number_of_executed_units: (\d+)", output)
    return int(found[-1]) if found else 0


def check_one(target, seconds):
    with tempfile.TemporaryDirectory() as new:
        return explore(target, seconds, new)


def check(seconds):
    floor, names, problems = floors(), targets(), []
    print(f"{'target':<16}{'executions':>12}{'corpus':>9}{'floor':>8}{'edges':>8}{'features':>10}")
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        for name, done in zip(names, pool.map(lambda name: check_one(name, seconds), names)):
            corpus, _ = reached(done.stdout, "INITED")
            edges, features = reached(done.stdout, "DONE")
            print(f"{name:<16}{executions(done.stdout):>12,}{corpus:>9,}{floor.get(name, 0):>8,}{edges:>8,}{features:>10,}",
                  flush=True)
            found = findings(name, done)
            if done.returncode != 0:
                problems += [f"{name}: exit status {done.returncode}", *(found or done.stdout.splitlines()[-20:])]
            elif name not in floor:
                problems.append(f"{name}: has no line in tests/fuzz/coverage.txt: python3 tests/fuzz/explore.py floors")
            elif corpus < floor[name]:
                problems.append(f"{name}: its corpus reaches {corpus} edges, tests/fuzz/coverage.txt demands {floor[name]}")
    problems += [f"{name}: is in tests/fuzz/coverage.txt, but there is no such target" for name in floor if name not in names]
    print("\n".join(problems) if problems else f"{len(names)} fuzz targets, no findings")
    return 1 if problems else 0


def merge(target, new):
    """Adds to the committed corpus a few inputs that reach the edges which it does not reach."""
    with tempfile.TemporaryDirectory() as folder:
        merged = pathlib.Path(folder)
        known = {}
        for path in (CORPUS / target).iterdir():
            known[hashlib.sha1(path.read_bytes()).hexdigest()] = path
            shutil.copy(path, merged)
        done = run(target, "-set_cover_merge=1", "-use_counters=0", f"-max_len={FILE_BYTES_MAX}", merged, new)
        added = 0
        for path in merged.iterdir():
            digest = hashlib.sha1(path.read_bytes()).hexdigest()
            if digest not in known and path.stat().st_size <= FILE_BYTES_MAX:
                shutil.copy(path, CORPUS / target / digest[:12])
                added += 1
        return added, done.returncode


def long_one(target, seconds):
    new = BUILD / "corpus" / target
    new.mkdir(parents=True, exist_ok=True)
    done = explore(target, seconds, new)
    added, failed = merge(target, new)
    edges, features = reached(done.stdout, "DONE")
    print(f"{target:<16}{executions(done.stdout):>14,} executions{edges:>8,} edges{features:>9,} features, "
          f"{added} inputs added to the corpus", flush=True)
    problems = [f"  {line}" for line in findings(target, done)]
    if failed:
        problems.append(f"  merging ended with {failed}: one of its inputs in build-fuzz/corpus/{target} fails")
    if problems:
        print("\n".join(problems), flush=True)
    return bool(problems or done.returncode)


def explore_long(which, minutes):
    names = targets()
    if which != "all":
        if which not in names:
            sys.exit(f"there is no target '{which}', there are: {', '.join(names)}")
        names = [which]
    rounds = (len(names) + AT_A_TIME - 1) // AT_A_TIME
    print(f"{len(names)} targets, {minutes:g} minutes each: {rounds * minutes:g} minutes", flush=True)
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        failed = list(pool.map(lambda name: long_one(name, max(1, round(minutes * 60))), names))
    if any(failed):
        print("findings lie in build-fuzz/found")
    return 1 if any(failed) else 0


def write_floors():
    lines = ["# Edges that the committed corpus of a fuzz target reaches at least, 90% of what it did when this was",
             "# written: python3 tests/fuzz/explore.py floors. tests/fuzz/explore.py check holds it against them."]
    for name in targets():
        done = run(name, "-runs=0", CORPUS / name)
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stdout[-2000:]}")
        lines.append(f"{name:<16} {int(reached(done.stdout, 'INITED')[0] * SHARE):>6}")
    FLOORS.write_text("\n".join(lines) + "\n")
    return 0


def main(arguments):
    command = arguments[0] if arguments else ""
    if command == "check" and len(arguments) <= 2:
        return check(int(arguments[1]) if len(arguments) > 1 else 10)
    if command == "long" and len(arguments) <= 3:
        return explore_long(arguments[1] if len(arguments) > 1 else "all", float(arguments[2]) if len(arguments) > 2 else 30)
    if command == "floors" and len(arguments) == 1:
        return write_floors()
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
