"""Builds the byte-level BPE tokenizer of the bundled model.

The pre-tokenizer is Qwen2's split: words take one leading character that is not a letter (mostly the
space), digits stand alone, punctuation comes in runs. Names in capitals, the variables of the vt
task, are read letter by letter: no two capitals merge, except in the word VAR; the merges of a space
with a capital and those of VAR are written here by rule. The other merges are learned from the
generated data and from prose.
"""

import json
import re
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from . import benchmark, words

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIALS = [BOS, EOS, IM_START, IM_END, PAD] + [f"<|reserved_{i}|>" for i in range(3)]

VOCAB_SIZE = 3584

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


SPACE = "\u0120"  # how byte-level BPE writes a space
# These come before the learned merges, those of a space and a capital after them.
FIRST_MERGES = [("A", "R"), ("V", "AR"), (SPACE, "VAR")]
LAST_MERGES = [(SPACE, letter) for letter in string.ascii_uppercase]


def _pre_tokenizer():
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def _corpus(generated, prose):
    """Text without digits, which never merge, and without runs of capitals, which shall not."""
    for text in [*generated, *prose]:
        yield re.sub(r"[0-9]|[A-Z]{2,}", "", text)
    for word in words.NOUNS + words.ADJECTIVES:
        yield (" " + word) * 400
    for word in benchmark.words.NOUNS:
        yield ("-" + word) * 1000
    for phrase in benchmark.filler.phrases():
        yield f" {phrase}" * 100


def build(generated, prose):
    """Return a Tokenizer of VOCAB_SIZE tokens learned from the two lists of strings."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS) - len(FIRST_MERGES + LAST_MERGES), min_frequency=2,
        special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False)
    learner.train_from_iterator(_corpus(generated, prose), trainer)
    learned = json.loads(learner.to_str())["model"]

    merges = list(dict.fromkeys([*FIRST_MERGES, *map(tuple, learned["merges"]), *LAST_MERGES]))
    vocab = dict(learned["vocab"])
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    spare = VOCAB_SIZE - len(SPECIALS) - len(vocab)  # rules that were learned as well leave room
    specials = SPECIALS + [f"<|reserved_{3 + i}|>" for i in range(spare)]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = _pre_tokenizer()
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(specials)
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B",
                                      special_tokens=[(BOS, tok.token_to_id(BOS))]),
    ])
    if tok.get_vocab_size() != VOCAB_SIZE:
        raise SystemExit(f"the tokenizer has {tok.get_vocab_size()} tokens, not {VOCAB_SIZE}: "
                         "give more text")
    return tok


def save(tok, directory):
    directory = Path(directory)
    tok.save(str(directory / "tokenizer.json"))
    config = {
        "add_bos_token": True,
        "bos_token": BOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_max_length": 8192,
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
