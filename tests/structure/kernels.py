"""Every CUDA kernel begins with kva_begin(): kernels.py ROOT

It may be launched before the one ahead of it has ended (kernels/cuda/number.cuh), and what it did before that line would
be done too early.
"""

import pathlib
import re
import sys

OPENING = re.compile(r"__global__[^;{]*\{\s*([^\n]*)")


def main():
    folder = pathlib.Path(sys.argv[1]) / "kernels" / "cuda"
    kernels = problems = 0
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), path.read_text(), flags=re.DOTALL)
        for match in OPENING.finditer(text):
            kernels += 1
            if match[1] != "kva_begin();":
                problems += 1
                line = text.count("\n", 0, match.start()) + 1
                print(f"{path.relative_to(folder.parents[1])}:{line}: a kernel begins with '{match[1]}', not kva_begin();")
    print(f"{kernels} kernels, {problems} problems")
    sys.exit(problems > 0 or kernels == 0)


main()
