"""Initial weights: random, with the circuits of retrieval laid out in the first three layers.

Looking up what followed an earlier occurrence takes two attention layers: the first writes the
codes of the previous tokens next to each token, the second compares the recent tokens with those
and copies the token that came after them. A question that words the link from key to value
otherwise than the text takes one more: every token first fetches the latest key, the words after
"for", and then looks for a place with the same key. Models find this by themselves, but only after
many millions of tokens, more than a CPU reads in an hour; so the starting point has it, and
training turns it into lookups of keys, chains and lists.

The residual stream is cut into blocks of CODE dimensions behind one constant dimension:

    THIS         the token's own code, random, from the embedding
    BACK_1..4    codes of the tokens 1..4 places before, written by the four heads of layer 0
    NEXT         code of the predicted token, written by layers 1 and 2, read by lm_head
    KEY_1, KEY_2 first and second token after the latest "for", written by layer 1
"""

import torch

CODE = 31
CONSTANT = 3.0
THIS, BACK_1, BACK_2, BACK_3, BACK_4, NEXT, KEY_1, KEY_2 = range(8)
BACK = 4
# Rotation frequencies slow enough to compare codes at a distance of thousands of tokens.
SLOW = 16
# Frequencies whose sum falls with the distance, for "the latest".
RECENT = range(5, 12)
# How strongly the induction heads of layer 1 compare (this token, the one before, ...) with the
# tokens before the attended one.
COMPARE = [(1.3, 0.8, 0.4, 0.0), (0.8, 0.9, 0.9, 0.6)]
# Gains of the query for the latest key, of its falling with the distance, and of layer 2's
# comparisons; those that did best on fresh sequences before any training.
KEY_GAIN, RECENT_GAIN, MATCH_GAIN = 6.0, 3.0, 2.5
THIRD_QUERY, THIRD_GAIN = 8.0, 0.7


def block(index):
    return slice(1 + index * CODE, 1 + (index + 1) * CODE)


def _frequency(config):
    half = config["head_dim"] // 2
    return config["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) / half)


def _offset_query(config, offset, gain):
    """A constant query whose score peaks `offset` tokens back, for a key that is 1 everywhere."""
    half, frequency = config["head_dim"] // 2, _frequency(config)
    weight = torch.tensor([2.0, 2.0, 1.5, 1.0, 1.0, 0.5]) * gain
    fast = len(weight)
    query = torch.zeros(2 * half)
    # A key at distance d appears turned by -d * frequency; turn the query the same way.
    query[:fast] = weight * torch.cos(offset * frequency[:fast])
    query[half:half + fast] = -weight * torch.sin(offset * frequency[:fast])
    return query


def _weights(attention):
    return [getattr(attention, f"{n}_proj").weight for n in "qkvo"]


def _slow_dims(config):
    half = config["head_dim"] // 2
    return torch.cat([torch.arange(SLOW, half), torch.arange(half + SLOW, 2 * half)])


def _projection(config):
    """A random matrix with orthonormal columns from a code to the slow dimensions."""
    return torch.linalg.qr(torch.randn(len(_slow_dims(config)), CODE))[0]


def _random(net):
    for name, p in net.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            torch.nn.init.zeros_(p)
        elif "_proj" in name:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
    embed, head = net.model.embed_tokens.weight, net.lm_head.weight
    torch.nn.init.normal_(embed, std=0.1)
    embed[:, 0] = CONSTANT
    code = torch.randn(embed.shape[0], CODE)
    embed[:, block(THIS)] = code * CODE ** 0.5 / code.norm(dim=1, keepdim=True)
    torch.nn.init.normal_(head, std=0.01)
    head[:, block(NEXT)] = 0.12 * embed[:, block(THIS)]


def _previous_tokens(attention, config):
    """Layer 0: head h copies the code of the token h + 1 places before."""
    dim = config["head_dim"]
    q, k, v, o = _weights(attention)
    q *= 0.1
    k *= 0.1
    for kv in range(config["num_key_value_heads"]):
        k[kv * dim:kv * dim + dim // 2, 0] = 1.5
        v[kv * dim:kv * dim + CODE] = 0.0
        v[kv * dim:kv * dim + CODE, block(THIS)] = 0.6 * torch.eye(CODE)
    for h in range(BACK):
        q[h * dim:(h + 1) * dim, 0] = _offset_query(config, h + 1, 1.5)
        o[block(BACK_1 + h), h * dim:h * dim + CODE] = torch.eye(CODE)


def _induction(attention, config):
    """Layer 1, KV head 0: attend where the recent tokens occurred before, copy what came next."""
    dim, slow = config["head_dim"], _slow_dims(config)
    q, k, v, o = _weights(attention)
    project = [_projection(config) for _ in range(BACK)]
    for back in range(BACK):
        k[slow, block(BACK_1 + back)] += 2.0 * project[back]
    v[:CODE] = 0.0
    v[:CODE, block(THIS)] = torch.eye(CODE)
    for h, compare in enumerate(COMPARE):
        for back, strength in enumerate(compare):
            q[h * dim + slow, block(THIS + back)] += 2.0 * strength * project[back]
        o[block(NEXT), h * dim:h * dim + CODE] = 0.6 * torch.eye(CODE)


def _latest_key(attention, config, marker):
    """Layer 1, KV head 1: from everywhere attend to the second token after the latest marker."""
    dim, slow = config["head_dim"], _slow_dims(config)
    q, k, v, o = _weights(attention)
    kv, h = 1, 2
    project = _projection(config)
    unit = marker / marker.norm()
    k[kv * dim + slow, block(BACK_2)] += 3.0 * project
    q[h * dim + slow, 0] = KEY_GAIN * project @ unit
    recent = torch.tensor(list(RECENT))
    k[kv * dim + recent, 0] = 1.5
    q[h * dim + recent, 0] = RECENT_GAIN
    v[kv * dim:(kv + 1) * dim] = 0.0
    v[kv * dim:kv * dim + CODE, block(BACK_1)] = torch.eye(CODE)
    v[kv * dim + CODE:kv * dim + 2 * CODE, block(THIS)] = torch.eye(CODE)
    o[block(KEY_1), h * dim:h * dim + CODE] = torch.eye(CODE)
    o[block(KEY_2), h * dim + CODE:h * dim + 2 * CODE] = torch.eye(CODE)


def _same_key(attention, config):
    """Layer 2: attend to places with the same latest key and the same token before."""
    dim, slow = config["head_dim"], _slow_dims(config)
    q, k, v, o = _weights(attention)
    q *= 0.1
    k *= 0.1
    pairs = [(KEY_1, KEY_1), (KEY_2, KEY_2), (THIS, BACK_1)]
    project = [_projection(config) for _ in pairs]
    for kv in range(config["num_key_value_heads"]):
        for (_, place), p in zip(pairs, project):
            k[kv * dim + slow, block(place)] += 2.0 * p
        v[kv * dim:kv * dim + CODE] = 0.0
        v[kv * dim:kv * dim + CODE, block(THIS)] = torch.eye(CODE)
    for h in (0, 2):
        for (here, _), p in zip(pairs, project):
            q[h * dim + slow, block(here)] += MATCH_GAIN * p
        o[block(NEXT), h * dim:h * dim + CODE] = 0.8 * torch.eye(CODE)


@torch.no_grad()
def initialize(net, marker_id):
    """marker_id: the token after which keys come, " for"."""
    _random(net)
    layers, config = net.model.layers, net.config
    _previous_tokens(layers[0].self_attn, config)
    layers[1].self_attn.q_proj.weight.mul_(0.1)
    layers[1].self_attn.k_proj.weight.mul_(0.1)
    _induction(layers[1].self_attn, config)
    _latest_key(layers[1].self_attn, config,
                net.model.embed_tokens.weight[marker_id, block(THIS)])
    _same_key(layers[2].self_attn, config)


@torch.no_grad()
def longer_key(net, marker_id):
    """Let the free head of layer 1 fetch the third token after the latest marker as well.

    Two tokens tell word keys apart, but many uuids begin alike. The blocks are used up: the code of
    the third token is turned at random and added to KEY_1, which for most uuids is but a space.
    The two heads have one KV head: the marker three tokens back shows in the one dimension of the
    key that the other head's query does not see.
    """
    config, attention = net.config, net.model.layers[1].self_attn
    dim, slow = config["head_dim"], _slow_dims(config)
    q, k, _, o = _weights(attention)
    kv, h = 1, 3
    code = net.model.embed_tokens.weight[marker_id, block(THIS)]
    unit = code / code.norm()
    free = torch.linalg.svd(k[kv * dim + slow, block(BACK_2)])[0][:, -1]
    k[kv * dim + slow, block(BACK_3)] += 3.0 * torch.outer(free, unit)
    q[h * dim:(h + 1) * dim] = 0.0
    q[h * dim + slow, 0] = THIRD_QUERY * free
    q[h * dim + torch.tensor(list(RECENT)), 0] = RECENT_GAIN
    o[:, h * dim:(h + 1) * dim] = 0.0
    turn = torch.linalg.qr(torch.randn(CODE, CODE))[0]
    o[block(KEY_1), h * dim + CODE:h * dim + 2 * CODE] = THIRD_GAIN * turn
