"""Checks how a release binary was built, by readelf: what an attacker who finds a defect of memory has to pass.

    python3 hardening.py BINARY

Position-independent, so that addresses differ from run to run; all relocations resolved at start and read-only then; no
memory that is both writable and executable; stack protector; checked variants of the C library's functions.
"""

import re
import subprocess
import sys


def readelf(binary, *options):
    return subprocess.run(["readelf", "--wide", *options, binary], capture_output=True, text=True, check=True).stdout


def problems_of(binary):
    header, segments = readelf(binary, "--file-header"), readelf(binary, "--segments")
    dynamic, symbols = readelf(binary, "--dynamic"), readelf(binary, "--dyn-syms")
    imported = set(re.findall(r" UND (\w+)", symbols))
    checked = sorted(name for name in imported if re.fullmatch(r"__\w+_chk", name))
    if not re.search(r"Type: +DYN ", header) or not re.search(r"FLAGS_1.*\bPIE\b", dynamic):
        yield "is not position-independent (b_pie)"
    if not re.search(r"FLAGS_1.*\bNOW\b", dynamic):
        yield "resolves symbols lazily (-Wl,-z,now)"
    if "GNU_RELRO" not in segments:
        yield "keeps relocations writable (-Wl,-z,relro)"
    stack = re.search(r"GNU_STACK( +0x\w+){5} +(\S+) ", segments)
    if not stack or "E" in stack.group(2):
        yield "has an executable stack (-Wl,-z,noexecstack)"
    for flags in re.findall(r"^ +LOAD(?: +0x\w+){5} +([RWE ]+?) +0x", segments, re.M):
        if "W" in flags and "E" in flags:
            yield "has a segment that is writable and executable"
    if "TEXTREL" in dynamic:
        yield "relocates its code (TEXTREL)"
    if re.search(r"R(UN)?PATH", dynamic):
        yield "looks for libraries in folders of its own (RPATH)"
    if "__stack_chk_fail" not in imported:
        yield "has no stack protector (-fstack-protector-strong)"
    # memcpy among them: a build where only printf is checked has lost the level of _FORTIFY_SOURCE.
    if len(checked) < 4 or "__memcpy_chk" not in checked:
        yield f"calls {len(checked)} checked functions of the C library: {' '.join(checked)} (_FORTIFY_SOURCE)"


def main():
    found = list(problems_of(sys.argv[1]))
    for problem in found:
        print(f"{sys.argv[1]} {problem}")
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
