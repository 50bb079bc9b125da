"""Initial weights: random, with the circuits of retrieval laid out in the first three layers.

Models find such circuits by themselves, but only after many millions of tokens, more than a CPU
reads in hours. So they are written here and stay as they are (freeze()): training adds what follows
them, the last layer, two feed-forward parts and the head.

The residual stream is cut into blocks of CODE dimensions behind one constant dimension:

    THIS         the token's own code, random, from the embedding; within alphabets orthogonal
    BACK_1..4    codes of the tokens 1..4 places before, written by the four heads of layer 0
    NEXT         code of the predicted token, written by layers 1 and 2, read by lm_head
    KEY_1..4     the four tokens before the latest marker, written by layer 1

and FLAGS, single dimensions behind the blocks. Markers are the words that follow a key, " is" in a
needle and " mentioned" in a question; an " is" after the words of UNMARKED follows no key. So at
every token of a value and of an answer the KEY blocks say whose value it is. Chains of variables
have two more: the third letter of a variable that is set, so that behind "VAR B = VAR A" the KEY is
how B begins, and " they" behind the value that a question names.

    layer 1  two induction heads, the second one for the latest match; a head that fetches the KEY;
             an induction head for the letters of names
    layer 2  two heads that look for the same KEY and the same last tokens; two heads for the first
             and for the second letter of a name: they go from the last letters of A, or from the
             value that is asked for, to the end of "= VAR A" or "= value" and read the KEY there

Heads that find nothing attend to the beginning of the text, which carries no code.
"""

import string

import torch

from .tokenizer import BOS, SPACE

CODE = 30
LENGTH = CODE ** 0.5  # of a code in the residual stream
CONSTANT, FLAG, LETTER_FLAG = 3.0, 4.0, 2.0
THIS, BACK_1, BACK_2, BACK_3, BACK_4, NEXT, KEY_1, KEY_2, KEY_3, KEY_4 = range(10)
BLOCKS, BACK = 10, 4
# INITIAL: a capital behind a space, where names begin; CAPITAL: the others. IN_NEEDLE, IN_QUESTION,
# IN_CHAIN, IN_NAME: the latest marker is " is", " mentioned", " they", the third letter of a name.
(MARK, IS, MENTIONED, THEY, UNMARK, UNMARKED_1, VAR, VAR_3, EQUALS, EQUALS_4, CAPITAL, CAPITAL_1,
 INITIAL, BEGIN, IN_NEEDLE, IN_QUESTION, IN_CHAIN, IN_NAME) = range(18)
# The last dimension; the beginning has this in it, to be as long as other tokens are later.
REST, REST_OF_BEGIN = 319, 14.0
# Words that stand in the same places of all needles.
SAME_WORDS = [SPACE + word for word in "of the special magic numbers number for is text".split()]
WORDING = ["assistant", "One", "What", "It", "?", "\u010a"]
WORDING += [SPACE + word for word in "The mentioned in provided are VAR =".split()]
VALUES = [*"0123456789abcdef-:", SPACE, ".", ".\u010a", *SAME_WORDS]
MARKERS = [SPACE + "is", SPACE + "mentioned", SPACE + "they"]
UNMARKED = [SPACE + "text", "It", "What"]
CAPITALS = [*string.ascii_uppercase, "AR"]  # "AR" is a token because of "VAR"
INITIALS = [SPACE + letter for letter in string.ascii_uppercase]
KEY_LENGTH, SIGN_LENGTH = 2.5, 5.0  # in a key vector: of a code, of a flag or position
# Index of the first rotation frequency slow enough to compare codes at thousands of tokens.
SLOW = 20
# Frequencies whose sum falls with the distance, for "the latest".
RECENT = range(4, 17)
# What the terms add to the scores of the heads, in nats; for codes (this token, the one before,
# ...). The values are those that did best on fresh sequences before any training.
OFFSET = torch.tensor([20.0, 16.0, 11.0, 8.0, 6.0, 4.0, 3.0, 3.0] + 8 * [2.0])
INDUCTION = [(9.0, 8.0, 7.0, 6.0), (10.0, 6.0, 4.0, 2.0)]
INDUCTION_SINK = [16.0, 40.0]
INDUCTION_LATEST = 1.5
MARK_NATS, LATEST = 45.0, 4.0
# Two letters that match are above the sink; one is not, nor are three at the end of a name.
NAME, NAME_CAPITAL, NAME_SINK, NAME_OPEN = (26.0, 20.0, 8.0), 30.0, 108.0, 32.0
MATCH_KEY = [(18.0, 18.0, 10.0, 10.0), (18.0, 18.0, 8.0, 8.0)]
MATCH_LOCAL = [(14.0, 12.0, 10.0, 10.0), (15.0, 13.0, 11.0, 10.0)]
COLON_NATS = 14.0
MATCH_SINK, MATCH_OPEN, NEEDLE_NATS = 85.0, 50.0, 20.0
HOP, VALUE, END_NATS, NO_END, HOP_NATS = (20.0, 18.0, 16.0), (13.0, 13.0, 13.0), 20.0, -1.5, 34.0
# Closed outside of chains: three letters and the value together come to 93.
FIRST_SINK, FIRST_CLOSED, SECOND_SINK, SECOND_OPEN, CHAIN_OPEN = 110.0, 45.0, 162.0, 52.0, 80.0
# Gains of what the heads write, and of the head of the model.
INDUCTION_GAIN, NAME_GAIN, MATCH_GAIN, HOP_GAIN = 0.25, 1.3, 0.8, 2.0
MARKER_GAIN = 1.12  # markers have flags, and so less of their length in each
HEAD_GAIN = 0.3


def block(index):
    return slice(1 + index * CODE, 1 + (index + 1) * CODE)


def flag(index):
    return 1 + BLOCKS * CODE + index


def _lengthened(length):
    """By how much a flag of this length makes a token's vector longer."""
    return (1 + length ** 2 / (LENGTH ** 2 + 3.0)) ** 0.5


class _Attention:
    """The weights of one attention layer, written in nats: what a term adds to a score."""

    def __init__(self, layer, config, squares):
        """squares: the squared length of the residual stream that enters the layer."""
        self.q, self.k, self.v, self.o = (getattr(layer.self_attn, f"{n}_proj").weight
                                          for n in "qkvo")
        self.dim, half = config["head_dim"], config["head_dim"] // 2
        self.frequency = config["rope_theta"] ** (-torch.arange(half) / half)
        slow = torch.cat([torch.arange(SLOW, half), torch.arange(half + SLOW, 2 * half)])
        self.flag_dims, self.code_dims = slow[-6:], slow[:-6]
        self.scale = (config["hidden_size"] / squares) ** 0.5  # by the layer's norm
        self.q *= 0.1
        self.k *= 0.1
        self.v *= 0.3

    def projection(self):
        """A random matrix with orthonormal columns from a code to the slow dimensions."""
        return torch.linalg.qr(torch.randn(len(self.code_dims), CODE))[0]

    def apart(self, *more):
        """Two projections that share no dimension, and what `more` are without these dimensions."""
        two = torch.linalg.qr(torch.randn(len(self.code_dims), 2 * CODE))[0]
        rest = torch.eye(len(two)) - two @ two.T
        more = [rest @ p for p in more]
        return [two[:, :CODE], two[:, CODE:], *(p / p.norm() * CODE ** 0.5 for p in more)]

    def key_codes(self, kv, place, projection):
        self.k[kv * self.dim + self.code_dims, block(place)] += (
            KEY_LENGTH / (self.scale * LENGTH) * projection)

    def query_codes(self, head, here, projection, nats):
        self.q[head * self.dim + self.code_dims, block(here)] += (
            nats * self.dim ** 0.5 / (KEY_LENGTH * self.scale * LENGTH) * projection)

    def key_flag(self, kv, slot, place, sign=1.0, length=FLAG):
        self.k[kv * self.dim + self.flag_dims[slot], flag(place)] += (
            sign * SIGN_LENGTH / (self.scale * length))

    def query_slot(self, head, slot, nats, dims=0, length=CONSTANT):
        """Nats of a flag for a query that has `length` in the input dimension(s) dims."""
        self.q[head * self.dim + self.flag_dims[slot], dims] += (
            nats * self.dim ** 0.5 / (SIGN_LENGTH * self.scale * length))

    def key_positions(self, kv, indices):
        rows = kv * self.dim + torch.tensor(list(indices))
        self.k[rows, 0] = SIGN_LENGTH / (self.scale * CONSTANT)

    def query_positions(self, head, indices, nats, offset=0):
        """Nats per frequency that a key `offset` tokens back adds; less elsewhere."""
        half, index = self.dim // 2, torch.tensor(list(indices))
        unit = torch.as_tensor(nats) * self.dim ** 0.5 / (SIGN_LENGTH * self.scale * CONSTANT)
        angle = offset * self.frequency[index]
        rows = head * self.dim + index
        for row, value in [*zip(rows, unit * angle.cos()), *zip(rows + half, -unit * angle.sin())]:
            self.q[row, 0] += value

    def value(self, kv, slot, columns):
        """Put input columns into the value at dimensions slot, slot + 1, ..."""
        width = columns.stop - columns.start
        rows = slice(kv * self.dim + slot, kv * self.dim + slot + width)
        self.v[rows] = 0.0
        self.v[rows, columns] = torch.eye(width) / self.scale

    def write(self, head, slot, columns, gain=1.0):
        """Add value dimensions slot, slot + 1, ... of a head to columns of the stream."""
        width = columns.stop - columns.start
        at = head * self.dim + slot
        self.o[columns, at:at + width] += gain * torch.eye(width)


def _one(index):
    return slice(index, index + 1)


def _random(net, tok):
    for name, p in net.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            torch.nn.init.zeros_(p)
        elif "_proj" in name:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
    embed, head = net.model.embed_tokens.weight, net.lm_head.weight
    torch.nn.init.normal_(embed, std=0.1)
    embed[:, 0] = CONSTANT
    embed[:, flag(0):] = 0.0
    code = torch.randn(embed.shape[0], CODE)
    code /= code.norm(dim=1, keepdim=True)
    # What questions, uuids, numbers and names are written in: no two alike within an alphabet.
    for alphabet in (WORDING, VALUES, CAPITALS, INITIALS):
        ids = [tok.token_to_id(token) for token in alphabet]
        code[ids] = torch.linalg.qr(torch.randn(CODE, CODE))[0][:len(ids)]
    code[tok.token_to_id(BOS)] = 0.0
    embed[:, block(THIS)] = LENGTH * code
    for index, tokens, length in (
            (MARK, MARKERS, FLAG), (IS, MARKERS[:1], FLAG), (MENTIONED, MARKERS[1:2], FLAG),
            (THEY, MARKERS[2:], FLAG), (UNMARK, UNMARKED, FLAG),
            (VAR, [SPACE + "VAR", "VAR"], FLAG), (EQUALS, [SPACE + "="], FLAG),
            (CAPITAL, CAPITALS, LETTER_FLAG), (INITIAL, INITIALS, LETTER_FLAG),
            (BEGIN, [BOS], FLAG)):
        for token in tokens:
            embed[tok.token_to_id(token), flag(index)] = length
            # The constant keeps its share of the longer vector, and layer 0 its distances.
            embed[tok.token_to_id(token), 0] *= _lengthened(length)
    embed[tok.token_to_id(BOS), REST] = REST_OF_BEGIN
    torch.nn.init.normal_(head, std=0.01)
    head[:, block(NEXT)] = HEAD_GAIN * LENGTH * code


# What is copied with the codes: flag, head, where to.
FLAGS_BACK = {UNMARK: (0, UNMARKED_1), CAPITAL: (0, CAPITAL_1), VAR: (2, VAR_3),
              EQUALS: (3, EQUALS_4)}


def _previous_tokens(layer, config):
    """Layer 0: head h copies the code of the token h + 1 places before, and some flags."""
    a = _Attention(layer, config, CONSTANT ** 2 + LENGTH ** 2 + 3.0)
    for kv in range(config["num_key_value_heads"]):
        a.key_positions(kv, range(len(OFFSET)))
        a.value(kv, 0, block(THIS))
        for i, source in enumerate(FLAGS_BACK):
            a.value(kv, CODE + i, _one(flag(source)))
    for h in range(BACK):
        a.query_positions(h, range(len(OFFSET)), OFFSET, h + 1)
        a.write(h, 0, block(BACK_1 + h))
    for i, (source, (h, target)) in enumerate(FLAGS_BACK.items()):
        length = LETTER_FLAG if source == CAPITAL else FLAG
        a.write(h, CODE + i, _one(flag(target)), _lengthened(length))


def _induction_and_key(layer, config):
    a = _Attention(layer, config, CONSTANT ** 2 + (1 + BACK) * LENGTH ** 2 + 3.0)
    # KV head 0: attend where the recent tokens occurred before, copy what came next.
    project = [a.projection() for _ in range(BACK)]
    for back in range(BACK):
        a.key_codes(0, BACK_1 + back, project[back])
    a.key_flag(0, 0, BEGIN)
    a.key_positions(0, RECENT)
    a.value(0, 0, block(THIS))
    for h in range(2):
        for back in range(BACK):
            a.query_codes(h, THIS + back, project[back], INDUCTION[h][back])
        a.query_slot(h, 0, INDUCTION_SINK[h])
        a.write(h, 0, block(NEXT), INDUCTION_GAIN)
    a.query_positions(1, RECENT, INDUCTION_LATEST)
    # KV head 1, head 2: the four tokens before the latest marker.
    a.key_positions(1, RECENT)
    a.key_flag(1, 0, BEGIN)
    for place, sign in ((MARK, 1.0), (UNMARKED_1, -1.0), (VAR_3, 1.0), (EQUALS_4, -1.0)):
        a.key_flag(1, 1, place, sign)
    for back in range(BACK):
        a.value(1, back * CODE, block(BACK_1 + back))
        a.write(2, back * CODE, block(KEY_1 + back))
    for i, (source, target) in enumerate(((IS, IN_NEEDLE), (MENTIONED, IN_QUESTION),
                                          (THEY, IN_CHAIN), (VAR_3, IN_NAME))):
        a.value(1, BACK * CODE + i, _one(flag(source)))
        a.write(2, BACK * CODE + i, _one(flag(target)), MARKER_GAIN)
    a.query_slot(2, 1, MARK_NATS)
    a.query_positions(2, RECENT, LATEST)
    # KV head 1, head 3: induction between letters, by those from two places before a key on, as the
    # value has the token before it first. Closed elsewhere.
    a.key_flag(1, 2, CAPITAL_1, length=LETTER_FLAG)
    for back, (nats, p) in enumerate(zip(NAME, a.apart(a.projection()))):
        a.key_codes(1, BACK_2 + back, p)
        a.query_codes(3, THIS + back, p, nats)
    a.query_slot(3, 2, NAME_CAPITAL)
    a.query_slot(3, 0, NAME_SINK)
    a.query_slot(3, 0, -NAME_OPEN, flag(CAPITAL), LETTER_FLAG)
    a.write(3, 0, block(NEXT), NAME_GAIN)


def _same_key_and_hop(layer, config, tok, embed):
    a = _Attention(layer, config, CONSTANT ** 2 + (1.5 + 2 * BACK) * LENGTH ** 2 + 3.0)
    # KV head 0: places with the same KEY and the same tokens before.
    pairs = [(KEY_1 + i, KEY_1 + i) for i in range(BACK)] + [(THIS + i, BACK_1 + i)
                                                            for i in range(BACK)]
    # The same words in the same places tell nothing, and would disturb the other codes.
    same = embed[[tok.token_to_id(w) for w in SAME_WORDS], block(THIS)] / LENGTH
    telling = torch.eye(CODE) - same.T @ same
    project = [a.projection() @ telling for _ in pairs]
    for i in range(2):  # KEY_1 and KEY_2 in dimensions of their own: of word keys they are all
        project[i] = torch.zeros(len(a.code_dims), CODE)
        project[i][i * CODE:(i + 1) * CODE] = torch.linalg.qr(torch.randn(CODE, CODE))[0]
    for (_, place), p in zip(pairs, project):
        a.key_codes(0, place, p)
    a.key_flag(0, 0, BEGIN)
    a.key_flag(0, 1, IN_NEEDLE)
    a.value(0, 0, block(THIS))
    for h in range(2):
        for (here, _), p, nats in zip(pairs, project, MATCH_KEY[h] + MATCH_LOCAL[h]):
            a.query_codes(h, here, p, nats)
        # The colon before a value: all of a needle has its KEY, but only this is where it begins.
        colon = embed[tok.token_to_id(":"), block(THIS)] / LENGTH
        a.query_codes(h, THIS, project[BACK] @ torch.outer(colon, colon), COLON_NATS)
        a.query_slot(h, 0, MATCH_SINK)
        a.query_slot(h, 0, -MATCH_OPEN, flag(IN_QUESTION), FLAG)
        a.query_slot(h, 1, NEEDLE_NATS)
        a.write(h, 0, block(NEXT), MATCH_GAIN)
    # KV head 1: behind "= VAR A" and "= value", where the KEY is (second letter, first letter, VAR)
    # of the variable that is set there. Head 2 reads the first letter, where a name may begin, head
    # 3 the second one, behind an INITIAL. A name in the answer outweighs the value of the question,
    # which is in the KEY all the time.
    space = embed[tok.token_to_id(SPACE), block(THIS)] / LENGTH
    telling = torch.eye(CODE) - torch.outer(space, space)
    project = [p @ telling for p in a.apart(a.projection())]
    for back, p in enumerate(project):
        a.key_codes(1, BACK_1 + back, p)
        for h, here in ((2, THIS), (3, BACK_1)):
            a.query_codes(h, here + back, p, HOP[back])
    for h in (2, 3):
        # Behind " they" the KEY is a comma and the last three digits of the value.
        for back, nats in enumerate(VALUE):
            a.query_codes(h, KEY_2 + back, project[back], nats)
        a.query_slot(h, 0, -CHAIN_OPEN, flag(IN_CHAIN), FLAG)
        a.query_slot(h, 1, END_NATS)
    a.key_flag(1, 0, BEGIN)
    a.key_flag(1, 1, IN_NAME)
    for place, length in ((EQUALS, FLAG), (CAPITAL, LETTER_FLAG), (INITIAL, LETTER_FLAG)):
        a.key_flag(1, 1, place, NO_END, length)
    a.key_flag(1, 2, CAPITAL_1, length=LETTER_FLAG)
    a.query_slot(2, 2, HOP_NATS, flag(CAPITAL), LETTER_FLAG)
    a.query_slot(3, 2, HOP_NATS, flag(CAPITAL_1), LETTER_FLAG)
    a.value(1, 0, block(KEY_1))
    a.value(1, CODE, block(KEY_2))
    a.query_slot(2, 0, FIRST_SINK)
    for letters in (CAPITAL, INITIAL):
        a.query_slot(2, 0, FIRST_CLOSED, flag(letters), LETTER_FLAG)
    a.query_slot(3, 0, SECOND_SINK)
    a.query_slot(3, 0, -SECOND_OPEN, flag(INITIAL), LETTER_FLAG)
    a.write(2, CODE, block(NEXT), HOP_GAIN)
    a.write(3, 0, block(NEXT), HOP_GAIN)


@torch.no_grad()
def initialize(net, tok):
    _random(net, tok)
    layers, config = net.model.layers, net.config
    embed = net.model.embed_tokens.weight
    _previous_tokens(layers[0], config)
    _induction_and_key(layers[1], config)
    _same_key_and_hop(layers[2], config, tok, embed)


def freeze(net):
    """Keep what is laid out: the embedding, two layers and the attention of the third. Their
    feed-forward parts add nothing, as their last matrices are zero."""
    layers = net.model.layers
    for part in (net.model.embed_tokens, layers[0], layers[1], layers[2].input_layernorm,
                 layers[2].self_attn):
        part.requires_grad_(False)
