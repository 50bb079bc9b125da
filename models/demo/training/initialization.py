"""Initial weights: random, with the circuits of retrieval laid out in the first three layers.

Models find such circuits by themselves, but only after many millions of tokens, more than a CPU
reads in hours. So they are written here and stay as they are (freeze()): training adds what follows
them, the last layer, two feed-forward parts and the head.

The residual stream is cut into blocks of CODE dimensions behind one constant dimension:

    THIS         the token's own code, random, from the embedding; within alphabets orthogonal
    BACK_1..4    codes of the tokens 1..4 places before, written by the four heads of layer 0
    NEXT         code of the predicted token, written by layers 1 and 2, read by lm_head
    KEY_1..4     the last four tokens before the latest marker, written by layer 1

and FLAGS, single dimensions behind the blocks. Markers are the words that follow a key, " is" in a
needle and " mentioned" in a question; an " is" after the words of UNMARKED follows no key. So at
every token of a value and of an answer the KEY blocks say whose value it is.

    layer 1  two induction heads, the second one for the latest match; a head that fetches the KEY;
             a head for the first letter of the last variable, where an answer begins
    layer 2  two heads that look for the same KEY and the same last tokens; a head that goes from
             "X =" to what stands behind the word VAR after an earlier "X ="; a head for the other
             letters of that name

Heads that find nothing attend to the beginning of the text, which carries no code.
"""

import string

import torch

from .tokenizer import BOS, SPACE

CODE = 31
LENGTH = CODE ** 0.5  # of a code in the residual stream
CONSTANT, FLAG = 3.0, 4.0
FLAGGED_CONSTANT = CONSTANT * (1 + FLAG ** 2 / (LENGTH ** 2 + 3.0)) ** 0.5
THIS, BACK_1, BACK_2, BACK_3, BACK_4, NEXT, KEY_1, KEY_2, KEY_3, KEY_4 = range(10)
BLOCKS, BACK = 10, 4
MARK, UNMARK, UNMARKED_1, VAR, VAR_2, EQUALS, EQUALS_3, BEGIN = range(8)
# Where layer 1 writes whether the latest marker was " is"; VAR is needed no more by then.
IN_NEEDLE = VAR
# The last dimension; the beginning has this in it, to be as long as other tokens are later.
REST, REST_OF_BEGIN = 319, 14.0
WORDING = ["assistant", "One", "What", "It", ":", "?", ".", ".\u010a", SPACE, "\u010a"]
WORDING += [SPACE + word for word in (
    "of the special magic numbers number for is The mentioned in provided text are VAR =").split()]
MARKERS = [SPACE + "is", SPACE + "mentioned"]
UNMARKED = [SPACE + "text", "It", "What"]
SPARE = REST  # an input dimension that other tokens than the beginning do not use
KEY_LENGTH, SIGN_LENGTH = 2.5, 5.0  # in a key vector: of a code, of a flag or position
# Index of the first rotation frequency slow enough to compare codes at thousands of tokens.
SLOW = 20
# Frequencies whose sum falls with the distance, for "the latest", near and far.
RECENT, FAR = range(4, 17), range(9, 19)
# What the terms add to the scores of the heads, in nats; for codes (this token, the one before,
# ...). The values are those that did best on fresh sequences before any training.
OFFSET = torch.tensor([20.0, 16.0, 11.0, 8.0, 6.0, 4.0, 3.0, 3.0] + 8 * [2.0])
INDUCTION = [(9.0, 8.0, 7.0, 6.0), (10.0, 6.0, 4.0, 2.0)]
INDUCTION_SINK = [16.0, 40.0]
INDUCTION_LATEST = 1.5
MARK_NATS, LATEST = 45.0, 4.0
VARIABLE_NATS, FAR_NATS, VARIABLE_SINK = 70.0, 7.0, 50.0
MATCH_KEY = [(14.0, 14.0, 10.0, 10.0), (14.0, 14.0, 8.0, 8.0)]
MATCH_LOCAL = [(12.0, 10.0, 8.0, 8.0), (14.0, 12.0, 10.0, 9.0)]
COLON_NATS = 14.0
MATCH_SINK, MATCH_CLOSED, NEEDLE_NATS = [35.0, 35.0], 50.0, 20.0
HOP, HOP_SINK, HOP_OPEN = (14.0, 11.0, 11.0), 45.0, 33.0
LETTER, LETTER_SINK, LETTER_OPEN = (20.0, 9.0, 8.0, 6.0, 8.0, 8.0), 65.0, 52.0
# Gains of what the heads write, and of the head of the model.
INDUCTION_GAIN, VARIABLE_GAIN, MATCH_GAIN, HOP_GAIN, LETTER_GAIN = 0.25, 2.0, 0.8, 1.5, 1.4
HEAD_GAIN = 0.3


def block(index):
    return slice(1 + index * CODE, 1 + (index + 1) * CODE)


def flag(index):
    return 1 + BLOCKS * CODE + index


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

    def key_codes(self, kv, place, projection):
        self.k[kv * self.dim + self.code_dims, block(place)] += (
            KEY_LENGTH / (self.scale * LENGTH) * projection)

    def query_codes(self, head, here, projection, nats):
        self.q[head * self.dim + self.code_dims, block(here)] += (
            nats * self.dim ** 0.5 / (KEY_LENGTH * self.scale * LENGTH) * projection)

    def key_flag(self, kv, slot, place, sign=1.0):
        self.k[kv * self.dim + self.flag_dims[slot], flag(place)] += (
            sign * SIGN_LENGTH / (self.scale * FLAG))

    def query_slot(self, head, slot, nats, dims=0, length=CONSTANT):
        """Nats of a flag for a query that has `length` in the input dimension(s) dims."""
        self.q[head * self.dim + self.flag_dims[slot], dims] += (
            nats * self.dim ** 0.5 / (SIGN_LENGTH * self.scale * length))

    def key_positions(self, kv, indices):
        self.k[kv * self.dim + torch.tensor(list(indices)), 0] = SIGN_LENGTH / (self.scale * CONSTANT)

    def query_positions(self, head, indices, nats, offset=0, dims=0, length=CONSTANT):
        """Nats per frequency that a key `offset` tokens back adds; less elsewhere."""
        half, index = self.dim // 2, torch.tensor(list(indices))
        unit = torch.as_tensor(nats) * self.dim ** 0.5 / (SIGN_LENGTH * self.scale * length)
        angle = offset * self.frequency[index]
        rows = head * self.dim + index
        for row, value in [*zip(rows, unit * angle.cos()), *zip(rows + half, -unit * angle.sin())]:
            self.q[row, dims] += value

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
    for alphabet in (WORDING, "0123456789abcdef-", string.ascii_uppercase,
                     [SPACE + letter for letter in string.ascii_uppercase]):
        ids = [tok.token_to_id(token) for token in alphabet]
        code[ids] = torch.linalg.qr(torch.randn(CODE, CODE))[0][:len(ids)]
    code[tok.token_to_id(BOS)] = 0.0
    embed[:, block(THIS)] = LENGTH * code
    for index, tokens in ((MARK, MARKERS), (UNMARK, UNMARKED), (VAR, [SPACE + "VAR", "VAR"]),
                          (EQUALS, [SPACE + "="]), (BEGIN, [BOS])):
        for token in tokens:
            embed[tok.token_to_id(token), flag(index)] = FLAG
            # The constant keeps its share of the longer vector, and layer 0 its distances.
            embed[tok.token_to_id(token), 0] = FLAGGED_CONSTANT
    embed[tok.token_to_id(BOS), REST] = REST_OF_BEGIN
    torch.nn.init.normal_(head, std=0.01)
    head[:, block(NEXT)] = HEAD_GAIN * LENGTH * code


def _previous_tokens(layer, config):
    """Layer 0: head h copies the code of the token h + 1 places before, and some flags."""
    a = _Attention(layer, config, CONSTANT ** 2 + LENGTH ** 2 + 3.0)
    for kv in range(config["num_key_value_heads"]):
        a.key_positions(kv, range(len(OFFSET)))
        a.value(kv, 0, block(THIS))
        for i, source in enumerate((UNMARK, VAR, EQUALS)):
            a.value(kv, CODE + i, _one(flag(source)))
    for h in range(BACK):
        a.query_positions(h, range(len(OFFSET)), OFFSET, h + 1)
        a.write(h, 0, block(BACK_1 + h))
    for h, source, target in ((0, 0, UNMARKED_1), (1, 1, VAR_2), (2, 2, EQUALS_3)):
        a.write(h, CODE + source, _one(flag(target)))


def _induction_and_key(layer, config, tok, embed):
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
    a.key_positions(1, [*RECENT, *FAR])
    a.key_flag(1, 0, BEGIN)
    a.key_flag(1, 1, MARK)
    a.key_flag(1, 1, UNMARKED_1, -1.0)
    for back in range(BACK):
        a.value(1, back * CODE, block(BACK_1 + back))
        a.write(2, back * CODE, block(KEY_1 + back))
    row = a.dim + BACK * CODE
    a.v[row] = 0.0
    a.v[row, block(THIS)] = embed[tok.token_to_id(MARKERS[0]), block(THIS)] / LENGTH / a.scale
    a.o[flag(IN_NEEDLE), 2 * a.dim + BACK * CODE] = FLAG / LENGTH
    a.query_slot(2, 1, MARK_NATS)
    a.query_positions(2, RECENT, LATEST)
    # KV head 1, head 3: where an answer begins, the second letter of the last variable that is set; the
    # value has the token before it first.
    a.key_flag(1, 2, VAR_2)
    a.key_flag(1, 2, EQUALS_3, -1.0)
    for word, place in ((SPACE + "are", BACK_2), ("assistant", BACK_1)):
        a.q[:, SPARE] = 0.0
        unit = embed[tok.token_to_id(word), block(THIS)] / LENGTH
        for add, index, nats in ((a.query_slot, 2, VARIABLE_NATS),
                                 (a.query_positions, FAR, FAR_NATS)):
            add(3, index, nats, dims=SPARE, length=LENGTH)
        a.q[:, block(place)] += torch.outer(a.q[:, SPARE], unit)
        a.q[:, SPARE] = 0.0
    a.query_slot(3, 0, VARIABLE_SINK)
    a.write(3, 0, block(NEXT), VARIABLE_GAIN)


def _same_key_and_hop(layer, config, tok, embed):
    a = _Attention(layer, config, CONSTANT ** 2 + (1.5 + 2 * BACK) * LENGTH ** 2 + 3.0)
    # KV head 0: places with the same KEY and the same tokens before.
    pairs = [(KEY_1 + i, KEY_1 + i) for i in range(BACK)] + [(THIS + i, BACK_1 + i)
                                                            for i in range(BACK)]
    project = [a.projection() for _ in pairs]
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
        a.query_slot(h, 0, MATCH_SINK[h])
        a.query_slot(h, 1, NEEDLE_NATS)
        a.query_slot(h, 0, MATCH_CLOSED, flag(IN_NEEDLE), FLAG)
        a.write(h, 0, block(NEXT), MATCH_GAIN)
    # KV head 1, head 2: from "X =" to what is one place farther behind an earlier one.
    project = [a.projection() for _ in HOP]
    a.key_flag(1, 0, BEGIN)
    a.value(1, 0, block(THIS))
    for back, (p, nats) in enumerate(zip(project, HOP)):
        a.key_codes(1, BACK_2 + back, p)
        a.query_codes(2, THIS + back, p, nats)
    a.query_slot(2, 0, HOP_SINK)
    a.query_slot(2, 0, -HOP_OPEN, flag(EQUALS), FLAG)
    a.write(2, 0, block(NEXT), HOP_GAIN)
    # Head 3: the letters of a name, where the tokens before the name are one place farther apart in
    # the text. Only where the latest marker is " is", as behind the noise of that task.
    first = a.projection()
    a.key_codes(1, BACK_1, first)
    a.key_flag(1, 1, VAR_2)
    a.query_codes(3, THIS, first, LETTER[0])
    for here, p, nats in ((BACK_1, project[0], LETTER[1]), (BACK_1, project[1], LETTER[2]),
                          (BACK_2, project[1], LETTER[3]), (BACK_2, project[2], LETTER[4])):
        a.query_codes(3, here, p, nats)
    a.query_slot(3, 1, LETTER[5])
    a.query_slot(3, 0, LETTER_SINK)
    a.query_slot(3, 0, -LETTER_OPEN, flag(IN_NEEDLE), FLAG)
    a.write(3, 0, block(NEXT), LETTER_GAIN)


@torch.no_grad()
def initialize(net, tok):
    _random(net, tok)
    layers, config = net.model.layers, net.config
    embed = net.model.embed_tokens.weight
    _previous_tokens(layers[0], config)
    _induction_and_key(layers[1], config, tok, embed)
    _same_key_and_hop(layers[2], config, tok, embed)


def freeze(net):
    """Keep what is laid out: the embedding, two layers and the attention of the third. Their
    feed-forward parts add nothing, as their last matrices are zero."""
    layers = net.model.layers
    for part in (net.model.embed_tokens, layers[0], layers[1], layers[2].input_layernorm,
                 layers[2].self_attn):
        part.requires_grad_(False)
