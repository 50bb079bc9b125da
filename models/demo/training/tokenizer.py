"""Builds the byte-level BPE tokenizer of the bundled model.

The pre-tokenizer is the usual split of byte-level BPE: words take one leading character that is
not a letter (mostly the space), digits come in groups of at most three, punctuation in runs. All
numbers of one to three digits are single tokens: their 1100 merges are written here by rule, not
learned, so a seven-digit number is always three tokens. The other merges are learned from the
generated data and from prose.
"""

import json
import random
import uuid
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from . import benchmark, words

SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
PAD = "<|pad|>"
SPECIALS = [BOS, EOS, IM_START, IM_END, PAD] + [f"<|reserved_{i}|>" for i in range(3)]

VOCAB_SIZE = 4096

CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def _digit_merges():
    digits = "0123456789"
    pairs = [(a, b) for a in digits for b in digits]
    triples = [(a + b, c) for a in digits for b in digits for c in digits]
    return pairs + triples


def _pre_tokenizer():
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])


def _corpus(generated, prose, seed):
    """Text with no digits: digit merges are fixed, so learning must not spend merges on them."""
    rng = random.Random(seed)
    strip = str.maketrans("", "", "0123456789")
    for text in generated:
        yield text.translate(strip)
    for text in prose:
        yield text.translate(strip)
    for word in words.NOUNS + words.ADJECTIVES:
        yield (" " + word) * 400
        yield ("-" + word) * 60
    for phrase in benchmark.filler.phrases():
        yield f" {phrase}" * 100
    for _ in range(400):
        yield " " + str(uuid.UUID(int=rng.getrandbits(128))).translate(strip)


def build(generated, prose, seed):
    """Return a Tokenizer of VOCAB_SIZE tokens learned from the two lists of strings."""
    digit_merges = _digit_merges()
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIALS) - len(digit_merges), min_frequency=2,
        special_tokens=[], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False)
    learner.train_from_iterator(_corpus(generated, prose, seed), trainer)
    learned = json.loads(learner.to_str())["model"]

    vocab = dict(learned["vocab"])
    for left, right in digit_merges:
        vocab[left + right] = len(vocab)
    merges = digit_merges + [tuple(m) for m in learned["merges"]]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = _pre_tokenizer()
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(SPECIALS)
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
