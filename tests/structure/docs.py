"""Checks the Markdown pages: lines of at most 100 columns (tables excepted), links to files and headings that exist,
and functions named as `file:function` that are there.

    python3 docs.py SOURCE_ROOT
"""

import pathlib
import re
import sys

COLUMNS = 100
SKIPPED = {"build", "build-asan", "build-tsan", "third_party", ".git", "node_modules", "venv"}
FUNCTION = re.compile(r"`([\w/]+\.(?:c|h|cu|cuh)):(\w+)`")
LINK = re.compile(r"\]\(([^()\s]+)\)")


def pages(root):
    """Markdown files of the project, without builds and what was fetched."""
    for page in sorted(root.rglob("*.md")):
        folders = page.relative_to(root).parts[:-1]
        if not any(folder in SKIPPED or folder.startswith(("build", ".")) for folder in folders):
            yield page


def without_code(text):
    """The text with fenced and indented blocks and code spans emptied; lines stay where they are."""
    fenced, lines = False, []
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        lines.append("" if fenced or line.startswith("    ") else line)
    return re.sub(r"`[^`\n]*`", "``", "\n".join(lines))


def anchors(page):
    """The names under which GitHub makes a page's headings known."""
    names = set()
    for heading in re.findall(r"^#+ +(.*)$", page.read_text(), re.M):
        name = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        names.add(name)
    return names


def check_columns(page, text):
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS and not line.lstrip().startswith("|"):
            yield f"{page}:{number}: {len(line)} columns, at most {COLUMNS}"


def check_links(root, page, text):
    for target in LINK.findall(without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.is_relative_to(root) or not file.exists():
            yield f"{page}: no file {target}"
        elif anchor and anchor not in anchors(file):
            yield f"{page}: no heading {target}"


def check_functions(root, page, text):
    for name, function in FUNCTION.findall(text):
        file = root / name
        if not file.exists():
            yield f"{page}: no file {name}"
        elif not re.search(rf"^\w[^\n]*\b{function}\(", file.read_text(), re.M):
            yield f"{page}: no function {function} in {name}"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    problems, count = [], 0
    for page in pages(root):
        text = page.read_text()
        count += 1
        problems += check_columns(page.relative_to(root), text)
        problems += check_links(root, page, text)
        problems += check_functions(root, page.relative_to(root), text)
    for problem in problems:
        print(problem)
    print(f"{count} pages, {len(problems)} problems")
    return 1 if problems or count < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
