"""Makes the page from its sources: one document, its compressed form, their tags, and the policy that names the hashes
of what may run in it, as C.

    python3 bundle.py OUTPUT.c PAGE.html STYLE.css SCRIPT.js...

The scripts become one, in the order given; they share a scope that nothing else sees. The same sources give the same
bytes on every machine.
"""

import base64
import gzip
import hashlib
import pathlib
import re
import sys

POLICY = (
    "default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def source_hash(text):
    """As a content security policy names what an element contains."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def without_indents(text):
    """Comments that have lines of their own, empty lines and indents go; multi-line strings must not care."""
    text = re.sub(r"^[ \t]*/\*.*?\*/[ \t]*\n", "", text, flags=re.S | re.M)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//")) + "\n"


def bundle(page, style, scripts):
    """The document and its policy."""
    style = "\n" + without_indents(style)
    script = "\n'use strict';\n(() => {\n" + "".join(without_indents(text) for text in scripts) + "})();\n"
    assert "</script" not in script.lower() and "<!--" not in script and "</style" not in style.lower()
    assert page.count("{{style}}") == 1 and page.count("{{script}}") == 1
    document = without_indents(page).replace("{{style}}", style).replace("{{script}}", script)
    return document, POLICY.format(script=source_hash(script), style=source_hash(style))


def c_array(name, data):
    rows = [",".join(map(str, data[i : i + 32])) for i in range(0, len(data), 32)]
    return f"static const unsigned char {name}[] = {{\n" + ",\n".join(rows) + "};\n"


def tag(data):
    return '\\"' + hashlib.sha256(data).hexdigest()[:32] + '\\"'


def main():
    output, *sources = map(pathlib.Path, sys.argv[1:])
    page, style, *scripts = (source.read_text(encoding="utf-8") for source in sources)
    document, policy = bundle(page, style, scripts)
    plain = document.encode()
    packed = gzip.compress(plain, 9, mtime=0)
    output.write_text(
        "/* page_data.c - made by bundle.py. */\n"
        '#include "server/page/page.h"\n\n'
        + c_array("plain", plain)
        + c_array("packed", packed)
        + "const struct kva_page_data kva_page_data = {\n"
        + f"    plain, packed, sizeof(plain), sizeof(packed),\n"
        + f'    "{tag(plain)}", "{tag(packed)}",\n'
        + f'    "{policy}",\n}};\n'
    )


if __name__ == "__main__":
    main()
