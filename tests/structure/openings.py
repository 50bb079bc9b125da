"""Checks that every source file opens with a comment that says what it is: its name, a dash, one sentence or more.

    python3 openings.py SOURCE_ROOT
"""

import pathlib
import sys

FOLDERS = ["base", "config", "gguf", "hub", "kernels", "engine", "text", "scheduler", "cluster", "server", "cli", "clients"]
SOURCES = {".c", ".cc", ".h", ".cu", ".cuh"}


def main():
    root = pathlib.Path(sys.argv[1])
    files = [f for folder in FOLDERS for f in sorted((root / folder).rglob("*")) if f.suffix in SOURCES]
    bad = [f for f in files if not f.read_text().startswith(f"/* {f.name} - ")]
    for file in bad:
        print(f"{file.relative_to(root)}: does not open with '/* {file.name} - ...'")
    print(f"{len(files)} files, {len(bad)} problems")
    return 1 if bad or len(files) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
