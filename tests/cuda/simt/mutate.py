"""Writes the CUDA sources as C++ with deliberate defects that a test can switch on one at a time.

    python3 mutate.py MUTATIONS OUTPUT.cpp SOURCE...

MUTATIONS is a text of blocks, separated by empty lines:

    # what is broken
    file.cu
    - the text of the source, which must be there exactly once
    + what replaces it while simt::mutation is the block's number; nothing: the statement is left out

A replaced expression becomes `(simt::mutation == N ? (new) : (old))`; statements, which have a semicolon, become an if.
Sources go into .cpp files next to OUTPUT, which holds the names, headers into kernels/cuda there.
"""

import pathlib
import sys


def read_mutations(path):
    for number, block in enumerate(path.read_text().strip().split("\n\n"), 1):
        lines = block.splitlines()
        name, file = lines[0].removeprefix("# "), lines[1]
        old = "\n".join(line[2:] for line in lines[2:] if line.startswith("- "))
        new = "\n".join(line[2:] for line in lines[2:] if line.startswith("+ "))
        yield number, name, file, old, new


def main():
    mutations = list(read_mutations(pathlib.Path(sys.argv[1])))
    names = pathlib.Path(sys.argv[2])
    for source in map(pathlib.Path, sys.argv[3:]):
        text = source.read_text()
        for number, name, file, old, new in mutations:
            if file != source.name:
                continue
            if text.count(old) != 1:
                sys.exit(f"mutate.py: '{name}': {file} has the text {text.count(old)} times: {old}")
            if ";" in old:
                text = text.replace(old, f"{{ if (simt::mutation == {number}) {{ {new} }} else {{ {old} }} }}")
            else:
                text = text.replace(old, f"(simt::mutation == {number} ? ({new}) : ({old}))")
        if source.suffix == ".cu":
            out = names.with_name(source.stem + ".cpp")
        else:
            out = names.parent / "kernels" / "cuda" / source.name  # found before the original
            out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(f'#line 1 "{source.resolve()}"\n{text}')
    rows = ["none"] + [f"{file}: {name}" for _, name, file, _, _ in mutations]
    lines = "".join(f'    "{row}",\n' for row in rows)
    names.write_text(f"extern const char *const simt_mutation_names[];\nextern const int simt_mutation_count;\n"
                     f"const char *const simt_mutation_names[] = {{\n{lines}}};\n"
                     f"const int simt_mutation_count = {len(mutations)};\n")


if __name__ == "__main__":
    main()
