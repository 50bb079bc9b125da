"""Public-domain prose read from a directory of text files (Project Gutenberg editions)."""

import re
from pathlib import Path


def _body(text):
    """The text without the Project Gutenberg header and footer."""
    start = re.search(r"\*\*\* ?START OF TH[EIS]+ PROJECT GUTENBERG[^\n]*\n", text)
    end = re.search(r"\*\*\* ?END OF TH[EIS]+ PROJECT GUTENBERG", text)
    return text[start.end() if start else 0:end.start() if end else len(text)]


def read(directories):
    """Paragraphs of 200 to 4000 characters from every .txt file, lines unwrapped, plain quotes."""
    quotes = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"',
                            "\u2014": "-", "\ufeff": ""})
    paragraphs = []
    for directory in directories:
        for path in sorted(Path(directory).rglob("*.txt")):
            if "LICENSE" in path.name.upper():
                continue
            text = _body(path.read_text(encoding="utf-8", errors="ignore")).translate(quotes)
            for part in re.split(r"\n\s*\n", text.replace("\r", "")):
                part = " ".join(part.split())
                if 200 <= len(part) <= 4000:
                    paragraphs.append(part)
    return paragraphs
