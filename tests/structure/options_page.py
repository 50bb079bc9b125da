"""Checks that docs/options.md is what the binary's table of options says.

    python3 options_page.py KVAHEAD SOURCE_ROOT
"""

import pathlib
import subprocess
import sys


def main():
    want = subprocess.run([sys.argv[1], "options"], capture_output=True, text=True, check=True).stdout
    page = pathlib.Path(sys.argv[2]) / "docs" / "options.md"
    if page.read_text() == want:
        return 0
    print(f"{page} is out of date: write the output of `kvahead options` there")
    return 1


if __name__ == "__main__":
    sys.exit(main())
