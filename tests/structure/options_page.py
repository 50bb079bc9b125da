"""Checks that docs/options.md, and what other pages say of KV settings, is what the binary's tables say.

    python3 options_page.py KVAHEAD SOURCE_ROOT
"""

import json
import pathlib
import subprocess
import sys


def output(*arguments):
    return subprocess.run([sys.argv[1], "options", *arguments], capture_output=True, text=True, check=True).stdout


def main():
    docs = pathlib.Path(sys.argv[2]) / "docs"
    problems = []
    if (docs / "options.md").read_text() != output():
        problems.append("options.md is not the output of `kvahead options`")
    if output("--kv") not in (docs / "kv.md").read_text():
        problems.append("kv.md does not contain the output of `kvahead options --kv`")
    policies = json.loads(output("--json"))["kv_policies"]
    settings = [setting["name"] for policy in policies for setting in policy["settings"]]
    row = next(line for line in (docs / "api.md").read_text().splitlines() if line.startswith("| `kv` |"))
    problems += [f"api.md: the row of `kv` lacks `{name}`" for name in sorted(set(settings)) if f"`{name}`" not in row]
    for problem in problems:
        print(problem)
    return 1 if problems or not settings else 0


if __name__ == "__main__":
    sys.exit(main())
