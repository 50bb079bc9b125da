"""Checks the direction of dependency between the folders, and what the code may not do where.

    python3 layers.py SOURCE_ROOT

Arrows point down only (docs/architecture.md): cli -> server -> scheduler -> engine -> kernels -> base; text and config
beside them.
"""

import pathlib
import re
import sys

# Folder -> folders whose headers it may include, besides its own.
ALLOWED = {
    "base": set(),
    "gguf": {"base"},
    "config": {"base"},
    "hub": {"base"},
    "kernels": {"base"},
    "text": {"base", "gguf"},
    "engine/model": {"base", "gguf", "kernels"},
    "engine/kv": {"base", "kernels"},
    "engine": {"base", "kernels"},
    "scheduler": {"base", "engine"},
    "cluster": {"base"},
    "cluster/instance": {"base", "engine", "scheduler"},
    "cluster/remote": {"base", "engine", "kernels"},
    "cluster/node": {"base", "engine", "scheduler"},
    "server": {"base", "text", "cluster", "engine", "scheduler"},
    "cli": {"base", "cluster", "gguf", "text", "config", "hub", "engine", "scheduler", "server", "clients", "kernels"},
    "cli/main.c": {"base", "config", "server"},
    "clients": {"base"},
}

# The scheduler knows the engine by its contract alone.
SCHEDULER_MAY_INCLUDE = {"engine/engine.h", "engine/sampling.h", "engine/kv/spec.h"}

# The inside of a device, for itself alone; everybody else sees device.h and the operators.
CLOSED = ("kernels/cpu/", "kernels/cuda/")

SOURCES = {".c", ".cc", ".h", ".cu", ".cuh"}
# What is particular to a KV policy is in its own file: nobody else asks which one it is.
POLICY_BRANCH = re.compile(
    r"[=!]=\s*&?(KVA_KV_(FULL|OFFLOAD|KIVI|SPECACHE|STREAMING|H2O|QHITTER|INFINIGEN)\b"
    r"|kva_kv_policy_(full|offload|kivi|specache|streaming|h2o|qhitter|infinigen)\b)"
    r"|\bcase\s+KVA_KV_(FULL|OFFLOAD|KIVI|SPECACHE|H2O|QHITTER|INFINIGEN)\b|(->|\.)(coded|fetched)\b"
)

# The scheduler carries a request's KV spec and does not look into it; memory is bytes to it.
ENGINE_INSIDE = re.compile(r"\bKVA_KV_\w+|\bkva_kv_(?!spec\b)\w+|\bkv\.\w+|\bpage\w*|\b\w*err\.param\b")

FORBIDDEN_CALLS = re.compile(r"\b(exit|abort|_exit|getenv|strtok|gets|sprintf|strcpy|strcat)\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def rule_for(path):
    """The longest entry of ALLOWED that the path is under."""
    matches = [key for key in ALLOWED if path == key or path.startswith(key + "/")]
    return max(matches, key=len) if matches else None


def is_closed(path, include):
    """Whether the file is outside of the device that the header belongs to."""
    return any(include.startswith(closed) and not path.startswith(closed) for closed in CLOSED)


def strip_comments(text):
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


XGRAMMAR = ("support", "dlpack", "xgrammar", "json_schema_converter.h", "compiled_grammar_impl.h", "earley_parser.h",
            "grammar_matcher.cc", "tokenizer_info_impl.h")
XGRAMMAR_USERS = ("text/grammar/automaton.cc", "text/grammar/configuration.cc", "text/grammar/configuration.h",
                  "text/grammar/xgrammar.cc")


def check(root):
    problems = []
    count = 0
    for top in sorted({key.split("/")[0] for key in ALLOWED}):
        for file in sorted(f for f in (root / top).rglob("*") if f.suffix in SOURCES):
            path = file.relative_to(root).as_posix()
            rule = rule_for(path)
            count += 1
            text = file.read_text()
            for include in INCLUDE.findall(text):
                folder = include.split("/")[0]
                if path in XGRAMMAR_USERS and folder in XGRAMMAR:
                    continue  # the library's own
                if "/" not in include:
                    problems.append(f"{path}: include '{include}' is not from the source root")
                elif is_closed(path, include):
                    problems.append(f"{path}: may not include '{include}', the inside of a device")
                elif folder != rule.split("/")[0] and folder not in ALLOWED[rule]:
                    problems.append(f"{path}: may not include '{include}'")
                elif rule == "engine/kv" and folder == "engine" and not include.startswith("engine/kv/"):
                    problems.append(f"{path}: the KV cache may not include '{include}'")
                elif rule == "scheduler" and folder == "engine" and include not in SCHEDULER_MAY_INCLUDE:
                    problems.append(f"{path}: the scheduler may not include '{include}'")
            if not path.startswith("engine/kv/policies/"):
                for match in POLICY_BRANCH.finditer(strip_comments(text)):
                    problems.append(f"{path}: asks for a policy: {match[0]}")
            if rule == "scheduler":
                for match in ENGINE_INSIDE.finditer(strip_comments(text)):
                    problems.append(f"{path}: looks into the engine: {match[0]}")
            if path != "cli/main.c":
                for call in FORBIDDEN_CALLS.findall(strip_comments(text)):
                    problems.append(f"{path}: calls {call}()")
    return count, problems


def main():
    root = pathlib.Path(sys.argv[1])
    count, problems = check(root)
    for problem in problems:
        print(problem)
    print(f"{count} files, {len(problems)} problems")
    return 1 if problems or count < 20 else 0


if __name__ == "__main__":
    sys.exit(main())
