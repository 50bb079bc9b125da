"""Generated long-context tasks, worded as clients/quality (and so RULER) words them.

A sequence asks many questions about one context, so that the loss is dense: the questions that
follow the first one are not independent prompts, but each teaches the same lookup. Pieces are
(text, weight) pairs as in stories.py; only answers have a weight. The piece BREAK ends a stretch of
text that is encoded by itself, as a prompt is before its continuation is known.
"""

import string
import uuid

from . import benchmark, stories, words
from .tokenizer import EOS, IM_END, IM_START

# Token costs, measured with the bundled tokenizer, rounded up; they only size a sequence.
NEEDLE_TOKENS = {"number": 18, "word": 17, "uuid": 39}
KEY_EXTRA = {"pair": 0, "word": -2, "uuid": 23}

BREAK = (None, 0.0)


def random_uuid(rng):
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def make_key(rng, kind):
    if kind == "uuid":
        return random_uuid(rng)
    if kind == "word":
        return rng.choice(words.NOUNS if rng.random() < 0.75 else words.ADJECTIVES)
    return f"{rng.choice(words.ADJECTIVES)}-{rng.choice(words.NOUNS)}"


def make_value(rng, kind):
    if kind == "uuid":
        return random_uuid(rng)
    if kind == "word":
        return f"{rng.choice(words.ADJECTIVES)}-{rng.choice(words.NOUNS)}"
    return str(rng.randrange(1000000, 10000000))


def _unique_keys(rng, kind, count):
    keys, seen = [], set()
    limit = 20 * count
    while len(keys) < count and limit:
        limit -= 1
        key = make_key(rng, kind)
        if key not in seen:
            seen.add(key)
            keys.append(key)
    return keys


def _join_list(items):
    if len(items) == 1:
        return items[0]
    return ", ".join(items[:-1]) + ", and " + items[-1]


def haystack(rng, kind, needles, token_budget, separator):
    """Needles spread at random places of filler text of about token_budget tokens."""
    if kind == "needle" or token_budget < 30:
        return separator.join(needles)
    if kind == "noise":
        filler = [words.NOISE] * max(1, token_budget // 25)
    else:
        if rng.random() < 0.6:
            filler = benchmark.filler.take(rng, max(1, token_budget // 19))
        else:
            filler = [stories.sentence(rng) for _ in range(max(1, token_budget // 11))]
    slots = sorted(rng.randrange(len(filler) + 1) for _ in needles)
    out, at = [], 0
    for needle, slot in zip(needles, slots):
        out += filler[at:slot]
        out.append(needle)
        at = slot
    out += filler[at:]
    return separator.join(out)


def _niah_words(value_kind):
    plural = {"number": "numbers", "word": "words", "uuid": "uuids"}[value_kind]
    return plural, plural[:-1]


def _niah_question(keys, values, value_kind):
    """Question, prefix of the answer, and answer."""
    plural, singular = _niah_words(value_kind)
    query = _join_list(keys)
    if len(values) == 1:
        return (f"What is the special magic {singular} for {query} mentioned in the provided text?",
                f"The special magic {singular} for {query} mentioned in the provided text is",
                f" {values[0]}.")
    return (f"What are all the special magic {plural} for {query} mentioned in the provided text?",
            f"The special magic {plural} for {query} mentioned in the provided text are",
            f" {_join_list(values)}.")


def _ask(rng, pieces, context, questions, style):
    """Append the context and its questions in one of the prompt styles.

    Where the user's message ends with the beginning of the answer, the assistant goes on with a
    space, as in the plain style: the tokens of a value are then those of the text. In half of the
    plain sequences only the first question is asked in full, the others just begin
    their answers: more answers for the same number of tokens.
    """
    full = rng.random() < 0.5
    if style == "plain":
        pieces.append((context, 0.0))
        for i, (question, prefix, answer) in enumerate(questions):
            asked = f"{question} {prefix}" if i == 0 or full else prefix
            pieces.append((f"\n{asked}", 0.0))
            pieces.append(BREAK)
            pieces.append((f"{answer}{EOS}", 1.0))
        return
    for i, (question, prefix, answer) in enumerate(questions):
        before = f"{context}\n" if i == 0 else ""
        pieces.append((f"{IM_START}user\n{before}{question}", 0.0))
        if style == "chat_prefix":
            pieces.append((f" {prefix.strip()}{IM_END}\n{IM_START}assistant\n", 0.0))
            pieces.append((f" {answer.strip()}{IM_END}", 1.0))
        else:
            pieces.append((f"{IM_END}\n{IM_START}assistant\n", 0.0))
            pieces.append((prefix, 0.1))
            pieces.append((f"{answer}{IM_END}", 1.0))
        pieces.append(("\n", 0.0))


def niah(rng, token_budget, key_kind=None, value_kind=None, hay=None, needle_count=None,
         question_count=None, style=None, per_key=None, keys_per_question=None):
    """Needles in a haystack, RULER wording, as many questions as fit a quarter of the budget."""
    key_kind = key_kind or rng.choice(["pair", "pair", "pair", "word", "uuid"])
    value_kind = value_kind or rng.choice(["number"] * 4 + ["word", "uuid"])
    hay = hay or rng.choice(["needle", "needle", "noise", "essay"])
    style = style or rng.choice(["plain", "plain", "chat", "chat_prefix"])
    per_key = per_key or (rng.choice([1, 1, 1, 2, 4]) if hay != "needle" else 1)
    keys_per_question = keys_per_question or rng.choice([1, 1, 1, 1, 2, 4])
    if per_key > 1:
        keys_per_question = 1
    separator = rng.choice(["\n", "\n", " "])
    cost = NEEDLE_TOKENS[value_kind] + KEY_EXTRA[key_kind]
    question_cost = 26 + 2 * (cost - 12) * keys_per_question + 8 * (per_key - 1)
    question_cost += 6 if style != "plain" else 0
    if question_count is None:
        question_count = max(1, int(token_budget * rng.uniform(0.2, 0.6)) // question_cost)
    context_budget = token_budget - question_count * question_cost - 40
    fit = max(1, context_budget // (cost * per_key))
    if needle_count is None:
        needle_count = fit if hay == "needle" else rng.randrange(1, max(2, fit // 2 + 1))
    keys = _unique_keys(rng, key_kind, min(needle_count, fit))
    plural, singular = _niah_words(value_kind)
    values = {key: [make_value(rng, value_kind) for _ in range(per_key)] for key in keys}
    pairs = [(key, value) for key in keys for value in values[key]]
    rng.shuffle(pairs)
    in_order = {key: [v for k, v in pairs if k == key] for key in keys} if per_key > 1 else values
    needles = [f"One of the special magic {plural} for {k} is: {v}." for k, v in pairs]
    text = haystack(rng, hay, needles, context_budget - cost * len(needles), separator)
    if len(pairs) == 1 or rng.random() < 0.5:
        intro = (f"A special magic {singular} is hidden within the following text. Make sure to "
                 f"memorize it. I will quiz you about the {singular} afterwards.\n")
    else:
        intro = (f"Some special magic {plural} are hidden within the following text. Make sure to "
                 f"memorize it. I will quiz you about the {plural} afterwards.\n")
    questions = []
    for _ in range(question_count):
        asked = rng.sample(keys, min(keys_per_question, len(keys)))
        found = [v for key in asked for v in in_order[key]]
        questions.append(_niah_question(asked, found, value_kind))
    pieces = []
    _ask(rng, pieces, intro + text, questions, style)
    return pieces


def lookup(rng, token_budget, key_kind=None, value_kind=None):
    """Bare key-value lines, then bare lookups: the cheapest form of the same skill."""
    key_kind = key_kind or rng.choice(["pair", "word", "word", "uuid", "digits"])
    value_kind = value_kind or rng.choice(["number", "number", "word", "uuid"])
    link, end = rng.choice([(": ", "\n"), (" is ", ". "), (" = ", "\n"), (" is: ", ".\n"),
                            (" -> ", ", ")])
    cost = (NEEDLE_TOKENS[value_kind] - 8 +
            (3 if key_kind == "digits" else KEY_EXTRA[key_kind]))
    count = max(2, int(token_budget * rng.uniform(0.3, 0.6)) // cost)
    if key_kind == "digits":
        keys = list({str(rng.randrange(1000, 10000000)) for _ in range(count)})
    else:
        keys = _unique_keys(rng, key_kind, count)
    values = {key: make_value(rng, value_kind) for key in keys}
    pieces = [("".join(f"{k}{link}{values[k]}{end}" for k in keys), 0.0)]
    asked = keys[:]
    rng.shuffle(asked)
    for key in (asked * 4)[:max(1, token_budget // cost - count)]:
        pieces.append((f"{key}{link.rstrip()}", 0.0))
        space = " " if link.endswith(" ") else ""
        pieces.append((f"{space}{values[key]}{end}", 1.0))
    return pieces


CONNECTING = ("the in of text provided mentioned is that was to be value given above this "
              "for").split()


def _connection(rng):
    """What stands between a key and its value: up to seven words, then a verb or a sign."""
    count = min(rng.randrange(8), rng.randrange(8))
    return "".join(f" {rng.choice(CONNECTING)}" for _ in range(count)) + rng.choice(
        [" is", " is", " is:", ":", " are", " =", " ->"])


def connections(rng, token_budget):
    """Lookups whose question words the link from key to value otherwise than the context does."""
    key_kind = rng.choice(["pair", "pair", "word", "word", "uuid"])
    value_kind = rng.choice(["number", "number", "number", "word", "uuid"])
    end = rng.choice(["\n", ".\n", ". ", "; "])
    cost = NEEDLE_TOKENS[value_kind] - 5 + KEY_EXTRA[key_kind]
    count = max(2, int(token_budget * rng.uniform(0.4, 0.6)) // cost)
    keys = _unique_keys(rng, key_kind, count)
    values = {key: make_value(rng, value_kind) for key in keys}
    link = _connection(rng)
    before = rng.choice(["", "", "The number for ", "One of the values for ", "for "])
    pieces = [("".join(f"{before}{k}{link} {values[k]}{end}" for k in keys), 0.0)]
    before = rng.choice(["", "", "The number for ", "The value for ", "for "])
    link = _connection(rng)
    for key in rng.sample(keys, min(len(keys), max(1, token_budget // cost - count))):
        if rng.random() < 0.3:
            link = _connection(rng)
        pieces.append((f"{before}{key}{link}", 0.0))
        pieces.append((f" {values[key]}{end.rstrip(' ')}", 1.0))
        pieces.append((" " if end.endswith(" ") else "", 0.0))
    return pieces


def _chain_lines(names, value):
    lines = [f"VAR {names[0]} = {value}"]
    return lines + [f"VAR {new} = VAR {old} " for old, new in zip(names, names[1:])]


def _vt_context(rng, chains, filler_budget):
    """Chains of (names, value), each in order, at random places of the noise."""
    order = [i for i, (names, _) in enumerate(chains) for _ in names]
    rng.shuffle(order)
    lines = [iter(_chain_lines(names, value)) for names, value in chains]
    noise = [words.NOISE + "\n"] * max(0, filler_budget // 25)
    separator = " "
    if not noise:
        separator = rng.choice(["\n", " ", "\n"])
    slots = sorted(rng.randrange(len(noise) + 1) for _ in order)
    out, at = [], 0
    for i, slot in zip(order, slots):
        out += noise[at:slot]
        out.append(next(lines[i]))
        at = slot
    return separator.join(out + noise[at:])


def _vt_question(names, value):
    return (f"Question: Find all variables that are assigned the value {value} in the text above.",
            "Answer: According to the chain(s) of variable assignment in the text above, "
            f"{len(names)} variables are assgined the value {value}, they are: ",
            " ".join(names) + ".")


def _variable_names(rng, count, letters):
    names = []
    while len(names) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    return names


def variable_tracking(rng, token_budget, style=None):
    """Variable tracking with one or many chains; the answer lists a chain in its order."""
    style = style or rng.choice(["plain", "plain", "chat", "chat_prefix"])
    length = rng.choice([2, 3, 4, 5, 5, 5])
    letters = rng.choice([3, 5, 5, 5])
    chain_cost = 18 * length + 66
    most = max(1, token_budget // chain_cost)
    chains = max(1, rng.choice([1, 2, most, most, most // 2]))
    made = []
    for _ in range(min(chains, most)):
        made.append((_variable_names(rng, length, letters), str(rng.randrange(10000, 99999))))
    intro = ("Memorize and track the chain(s) of variable assignment hidden in the following "
             "text.\n\n")
    context = _vt_context(rng, made, token_budget - len(made) * chain_cost - 20)
    questions = [_vt_question(*chain) for chain in rng.sample(made, len(made))]
    pieces = []
    _ask(rng, pieces, intro + context, questions, style)
    return pieces


def common_words(rng, token_budget, style=None):
    """RULER's common words extraction; the answer is ordered by first appearance."""
    style = style or rng.choice(["plain", "plain", "chat", "chat_prefix"])
    common_count = 10
    many = max(4, min(30, token_budget // 120))
    few = max(1, many // 10)
    common = rng.sample(words.NOUNS, common_count)
    rest = [w for w in words.NOUNS + words.ADJECTIVES if w not in common]
    rare_count = max(2, (token_budget - 150 - common_count * many * 4) // (4 * few))
    listed = common * many + rng.sample(rest, min(rare_count, len(rest))) * few
    rng.shuffle(listed)
    first = sorted(common, key=listed.index)
    context = " ".join(f"{i + 1}. {w}" for i, w in enumerate(listed))
    intro = ("Below is a numbered list of words. In these words, some appear more often than "
             "others. Memorize the ones that appear most often.\n")
    answer = " " + " ".join(f"{i + 1}. {w}" for i, w in enumerate(first))
    pieces = []
    _ask(rng, pieces, intro + context,
         [("Question: What are the 10 most common words in the above list?",
           "Answer: The top 10 words that appear most often in the list are:", answer)], style)
    return pieces


def frequent_words(rng, token_budget, style=None):
    """RULER's frequent words extraction: Zipf frequencies, the dots on top are to be ignored."""
    style = style or rng.choice(["plain", "plain", "chat", "chat_prefix"])
    total = max(20, (token_budget - 120) // 4)
    coded = ["..."] + list({"".join(rng.choices(string.ascii_lowercase, k=6))
                            for _ in range(max(8, token_budget // 50))})
    listed = []
    for rank, word in enumerate(coded, start=1):
        listed += [word] * int(0.61 * total * rank ** -2.0)
    rng.shuffle(listed)
    context = " ".join(listed)
    intro = ("Read the following coded text and track the frequency of each coded word. Find the "
             "three most frequently appeared coded words. ")
    question = ("Question: Do not provide any explanation. Please ignore the dots '....'. What are "
                "the three most frequently appeared words in the above coded text?")
    prefix = ("Answer: According to the coded text above, the three most frequently appeared "
              "words are:")
    pieces = []
    _ask(rng, pieces, intro + context, [(question, prefix, " " + " ".join(coded[1:4]) + ".")],
         style)
    return pieces


def benchmark_sample(rng, token_budget, name, size, style=None):
    """A sample as clients/quality builds it, of `size` units, under a label of our own."""
    style = style or rng.choice(["plain", "chat_prefix"])
    sample = benchmark.TASKS[name].build(size, token_budget, f"training-{rng.getrandbits(64)}", 0)
    answer = (" " if name.startswith("niah") else "") + _join_list(list(sample.references)) + "."
    if name == "vt":
        answer = " ".join(sample.references) + "."
    if style == "plain":
        return [(sample.text, 0.0), BREAK, (answer + EOS, 1.0)]
    return [(f"{IM_START}user\n{sample.text.strip()}{IM_END}\n{IM_START}assistant\n", 0.0),
            (" " + answer.strip() + IM_END, 1.0)]
