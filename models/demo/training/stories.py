"""Small templated English: stories, short essays and chat exchanges.

A text piece is a pair (text, weight): weight is the share of the loss that its tokens carry.
"""

from . import words
from .tokenizer import EOS, IM_END, IM_START

LANGUAGE_WEIGHT = 0.3


def _a(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


def sentence(rng):
    """One plain sentence about things; also the filler of essay-like haystacks."""
    noun, noun2 = rng.choice(words.NOUNS), rng.choice(words.NOUNS)
    adj, adj2 = rng.choice(words.ADJECTIVES), rng.choice(words.ADJECTIVES)
    verb = rng.choice(words.VERBS)
    name, name2 = rng.choice(words.NAMES), rng.choice(words.NAMES)
    form = rng.randrange(12)
    if form == 0:
        return f"The {adj} {noun} {verb} the {noun2}."
    if form == 1:
        return f"There was {_a(adj)} {noun} near the {noun2}."
    if form == 2:
        return f"{name} {verb} the {adj} {noun}."
    if form == 3:
        return f"In the morning {name} {verb} {_a(noun)} and {_a(noun2)}."
    if form == 4:
        return f"The {noun} is {adj} and the {noun2} is {adj2}."
    if form == 5:
        return f"Nobody {verb} the {noun} that day."
    if form == 6:
        return f"{name} and {name2} talked about the {adj} {noun}."
    if form == 7:
        return f"It was {_a(adj)} day, so {name} {verb} the {noun}."
    if form == 8:
        return f"Some people think that every {noun} should be {adj}."
    if form == 9:
        return f"When the {noun} was {adj}, the {noun2} was {adj2}."
    if form == 10:
        return f"The {noun} of {name} was more {adj} than the {noun2}."
    return f"Later {name} {verb} {_a(adj)} {noun} for {name2}."


def essay(rng, sentence_count):
    return " ".join(sentence(rng) for _ in range(sentence_count))


def story(rng):
    """A story whose facts stay consistent from the first sentence to the last."""
    name, friend = rng.sample(words.NAMES, 2)
    thing, place, animal = rng.sample(words.NOUNS, 3)
    adj, adj2 = rng.sample(words.ADJECTIVES, 2)
    color = rng.choice(words.COLORS)
    count = rng.choice(words.NUMBER_WORDS[2:10])
    opening = rng.choice([
        f"Once upon a time there was a child named {name}. {name} had {_a(color)} {thing}.",
        f"One day {name} found {_a(color)} {thing} near the {place}.",
        f"Long ago, in {_a(adj)} village, lived {name}. {name} loved the {color} {thing}.",
    ])
    middle = rng.choice([
        f"{name} went to the {place} with {friend}. They saw {_a(adj)} {animal}. "
        f"The {animal} was {adj2}, and it wanted the {thing}.",
        f"But the {thing} was lost. {name} looked for it in the {place}. "
        f"{friend} helped {name}, and they counted {count} steps to the {animal}.",
        f"{friend} asked, \"May I hold the {thing}?\" {name} said, \"Yes, you may.\" "
        f"Then {friend} took the {color} {thing} to the {place}.",
        f"The {animal} came to the {place} and {name} was not {adj}. "
        f"\"Look,\" said {friend}, \"the {animal} likes your {thing}.\"",
    ])
    ending = rng.choice([
        f"In the evening {name} and {friend} went home with the {color} {thing}. They were happy.",
        f"At last {name} gave the {thing} to {friend}, and they became good friends.",
        f"{name} smiled. The {color} {thing} was safe, and {friend} was glad. The end.",
    ])
    return f"{opening} {middle} {ending}"


def _question(rng):
    """A chat question that can be answered without any context, and its answer."""
    noun, noun2, noun3 = rng.sample(words.NOUNS, 3)
    adj = rng.choice(words.ADJECTIVES)
    name = rng.choice(words.NAMES)
    number = rng.randrange(1, 19)
    form = rng.randrange(17)
    if form == 0:
        return rng.choice(["Hello!", "Hi!", "Hello", "Hi", "Hey!", "Good morning!", "Hi there!",
                           "Hello there!", "hello", "hi"]), "Hello! How can I help you today?"
    if form == 1:
        return f"Hello, my name is {name}.", f"Hello, {name}! How can I help you today?"
    if form == 2:
        return rng.choice(["How are you?", "How are you today?", "Hello, how are you?"]), \
            "I am well, thank you. How can I help you?"
    if form == 3:
        return rng.choice(["Who are you?", "What are you?", "What is your name?"]), \
            "I am a very small language model. I can find things in a long text."
    if form == 4:
        return rng.choice(["Thank you!", "Thanks!", "Thank you very much."]), "You are welcome!"
    if form == 5:
        return rng.choice(["Goodbye!", "Bye!", "See you later."]), "Goodbye! Have a nice day."
    if form == 6:
        return f"Repeat after me: {noun} {noun2} {noun3}", f"{noun} {noun2} {noun3}"
    if form == 7:
        text = sentence(rng)
        return f"Repeat this sentence: {text}", text
    if form == 8:
        lo, hi = min(number, 19), min(number + rng.randrange(2, 8), 20)
        return f"Count from {lo} to {hi}.", ", ".join(str(i) for i in range(lo, hi + 1)) + "."
    if form == 9:
        return f"What number comes after {number}?", f"The number after {number} is {number + 1}."
    if form == 10:
        return f"Which word comes first: {noun}, {noun2} or {noun3}?", f"The first word is {noun}."
    if form == 11:
        return f"Which word comes last: {noun}, {noun2} or {noun3}?", f"The last word is {noun3}."
    if form == 12:
        return f"The {noun} is {adj}. What is {adj}?", f"The {noun} is {adj}."
    if form == 13:
        return f"Write a sentence about {_a(noun)}.", \
            rng.choice([f"The {noun} is {adj}.", f"{name} saw {_a(adj)} {noun}.",
                        f"There was {_a(adj)} {noun} near the {noun2}."])
    if form == 14:
        return rng.choice(["What can you do?", "Help", "Can you help me?"]), \
            "I can find numbers and words in a long text, follow variables, and tell short stories."
    if form == 15:
        color = rng.choice(words.COLORS)
        return f"{name} has {_a(color)} {noun}. What color is the {noun}?", \
            f"The {noun} is {color}."
    return rng.choice(["Tell me a story.", "Please tell me a story.", "Write a short story.",
                       "Tell me a short story."]), story(rng)


def chat(rng):
    """One to three exchanges in the chat format; the loss is on the assistant's turns."""
    pieces = []
    if rng.random() < 0.3:
        text = rng.choice(["You are a helpful assistant.", "Answer in short sentences.",
                           "You are kvahead, a helpful assistant."])
        pieces.append((f"{IM_START}system\n{text}{IM_END}\n", 0.0))
    for _ in range(rng.choice([1, 1, 2, 3])):
        question, answer = _question(rng)
        pieces.append((f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n", 0.0))
        pieces.append((f"{answer}{IM_END}", 1.0))
        pieces.append(("\n", 0.0))
    return pieces


def plain(rng):
    """A story or an essay outside the chat format."""
    text = story(rng) if rng.random() < 0.75 else essay(rng, rng.randrange(2, 12))
    return [(text, LANGUAGE_WEIGHT), (EOS, LANGUAGE_WEIGHT)]
