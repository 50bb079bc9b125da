"""Checks that every symbol that the project's libraries export is named kva_...: nm on the static libraries.

    python3 exports.py LIBRARY...
"""

import subprocess
import sys


def exported(library):
    out = subprocess.run(["nm", "--defined-only", "--extern-only", "-P", library],
                         capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in out.splitlines() if len(line.split()) >= 3}


def main():
    problems = 0
    count = 0
    for library in sys.argv[1:]:
        for symbol in sorted(exported(library)):
            if symbol.startswith(("__asan", "__odr_asan", "__ubsan", "__tsan")):
                continue
            count += 1
            if not symbol.startswith("kva_"):
                print(f"{library}: exports {symbol}")
                problems += 1
    print(f"{count} symbols, {problems} problems")
    return 1 if problems or count < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
