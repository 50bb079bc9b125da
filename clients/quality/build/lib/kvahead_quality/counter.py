"""How many tokens a text has: asked of the server, of a tokenizer file, or estimated."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import UsageError
from .tasks import counting, filler, niah, vt
from .tasks.words import ALL_WORDS

_RUN = re.compile(r"[A-Za-z]+|[0-9]+|\n|\.\.\.|[^\sA-Za-z0-9]")


@dataclass(frozen=True)
class TokenCounter:
    """`count(text)` returns tokens; `source` says where the number comes from, for the report."""

    count: Callable[[str], int]
    source: str
    exact: bool


def from_file(path: str) -> TokenCounter:
    """Count with a local tokenizer.json (Hugging Face tokenizers library)."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError(
            "--tokenizer with a file needs the 'tokenizers' package: "
            "pip install 'kvahead-quality[tokenizers]'"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises plain Exception for every fault of a file
        raise UsageError(f"--tokenizer: cannot load {path}: {error}") from None
    # Named by content, so that a run can be continued with the file in another place.
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:12]
    return TokenCounter(
        lambda text: len(tokenizer.encode(text).ids), f"tokenizer file sha256:{digest}", True
    )


@cache
def _known_words() -> frozenset[str]:
    """Words a common tokenizer can be expected to know: those of our own texts."""
    texts = [*ALL_WORDS, niah.NOISE, niah.NEEDLE, niah.MANY, niah.MANY_PREFIX, niah.ONE]
    texts += [niah.ONE_PREFIX, vt.PROMPT, vt.PREFIX, counting.CWE_PROMPT, counting.CWE_PREFIX]
    texts += [counting.FWE_PROMPT, counting.FWE_PREFIX, *filler.phrases()]
    return frozenset(word.lower() for text in texts for word in re.findall("[A-Za-z]+", text))


def estimated() -> TokenCounter:
    """Estimate so that common tokenizers (32k to 150k entries) need hardly more than it says.

    Known words 1 token, 2 from six letters on; others two tokens per three letters; digits one
    each and one for the run; marks one each. Real counts are 55% to 101% of it (measured with five
    tokenizers): the report says that it was used, and what the server counted instead.
    """

    def count(text: str) -> int:
        known = _known_words()
        total = 1  # a start token
        for run in _RUN.findall(text):
            if not run[0].isalpha():
                total += len(run) + 1 if run[0].isdigit() else 1
            elif run.lower() in known:
                total += 1 if len(run) < 6 else 2
            else:
                total += math.ceil(len(run) * 2 / 3)
        return total

    return TokenCounter(count, "estimate", False)
