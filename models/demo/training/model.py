"""The Llama architecture in plain PyTorch, with the parameter names of Hugging Face checkpoints."""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 320,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e14,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 3584,
}


def rms_norm(x, weight, eps):
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * weight.float()).to(x.dtype)


def rope_tables(positions, config):
    """cos and sin [rows, 1, length, head_dim] of the rotate-half form."""
    half = config["head_dim"] // 2
    frequency = config["rope_theta"] ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions.float()[:, None, :, None] * frequency
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.dim, self.eps = config["head_dim"], config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.self_attn = nn.Module()
        self.mlp = nn.Module()

        def linear(parent, name, rows, cols):
            parent.add_module(name, nn.Linear(cols, rows, bias=False))

        linear(self.self_attn, "q_proj", self.heads * self.dim, width)
        linear(self.self_attn, "k_proj", self.kv_heads * self.dim, width)
        linear(self.self_attn, "v_proj", self.kv_heads * self.dim, width)
        linear(self.self_attn, "o_proj", width, self.heads * self.dim)
        linear(self.mlp, "gate_proj", inner, width)
        linear(self.mlp, "up_proj", inner, width)
        linear(self.mlp, "down_proj", width, inner)
        self.input_layernorm = nn.RMSNorm(width)
        self.post_attention_layernorm = nn.RMSNorm(width)

    def forward(self, x, cos, sin, cache=None):
        rows, length, _ = x.shape
        attn, dtype = self.self_attn, x.dtype
        h = rms_norm(x, self.input_layernorm.weight, self.eps)
        q = F.linear(h, attn.q_proj.weight.to(dtype)).view(rows, length, self.heads, self.dim)
        k = F.linear(h, attn.k_proj.weight.to(dtype)).view(rows, length, self.kv_heads, self.dim)
        v = F.linear(h, attn.v_proj.weight.to(dtype)).view(rows, length, self.kv_heads, self.dim)
        q = rotate(q.transpose(1, 2), cos, sin)
        k = rotate(k.transpose(1, 2), cos, sin)
        v = v.transpose(1, 2)
        if cache is not None:
            k, v = cache.append(self, k, v)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=True)
        o = o.transpose(1, 2).reshape(rows, length, self.heads * self.dim)
        x = x + F.linear(o, attn.o_proj.weight.to(dtype))
        h = rms_norm(x, self.post_attention_layernorm.weight, self.eps)
        up = F.linear(h, self.mlp.up_proj.weight.to(dtype))
        gate = F.silu(F.linear(h, self.mlp.gate_proj.weight.to(dtype)))
        return x + F.linear(gate * up, self.mlp.down_proj.weight.to(dtype))


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.model.layers = nn.ModuleList(Layer(config)
                                          for _ in range(config["num_hidden_layers"]))
        self.model.norm = nn.RMSNorm(config["hidden_size"])
        self.lm_head = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def hidden(self, ids, positions, dtype, cache=None):
        """Hidden states after the last norm, [rows, length, hidden_size], in dtype."""
        cos, sin = rope_tables(positions, self.config)
        cos, sin = cos.to(dtype), sin.to(dtype)
        x = F.embedding(ids, self.model.embed_tokens.weight).to(dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, cache)
        return rms_norm(x, self.model.norm.weight, self.config["rms_norm_eps"])

    def logits(self, hidden):
        return F.linear(hidden, self.lm_head.weight.to(hidden.dtype))


class Cache:
    """Keys and values of all layers, for greedy decoding in evaluate.py."""

    def __init__(self):
        self.kv = {}

    def append(self, layer, k, v):
        if layer in self.kv:
            old_k, old_v = self.kv[layer]
            k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
        self.kv[layer] = (k, v)
        return k, v
