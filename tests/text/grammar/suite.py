"""Holds grammars against the JSON Schema test suite: what is forbidden must not pass.

    python3 suite.py GRAMMAR_JUDGE FOLDER

The folder is the suite's tests/draft2020-12, which the sources of the Python package jsonschema have under json/. Without it
the test is skipped, with exit code 77.
"""

import collections
import json
import pathlib
import subprocess
import sys


def main():
    folder = pathlib.Path(sys.argv[2])
    groups = [group for file in sorted(folder.glob("*.json")) for group in json.loads(file.read_text())]
    if not groups:
        print(f"SKIPPED: {folder} has no test suite")
        return 77
    lines = [{"schema": json.dumps(group["schema"]),
              "texts": [json.dumps(test["data"], ensure_ascii=False) for test in group["tests"]]} for group in groups]
    judged = subprocess.run([sys.argv[1]], input="".join(json.dumps(line) + "\n" for line in lines), capture_output=True,
                            text=True, check=True).stdout.splitlines()
    counts = collections.Counter()
    wrong = []
    for group, line in zip(groups, map(json.loads, judged), strict=True):
        counts["schemas refused" if isinstance(line, dict) else "schemas taken"] += 1
        for test, passes in zip(group["tests"], line if isinstance(line, list) else []):
            counts[f"texts {'allowed' if test['valid'] else 'forbidden'}, {'passed' if passes else 'stopped'}"] += 1
            if passes and not test["valid"]:
                wrong.append(f"{group['description']}: {test['description']}")
    for name, count in sorted(counts.items()):
        print(f"{name}: {count}")
    for each in wrong:
        print(f"passes and must not: {each}")
    return 1 if wrong or counts["texts allowed, passed"] < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
