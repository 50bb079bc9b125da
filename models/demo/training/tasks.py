"""Generated long-context tasks, worded as clients/quality (and so RULER) words them.

A sequence asks many questions about one context, so that the loss is dense: the questions that
follow the first one are not independent prompts, but each teaches the same lookup. Pieces are
(text, weight) pairs as in stories.py; only answers have a weight. The piece BREAK ends a stretch of
text that is encoded by itself, as a prompt is before its continuation is known.
"""

import string
import uuid
from itertools import pairwise

from . import benchmark, stories, words
from .tokenizer import EOS, IM_END, IM_START

# Token costs, measured with the bundled tokenizer, rounded up; they only size a sequence.
NEEDLE_TOKENS = {"number": 23, "word": 17, "uuid": 48}
KEY_EXTRA = {"pair": 0, "word": -2, "uuid": 32}
VT_LINE, VT_QUESTION, NOISE_LINE = 19, 68, 27

BREAK = (None, 0.0)


def random_uuid(rng):
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def make_key(rng, kind):
    if kind == "uuid":
        return random_uuid(rng)
    if kind == "word":
        return rng.choice(words.NOUNS if rng.random() < 0.75 else words.ADJECTIVES)
    source = benchmark.words if rng.random() < 0.9 else words
    return f"{rng.choice(source.ADJECTIVES)}-{rng.choice(source.NOUNS)}"


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
    """Question, prefix of the answer, what follows the prefix, and the answer without it."""
    plural, singular = _niah_words(value_kind)
    query, found = _join_list(keys), _join_list(values)
    if len(values) == 1:
        return (f"What is the special magic {singular} for {query} mentioned in the provided text?",
                f"The special magic {singular} for {query} mentioned in the provided text is",
                f": {found}.", f"It is: {found}.")
    return (f"What are all the special magic {plural} for {query} mentioned in the provided text?",
            f"The special magic {plural} for {query} mentioned in the provided text are",
            f": {found}.", f"They are: {found}.")


def _ask(rng, pieces, context, questions, style):
    """Append the context and its questions in one of the prompt styles.

    "plain" goes on after the prefix of the answer. "chat_prefix" has it at the end of the user's
    message, as a benchmark in a chat has; "chat" is a conversation without it. In half of the plain
    sequences only the first question is asked in full, the others just begin their answers: more
    answers for the same number of tokens.
    """
    full = rng.random() < 0.5
    if style == "plain":
        pieces.append((context, 0.0))
        for i, (question, prefix, answer, _) in enumerate(questions):
            asked = f"{question} {prefix}" if i == 0 or full else prefix
            pieces.append((f"\n{asked}", 0.0))
            pieces.append(BREAK)
            pieces.append((f"{answer}{EOS}", 1.0))
        return
    for i, (question, prefix, _, answer) in enumerate(questions):
        before = f"{context}\n" if i == 0 else ""
        asked = f"{question} {prefix.strip()}" if style == "chat_prefix" else question
        pieces.append((f"{IM_START}user\n{before}{asked}{IM_END}\n{IM_START}assistant\n", 0.0))
        pieces.append(BREAK)
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


def _vt_context(rng, names, value, noise_lines, separator):
    """The lines of one chain, in order, at random places of the noise."""
    chain = [f"VAR {names[0]} = {value}"]
    chain += [f"VAR {new} = VAR {old} " for old, new in pairwise(names)]
    lines = [words.NOISE + "\n"] * noise_lines
    places = sorted(rng.choices(range(max(1, noise_lines)), k=len(chain)))
    for shift, (place, link) in enumerate(zip(places, chain)):
        lines.insert(place + shift, link)
    return separator.join(lines)


def _vt_question(names, value):
    """The answer walks the chain from the value on, as the benchmark's example does."""
    answer = f" {' '.join(names)}."
    return (f"Question: Find all variables that are assigned the value {value} in the text above.",
            "Answer: According to the chain(s) of variable assignment in the text above, "
            f"{len(names)} variables are assgined the value {value}, they are: ", answer, answer)


def _variable_names(rng, count, letters):
    names = []
    while len(names) < count:
        name = "".join(rng.choices(string.ascii_uppercase, k=letters))
        if name not in names:
            names.append(name)
    return names


def variable_tracking(rng, token_budget, style=None, example=None):
    """One chain; like the benchmark's prompts, mostly after an example with shorter names."""
    style = style or rng.choice(["plain", "chat_prefix"])
    intro = ("Memorize and track the chain(s) of variable assignment hidden in the following "
             "text.\n\n")
    before = ""
    if example if example is not None else token_budget > 900 or rng.random() < 0.3:
        names, value = _variable_names(rng, 5, 3), rng.randrange(10000, 99999)
        noise = rng.randrange(3) if token_budget < 700 else 10
        question, prefix, _, _ = _vt_question(names, value)
        before = (f"{intro}{_vt_context(rng, names, value, noise, ' ')}\n{question} {prefix}"
                  f"{' '.join(names)}\n\n\n\n")
        token_budget -= 5 * (VT_LINE - 4) + NOISE_LINE * noise + VT_QUESTION + 40
    length = rng.choice([2, 3, 4, 5, 5, 5, 5, 5])
    names, value = _variable_names(rng, length, 5), rng.randrange(10000, 99999)
    noise = (token_budget - length * VT_LINE - 2 * VT_QUESTION - 30) // NOISE_LINE
    separator = " " if before or rng.random() < 0.7 else ""
    context = before + intro + _vt_context(rng, names, value, max(0, noise), separator)
    pieces = []
    _ask(rng, pieces, context, [_vt_question(names, value)], style)
    return pieces
