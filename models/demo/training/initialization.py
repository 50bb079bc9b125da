"""Initial weights: random, with the circuit of induction heads laid out in the first two layers.

Looking up what followed an earlier occurrence takes two attention layers: the first writes the
codes of the previous tokens next to each token, the second compares the recent tokens with those
and copies the token that came after them. Models find this by themselves, but only after many
millions of tokens, more than a CPU reads in an hour; so the starting point has it, and training
turns it into lookups of keys, chains and lists.

The residual stream is cut into blocks of CODE dimensions behind one constant dimension:

    block 0      the token's own code, random, from the embedding
    block 1..4   codes of the tokens 1..4 places before, written by the four heads of layer 0
    block 5      code of the predicted token, written by layer 1, read by lm_head
"""

import torch

CODE = 40
CONSTANT = 3.0
BACK = 4
# Rotation frequencies slow enough to compare codes at a distance of hundreds of tokens.
SLOW = 14
# How strongly each head of layer 1 compares (this token, the one before, ...) with the tokens
# before the attended one. The last head cares little for the nearest, which are often the same.
COMPARE = [(1.5, 0.0, 0.0, 0.0), (1.3, 1.1, 0.6, 0.0), (0.9, 0.9, 0.9, 0.9), (0.4, 0.8, 1.2, 1.2)]


def block(index):
    return slice(1 + index * CODE, 1 + (index + 1) * CODE)


def _offset_query_and_key(config, offset, gain):
    """A constant query whose score peaks `offset` tokens back, and the constant key it meets."""
    half = config["head_dim"] // 2
    frequency = config["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) / half)
    weight = torch.tensor([2.0, 2.0, 1.5, 1.0, 1.0, 0.5]) * gain
    fast = len(weight)
    query, key = torch.zeros(2 * half), torch.zeros(2 * half)
    # A key at distance d appears turned by -d * frequency; turn the query the same way.
    query[:fast] = weight * torch.cos(offset * frequency[:fast])
    query[half:half + fast] = -weight * torch.sin(offset * frequency[:fast])
    key[:fast] = gain
    return query, key


def _random(net):
    for name, p in net.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            torch.nn.init.zeros_(p)
        elif "_proj" in name:
            torch.nn.init.normal_(p, std=p.shape[1] ** -0.5)
    embed, head = net.model.embed_tokens.weight, net.lm_head.weight
    torch.nn.init.normal_(embed, std=0.1)
    embed[:, 0] = CONSTANT
    embed[:, block(0)] = torch.randn(embed.shape[0], CODE)
    torch.nn.init.normal_(head, std=0.01)
    head[:, block(BACK + 1)] = 0.1 * embed[:, block(0)]


def _previous_tokens(attention, config):
    """Layer 0: head h copies the code of the token h + 1 places before into block h + 1."""
    dim = config["head_dim"]
    q, k, v, o = (getattr(attention, f"{n}_proj").weight for n in "qkvo")
    q *= 0.1
    k *= 0.1
    for kv in range(config["num_key_value_heads"]):
        k[kv * dim:(kv + 1) * dim, 0] = _offset_query_and_key(config, 0, 1.5)[1]
        v[kv * dim:kv * dim + CODE] = 0.0
        v[kv * dim:kv * dim + CODE, block(0)] = 0.6 * torch.eye(CODE)
    for h in range(BACK):
        q[h * dim:(h + 1) * dim, 0] = _offset_query_and_key(config, h + 1, 1.5)[0]
        o[block(h + 1), h * dim:h * dim + CODE] = torch.eye(CODE)


def _induction(attention, config):
    """Layer 1: attend where the recent tokens occurred before, copy what came after them."""
    dim, half = config["head_dim"], config["head_dim"] // 2
    q, k, v, o = (getattr(attention, f"{n}_proj").weight for n in "qkvo")
    slow = torch.cat([torch.arange(SLOW, half), torch.arange(half + SLOW, dim)])
    project = [torch.linalg.qr(torch.randn(CODE, len(slow)))[0].T for _ in range(BACK)]
    q *= 0.1
    k *= 0.1
    for kv in range(config["num_key_value_heads"]):
        for back in range(BACK):
            k[kv * dim + slow, block(back + 1)] += 2.0 * project[back]
        v[kv * dim:kv * dim + CODE] = 0.0
        v[kv * dim:kv * dim + CODE, block(0)] = torch.eye(CODE)
    for h, compare in enumerate(COMPARE):
        for back, strength in enumerate(compare):
            q[h * dim + slow, block(back)] += 2.0 * strength * project[back]
        o[block(BACK + 1), h * dim:h * dim + CODE] = 0.6 * torch.eye(CODE)


@torch.no_grad()
def initialize(net):
    _random(net)
    _previous_tokens(net.model.layers[0].self_attn, net.config)
    _induction(net.model.layers[1].self_attn, net.config)
