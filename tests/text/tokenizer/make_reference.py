#!/usr/bin/env python3
"""Makes data/synthetic.json and data/reference.json with the `tokenizers` library.

    make_reference.py [DIRECTORY WITH PUBLISHED TOKENIZERS]

synthetic.json holds small models, trained here on the sentences below, and cases: each names a
model and the components around it; test_reference.c puts them together to a tokenizer.json.
reference.json holds texts (hexadecimal bytes) and, for each case and each published tokenizer that
the directory has, two words for each text: the hash of what the library encodes it to, for the
four combinations of adding and parsing special tokens, and the hash of what the last of these
decodes to, with and without special tokens. No vocabulary of anybody else is written.
"""
import json
import os
import random
import struct
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))

SENTENCES = [
    "The lighthouse keeper counts the ships that pass, and writes their names down.",
    "Don't say that we've lost it; they're sure it's there, and I'll find what he'd hidden.",
    "In 1867 there were 12345 of them, 3.14 each: a+b=c, x_1 != y[2]; return {foo(bar)};",
    "Der Müller mahlt süßes Mehl über Nacht. Ça va déjà être l'été à Noël.",
    "Привет, мир! Сегодня хорошая погода. Γειά σου κόσμε.",
    "今天天气很好。日本語の文章です。안녕하세요 세계.",
    "שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "def main():\n    for i in range(10):\n\t\tprint(i)\n\n\nmain()  # the end   of it",
    "😀 smile 👩‍👩‍👧 family 🇩🇪 flag, cafe\u0301 and caf\u00e9",
]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
HAN_FIRST = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTE = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
BYTE_PREFIX = dict(BYTE, add_prefix_space=True)
BYTE_PLAIN = dict(BYTE, use_regex=False)
SPM_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
SPM_NORMALIZER = {
    "type": "Sequence",
    "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ],
}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(member, *items):
    return {"type": "Sequence", member: list(items)}


def added(token_id, content, **flags):
    token = dict(id=token_id, content=content, single_word=False, lstrip=False, rstrip=False)
    token.update(normalized=False, special=False)
    token.update(flags)
    return token


def template(before, after):
    table = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in before + after}
    single = [{"SpecialToken": {"id": n, "type_id": 0}} for n, _ in before]
    single.append({"Sequence": {"id": "A", "type_id": 0}})
    single += [{"SpecialToken": {"id": n, "type_id": 0}} for n, _ in after]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": table}


def trained(model, pre_tokenizer, size, specials, alphabet, lines=SENTENCES, **options):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False,
                                  initial_alphabet=alphabet, **options)
    tokenizer.train_from_iterator(lines * 3, trainer)
    return json.loads(tokenizer.to_str())["model"]


def make_models():
    byte = trained(models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False), 420, [],
                   sorted(pre_tokenizers.ByteLevel.alphabet()))
    spm = trained(models.BPE(), pre_tokenizers.Metaspace(split=True), 620,
                  ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % i for i in range(256)], [])
    latin = trained(models.BPE(), pre_tokenizers.Metaspace(split=True), 160, ["<unk>"], [],
                    SENTENCES[:3])
    affix = trained(models.BPE(), pre_tokenizers.Whitespace(), 260, ["<unk>"], [], SENTENCES[:4],
                    continuing_subword_prefix="##", end_of_word_suffix="</w>")
    pairs = dict(byte)
    byte = dict(byte, merges=[" ".join(m) if isinstance(m, list) else m for m in byte["merges"]])
    spm.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    latin.update(unk_token="<unk>", fuse_unk=False)
    affix.update(unk_token="<unk>")
    return {
        "byte": byte,
        "byte_ignore": dict(pairs, ignore_merges=True),
        "spm": spm,
        "latin": latin,
        "latin_fused": dict(latin, fuse_unk=True),
        "latin_drop": dict(latin, unk_token=None),
        "affix": affix,
    }


def make_cases(all_models):
    top = {name: max(model["vocab"].values()) + 1 for name, model in all_models.items()}
    cases = {}

    def case(name, model, added_tokens=(), normalizer=None, pre=None, post=None, decoder=None):
        cases[name] = dict(model=model, added_tokens=list(added_tokens), normalizer=normalizer,
                           pre_tokenizer=pre, post_processor=post, decoder=decoder)

    n = top["byte"]
    end = added(n, "<|end|>", special=True)
    begin = added(n + 1, "<|begin|>", special=True)
    byte_level = {"type": "ByteLevel"}
    byte_level.update(BYTE)
    case("byte_level", "byte", [end], pre=BYTE, decoder=byte_level)
    case("byte_level_prefix", "byte", [end], pre=BYTE_PREFIX, decoder=byte_level)
    case("byte_level_ignore_merges", "byte_ignore", [end],
         pre=sequence("pretokenizers", split({"Regex": LLAMA3}), BYTE_PLAIN), decoder=byte_level)
    case("byte_level_han", "byte", [end],
         pre=sequence("pretokenizers", split({"Regex": HAN_FIRST}), BYTE_PLAIN), decoder=byte_level)
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            case("split_%s_%d" % (behavior.lower(), invert), "byte",
                 pre=sequence("pretokenizers", split({"Regex": r"[aeiou\s]"}, behavior, invert),
                              BYTE_PLAIN), decoder=byte_level)
        case("split_string_" + behavior.lower(), "byte",
             pre=sequence("pretokenizers", split({"String": "e"}, behavior), BYTE_PLAIN),
             decoder=byte_level)
    case("split_empty_match", "byte",
         pre=sequence("pretokenizers", split({"Regex": r"(?=(\d{3})+(?!\d))|\b"}), BYTE_PLAIN),
         decoder=byte_level)
    case("split_classes", "byte",
         pre=sequence("pretokenizers", split({"Regex": r"[^(\s|[.,!?…。，、।۔،])]+|[[:punct:]]|\h{2}|\w"}),
                      BYTE_PLAIN), decoder=byte_level)
    case("split_options", "byte",
         pre=sequence("pretokenizers", split({"Regex": r"(?i)THE|a.{,2}?e|(?m:s.)|^d++|\W$"}),
                      BYTE_PLAIN), decoder=byte_level)
    digits = {"type": "Digits", "individual_digits": True}
    case("digits_individual", "byte", pre=sequence("pretokenizers", digits, BYTE_PLAIN),
         decoder=byte_level)
    case("digits_together", "byte",
         pre=sequence("pretokenizers", dict(digits, individual_digits=False), BYTE_PLAIN),
         decoder=byte_level)
    case("bytes_before_others", "byte",
         pre=sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, BYTE,
                      dict(digits, individual_digits=False),
                      split({"Regex": "[0-9][0-9][0-9]"})), decoder=byte_level)
    case("whitespace", "latin_drop", pre={"type": "Whitespace"})
    case("whitespace_split", "latin_drop", pre={"type": "WhitespaceSplit"})
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"):
        case("normalizer_" + form.lower(), "byte", [end], normalizer={"type": form}, pre=BYTE,
             decoder=byte_level)
    case("normalizer_strip", "byte", [added(n, "the", normalized=True)],
         normalizer=sequence("normalizers", {"type": "Strip", "strip_left": True,
                                             "strip_right": True}, {"type": "NFD"},
                             {"type": "StripAccents"}, {"type": "Lowercase"}),
         pre=BYTE, decoder=byte_level)
    case("normalizer_replace", "byte",
         normalizer={"type": "Replace", "pattern": {"Regex": r"\s+|(\d)\1"}, "content": "_"},
         pre=BYTE, decoder=byte_level)
    case("normalizer_bytes", "byte", normalizer={"type": "ByteLevel"}, decoder=byte_level)
    case("added_flags", "byte", [
        end, begin, added(n + 2, "<mask>", lstrip=True, special=True), added(n + 3, "<rs>", rstrip=True),
        added(n + 4, "the", single_word=True), added(n + 5, "there"), added(n + 6, "Noël",
                                                                          normalized=True),
        added(n + 7, "<|"), added(n + 8, "  ", lstrip=True, rstrip=True)],
        normalizer={"type": "NFC"}, pre=BYTE, decoder=byte_level,
        post=template([("<|begin|>", n + 1)], [("<|end|>", n)]))
    case("post_sequence", "byte", [end, begin], pre=BYTE, decoder=byte_level,
         post=sequence("processors", {"type": "ByteLevel", "add_prefix_space": True,
                                      "trim_offsets": False, "use_regex": True},
                       template([("<|begin|>", n + 1)], [])))
    case("post_roberta", "byte", [end, begin], pre=BYTE, decoder=byte_level,
         post={"type": "RobertaProcessing", "sep": ["<|end|>", n], "cls": ["<|begin|>", n + 1],
               "trim_offsets": True, "add_prefix_space": False})
    specials = [added(i, t, special=True) for i, t in enumerate(("<unk>", "<s>", "</s>"))]
    bos = template([("<s>", 1)], [])
    case("spm", "spm", specials, normalizer=SPM_NORMALIZER, post=bos, decoder=SPM_DECODER)
    case("spm_normalized_specials", "spm", [dict(t, normalized=True) for t in specials],
         normalizer=SPM_NORMALIZER, post=bos, decoder=SPM_DECODER)
    case("spm_no_unknown", "spm", specials, normalizer=SPM_NORMALIZER["normalizers"][1],
         decoder=sequence("decoders", *SPM_DECODER["decoders"][:3]))
    for scheme in ("first", "always", "never"):
        for cut in (False, True):
            case("metaspace_%s_%d" % (scheme, cut), "spm", specials, pre=metaspace(scheme, cut),
                 post=bos, decoder=metaspace(scheme, cut))
    case("unknown_each", "latin", pre=metaspace("always", True), decoder=metaspace("always", True))
    case("unknown_fused", "latin_fused", pre=metaspace("always", True))
    case("unknown_dropped", "latin_drop", pre=metaspace("never", True))
    case("affixes", "affix", pre={"type": "Whitespace"})
    case("strip_ends", "spm", specials, pre=metaspace("never", False), decoder=sequence(
        "decoders", *SPM_DECODER["decoders"][:3],
        {"type": "Strip", "content": " ", "start": 2, "stop": 3}))
    case("strip_tokens", "spm", specials, pre=metaspace("never", False), decoder=sequence(
        "decoders", {"type": "Strip", "content": "▁", "start": 1, "stop": 1},
        {"type": "Replace", "pattern": {"String": "e"}, "content": "EE"}, {"type": "Fuse"}))
    return cases


def make_texts():
    rng = random.Random(20240517)
    texts = [s.encode() for s in SENTENCES]
    texts += [s.encode() for s in (
        "", " ", "  ", "\n", "\t", " \n \n", "a", "\u2581", " a", "a ", "   leading", "trailing   ",
        " " * 100, "a" * 300, "the" * 40, "\n" * 50, "1234567890" * 12, "ab " * 60,
        "<|end|>", "x<|end|>y <|begin|> z", "<s>", "a <s> b</s><unk>c", "<|endoftext|> <|im_start|>",
        "<|begin_of_text|><|eot_id|>", "hey <mask> you  <mask>", "<rs>   after  <rs>\n\nend",
        "the there then bathe the", "Noël Noe\u0308l noël", "<|<|<|end|>", "  the  ", "a\u00a0b\u3000c",
        "IT'S HE'LL we'Re \u017f's 'S", "\u1e9b\u0323 \ufb01 \u2460 \u212b \u00bd",
        "e\u0301\u0323\u0302 a\u0328\u0301", "\u0130stanbul \u01c5 \u03a3\u03c2", "\r\n\r\n x\r",
        "\u180e \u0085\u2028\u2029\u200b\u200d\ufeff", "\x01\x02\x7f", "0x1F 3,000,000.00 \u0661\u0662",
        "\U0001f469\u200d\U0001f4bb\U0001f1e9\U0001f1ea\u2764\ufe0f", "12 1234 123456 1234567",
        "snake_case camelCase __init__ a.b->c != d && e", "\u0e01\u0e33 \u1780\u17d2 \u0939\u093f"
    )]
    texts += [b"\xff", b"a\xffb", b"\xe4\xbd", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80 \xf5",
              b"ok \x80\x81\x82 ok", b"\xf0\x9f\x98\x80\xf0\x9f", b"nul \x00 byte"]
    words = " ".join(SENTENCES).split(" ") + ["<s>", "</s>", "<|end|>", "<mask>", "<|im_end|>"]
    for _ in range(40):
        text = "".join(rng.choice(words) + rng.choice(("", " ", " ", "  ", "\n", "\t"))
                       for _ in range(rng.randint(1, 25)))
        texts.append(text.encode())
    blocks = [(0x20, 0x7f), (0xa1, 0x180), (0x391, 0x3c9), (0x410, 0x44f), (0x4e00, 0x4f00),
              (0xac00, 0xad00), (0x1f600, 0x1f640), (0x5d0, 0x5ea), (0x20, 0x30)]
    for _ in range(25):
        text = "".join(chr(rng.randint(*rng.choice(blocks))) for _ in range(rng.randint(1, 40)))
        texts.append(text.encode())
    for _ in range(15):
        texts.append(bytes(rng.choice((rng.randrange(1, 256), 0x20, 0x61, 0xf0, 0x9f, 0xe4, 0xbd))
                           for _ in range(rng.randint(1, 24))))
    return texts


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return "%08x" % ((value ^ value >> 32) & 0xFFFFFFFF)


def decoded(decoder, ids):
    try:
        texts = [decoder.decode(ids, skip_special_tokens=skip) for skip in (False, True)]
        return fnv(b"".join(text.encode() + b"\0" for text in texts))
    except BaseException as error:  # The library panics where Strip meets a short text.
        if type(error).__name__ != "PanicException":
            raise
        return "-"


def reference(text_json, texts):
    tokenizer = Tokenizer.from_str(text_json)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # The library spells a token that is marked `normalized` in its normalized form when it decodes
    # and then does not know it for special; decoding is therefore compared without that mark.
    plain = json.loads(text_json)
    for token in plain["added_tokens"]:
        token["normalized"] = False
    decoder = Tokenizer.from_str(json.dumps(plain))
    rows = []
    for text in texts:
        data = b""
        for flags in range(4):
            tokenizer.encode_special_tokens = not flags & 2
            ids = tokenizer.encode(text.decode("utf-8", "replace"),
                                   add_special_tokens=bool(flags & 1)).ids
            data += struct.pack("<%di" % (len(ids) + 1), len(ids), *ids)
        rows.append(fnv(data) + " " + decoded(decoder, ids))
    return " ".join(rows)


def main():
    all_models = make_models()
    cases = make_cases(all_models)
    texts = make_texts()
    out = {"texts": [t.hex() for t in texts], "synthetic": {}, "published": {}}
    for name, item in cases.items():
        whole = dict(item, model=all_models[item["model"]], version="1.0", truncation=None,
                     padding=None)
        out["synthetic"][name] = reference(json.dumps(whole), texts)
    if len(sys.argv) > 1:
        for name in ("gpt2", "llama2", "llama3", "mistral", "qwen2.5"):
            with open(os.path.join(sys.argv[1], name, "tokenizer.json"), encoding="utf-8") as file:
                out["published"][name] = reference(file.read(), texts)
    with open(os.path.join(HERE, "data", "synthetic.json"), "w", encoding="utf-8") as file:
        json.dump({"models": all_models, "cases": cases}, file, ensure_ascii=False,
                  separators=(",", ":"))
    with open(os.path.join(HERE, "data", "reference.json"), "w", encoding="utf-8") as file:
        json.dump(out, file, separators=(",", ":"), indent=0)
    print("%d texts, %d cases, %d published" % (len(texts), len(cases), len(out["published"])))


if __name__ == "__main__":
    main()
