"""Checks that all C and CUDA files are as clang-format writes them; skipped, with exit code 77, where it is not installed.

    python3 format.py SOURCE_ROOT
"""

import pathlib
import shutil
import subprocess
import sys

FOLDERS = ["base", "config", "gguf", "hub", "kernels", "engine", "text", "scheduler", "cluster", "server", "cli",
           "clients", "tests"]
SOURCES = {".c", ".h", ".cu", ".cuh"}


def main():
    root = pathlib.Path(sys.argv[1])
    tool = shutil.which("clang-format")
    if not tool:
        print("SKIPPED: clang-format is not installed")
        return 77
    files = [str(f) for folder in FOLDERS for f in sorted((root / folder).rglob("*")) if f.suffix in SOURCES]
    result = subprocess.run([tool, "--dry-run", "-Werror", *files], capture_output=True, text=True)
    bad = sorted({line.split(":")[0] for line in result.stderr.splitlines() if ": error:" in line})
    for file in bad:
        print(f"{file}: not as clang-format writes it")
    print(f"{len(files)} files, {len(bad)} to be formatted")
    return 1 if bad or result.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
