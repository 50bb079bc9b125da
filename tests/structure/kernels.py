"""Every CUDA kernel begins with kva_begin(): kernels.py ROOT

It may be launched before the one ahead of it has ended (kernels/cuda/number.cuh), and what it did before that line would
be done too early. Or with kva_begin_weights(), and then calls kva_await() itself, before which it names no other memory
than weights: of what follows a pointer, `load_weights` alone.
"""

import pathlib
import re
import sys

OPENING = re.compile(r"__global__[^;{]*\{\s*([^\n]*)")
WEIGHTS_FIRST = re.compile(r"kva_begin_weights\(\);\n(.*?)\n    kva_await\(\);", re.DOTALL)
LOADS = re.compile(r"\b(?!load_weights\b)\w*(?:load|copy|store|put|stream)\w*\s*[(<]|\*\s*reinterpret_cast")


def opening_is_sound(text, match):
    if match[1] == "kva_begin();":
        return True
    early = WEIGHTS_FIRST.match(text, match.start(1))
    return early is not None and "\n}" not in early[1] and not LOADS.search(early[1])


def main():
    folder = pathlib.Path(sys.argv[1]) / "kernels" / "cuda"
    kernels = problems = 0
    for path in sorted([*folder.glob("*.cu"), *folder.glob("*.cuh")]):
        text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment[0].count("\n"), path.read_text(), flags=re.DOTALL)
        for match in OPENING.finditer(text):
            kernels += 1
            if not opening_is_sound(text, match):
                problems += 1
                line = text.count("\n", 0, match.start()) + 1
                print(f"{path.relative_to(folder.parents[1])}:{line}: a kernel begins with '{match[1]}', not kva_begin();")
    print(f"{kernels} kernels, {problems} problems")
    sys.exit(problems > 0 or kernels == 0)


main()
