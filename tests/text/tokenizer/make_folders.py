#!/usr/bin/env python3
"""Makes data/folders.json with the `sentencepiece`, `protobuf` and `transformers` libraries.

    make_folders.py [--published DIRECTORY --out FILE --texts N]

Small folders as models have them that have no tokenizer.json: the files, trained here on the
sentences of make_reference.py (no vocabulary of anybody else), and for each text of reference.json
the hash of the ids that the library named in `by` gives. `sentencepiece` encodes the text alone;
`transformers` adds special tokens and finds them in the text. With --published, tokenizer.model and
vocab.json with merges.txt are made of published tokenizer.json files instead, N random texts each.
"""
import argparse
import json
import os
import random
import struct
import tempfile

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as pb
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import GPT2Tokenizer, LlamaTokenizer, Qwen2Tokenizer

from make_reference import HERE, SENTENCES, fnv

MARKS = ["<s>", "</s>", "<pad>", "<turn>", "<|endoftext|>", "<extra>"]


def train_sentencepiece(**options):
    with tempfile.TemporaryDirectory() as folder:
        text, prefix = os.path.join(folder, "text"), os.path.join(folder, "m")
        with open(text, "w", encoding="utf-8") as file:
            file.write("\n".join(SENTENCES) + "\n")
        options = dict(dict(model_type="bpe", vocab_size=480, byte_fallback=True,
                            normalization_rule_name="identity", remove_extra_whitespaces=False,
                            num_threads=1, minloglevel=2), **options)
        sentencepiece.SentencePieceTrainer.train(input=text, model_prefix=prefix, **options)
        with open(prefix + ".model", "rb") as file:
            return file.read()


def patched(model, **normalizer):
    proto = pb.ModelProto()
    proto.ParseFromString(model)
    for name, value in normalizer.items():
        setattr(proto.normalizer_spec, name, value)
    return proto.SerializeToString()


def train_bytes():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(SENTENCES, trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False))
    return json.loads(tokenizer.to_str())["model"]


def byte_files(model, **others):
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    files = {"vocab.json": json.dumps(model["vocab"], ensure_ascii=False).encode(),
             "merges.txt": ("#version: 0.2\n" + "\n".join(merges) + "\n").encode()}
    return dict(files, **{name.replace("__", "."): json.dumps(value).encode()
                          for name, value in others.items()})


def make_folders():
    base = train_sentencepiece()
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>",
              "unk_token": "<unk>", "add_bos_token": True, "legacy": False}
    small = train_bytes()
    opt = dict(tokenizer_class="GPT2Tokenizer", add_bos_token=True, bos_token="</s>",
               eos_token="</s>", unk_token="</s>", pad_token="<pad>")
    folders = {
        "plain": ("sentencepiece", {"tokenizer.model": base}),
        "no_prefix": ("sentencepiece", {"tokenizer.model": patched(base, add_dummy_prefix=False)}),
        "collapse": ("sentencepiece",
                     {"tokenizer.model": patched(base, remove_extra_whitespaces=True)}),
        "collapse_no_prefix": ("sentencepiece", {"tokenizer.model": patched(
            base, remove_extra_whitespaces=True, add_dummy_prefix=False)}),
        "no_fallback": ("sentencepiece", {"tokenizer.model": train_sentencepiece(
            byte_fallback=False, vocab_size=300)}),
        "llama": (LlamaTokenizer, {"tokenizer.model": base,
                                   "tokenizer_config.json": json.dumps(config).encode()}),
        "llama_added": (LlamaTokenizer, {
            "tokenizer.model": base,
            "tokenizer_config.json": json.dumps(config).encode(),
            "special_tokens_map.json": json.dumps({"pad_token": "<pad>"}).encode(),
            "added_tokens.json": json.dumps({"<pad>": 480, "<extra>": 481}).encode()}),
        "gpt2": (GPT2Tokenizer, byte_files(
            small, tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer"})),
        "gpt2_prefix": (GPT2Tokenizer, byte_files(
            small, tokenizer_config__json={"tokenizer_class": "GPT2Tokenizer",
                                           "add_prefix_space": True})),
        "opt": (GPT2Tokenizer, byte_files(small, tokenizer_config__json=opt)),
        "qwen2": (Qwen2Tokenizer, byte_files(
            small, tokenizer_config__json={"tokenizer_class": "Qwen2Tokenizer"},
            added_tokens__json={"<turn>": 420})),
    }
    return folders


def published_folders(directory):
    """tokenizer.model of Llama 2's tokenizer.json: its scores are minus the ids."""
    with open(os.path.join(directory, "llama2", "tokenizer.json"), encoding="utf-8") as file:
        vocab = json.load(file)["model"]["vocab"]
    proto = pb.ModelProto()
    for text, token in sorted(vocab.items(), key=lambda item: item[1]):
        kind = 2 if token == 0 else 3 if token < 3 else 6 if token < 259 else 1
        proto.pieces.add(piece=text, score=float(259 - token) if token >= 259 else 0, type=kind)
    proto.trainer_spec.model_type = 2
    proto.trainer_spec.byte_fallback = True
    proto.normalizer_spec.remove_extra_whitespaces = False
    model = proto.SerializeToString()
    config = json.dumps({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True,
                         "legacy": False}).encode()
    out = {"llama2": ("sentencepiece", {"tokenizer.model": model}),
           "llama2_hf": (LlamaTokenizer,
                         {"tokenizer.model": model, "tokenizer_config.json": config})}
    for name, kind in (("gpt2", GPT2Tokenizer), ("qwen2.5", Qwen2Tokenizer)):
        with open(os.path.join(directory, name, "tokenizer.json"), encoding="utf-8") as file:
            whole = json.load(file)
        out[name] = (kind, byte_files(
            whole["model"], tokenizer_config__json={"tokenizer_class": kind.__name__},
            added_tokens__json={t["content"]: t["id"] for t in whole["added_tokens"]}))
    return out


def marked(texts):
    rng = random.Random(7)
    out = []
    for text in texts:
        words = text.decode("utf-8", "replace").split(" ")
        words.insert(rng.randrange(len(words) + 1), rng.choice(MARKS))
        out.append(rng.choice((" ", "")).join(words).encode())
    return out


def encode_all(by, files, texts):
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(data)
        if by == "sentencepiece":
            processor = sentencepiece.SentencePieceProcessor(
                model_file=os.path.join(folder, "tokenizer.model"))
            run = processor.encode
        else:
            run = by.from_pretrained(folder).encode
        rows = []
        for text in texts:
            ids = run(text.decode("utf-8", "replace"))
            rows.append(fnv(struct.pack("<%di" % (len(ids) + 1), len(ids), *ids)))
        return " ".join(rows)


def random_texts(count):
    rng = random.Random(11)
    blocks = [(0x20, 0x7e)] * 6 + [(0xa0, 0x24f), (0x370, 0x52f), (0x4e00, 0x4fff), (0xac00, 0xb000),
                                   (0x1f600, 0x1f64f), (9, 13)]
    words = " ".join(SENTENCES).split(" ")
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 12)):
            low, high = rng.choice(blocks)
            parts.append(rng.choice(words) if rng.random() < 0.6 else "".join(
                chr(rng.randint(low, high)) for _ in range(rng.randint(1, 6))))
        texts.append("".join(p + rng.choice((" ", " ", "", "  ", "\n")) for p in parts).encode())
    return texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--published")
    parser.add_argument("--out", default=os.path.join(HERE, "data", "folders.json"))
    parser.add_argument("--texts", type=int, default=1000)
    options = parser.parse_args()
    with open(os.path.join(HERE, "data", "reference.json"), encoding="utf-8") as file:
        texts = [bytes.fromhex(text) for text in json.load(file)["texts"]]
    if options.published:
        texts += random_texts(options.texts)
    # SentencePiece ends a text at nothing, and reads U+2581 as the space that it stands for.
    texts = [text for text in texts if "\u2581" not in text.decode("utf-8", "replace")]
    out = {"texts": [t.hex() for t in texts], "marked": [t.hex() for t in marked(texts)],
           "folders": {}}
    folders = published_folders(options.published) if options.published else make_folders()
    for name, (by, files) in folders.items():
        alone = by == "sentencepiece"
        out["folders"][name] = {
            "alone": alone,
            "files": {file: data.hex() for file, data in files.items()},
            "rows": encode_all(by, files, texts if alone else marked(texts))}
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(out, file, separators=(",", ":"), indent=0)
    print("%d texts, %d folders" % (len(texts), len(folders)))


if __name__ == "__main__":
    main()
