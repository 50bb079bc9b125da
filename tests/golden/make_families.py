"""Makes tests/golden/families: one tiny random model per family, with what transformers computes.

    python3 make_families.py [--only NAME] [--out DIRECTORY]      needs torch and transformers

Every model is a checkpoint as the family's users have it (config.json, safetensors), small enough to
commit. Weights are random, scaled so that every part matters: logits spread over several units, and
for each feature that the family is there for (a sliding window, RoPE scaling, biases, norms of q and
k) the script measures how far the logits move without it and refuses a model where they hardly do.

expected.json beside each model:

    format           1
    name, note       the model, and what it is there for
    made_with        versions of torch and transformers
    vocab            columns of the logits
    prompt           token ids, longer than a page of 64 and than any sliding window
    logit_positions  positions in the prompt whose logits follow
    logits           base64 of float32, little endian, [logit_positions, vocab]: computed in float32
                     from the stored weights, eager attention
    greedy           the ids that greedy decoding appends to the prompt
    greedy_margins   at each of them, by how much the best logit leads the second; the prompt is the
                     one among many random ones whose smallest margin is largest, so that rounding
                     to 16 bits does not decide
    without          {feature: largest change of any of the logits above when it is taken away}
"""

import argparse
import base64
import json
import pathlib
import shutil

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers import GemmaConfig, GPTNeoXConfig, LlamaConfig, MistralConfig, OPTConfig
from transformers import Qwen2Config, Qwen3Config

PROMPT_TOKENS = 100
GREEDY_TOKENS = 16
POSITIONS = [0, 1, 23, 24, 40, 63, 64, 65, PROMPT_TOKENS - 1]
PROMPTS_TRIED = 192
DISTINCT_MIN = 8  # different tokens in a continuation: not one token for ever
LOGIT_SPREAD = 3.5  # standard deviation of a position's logits, roughly
CHANGE_MIN = 0.25  # what taking a feature away must change at least


def old_rope(config, key="rope_type"):
    """Rewrite a config as transformers 4 wrote it: rope_theta and rope_scaling."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {key: kind, **rope}
    config["torch_dtype"] = config.pop("dtype")


def old_llama2(config):
    """As the first Llama checkpoints: whatever has a default is not said."""
    old_rope(config)
    for name in ("rope_theta", "rope_scaling", "head_dim", "attention_bias", "mlp_bias",
                 "num_key_value_heads"):
        config.pop(name)


def old_window(config):
    """As Qwen2 before layer_types."""
    old_rope(config)
    config.pop("layer_types")


def old_neox(config):
    """As Pythia: rotary_pct and rotary_emb_base, no field for the biases."""
    rope = config.pop("rope_parameters")
    config["rotary_pct"] = rope["partial_rotary_factor"]
    config["rotary_emb_base"] = int(rope["rope_theta"])
    config["torch_dtype"] = config.pop("dtype")
    config.pop("attention_bias")


def old_gemma(config):
    """As the first Gemma: "gelu", which means its approximation by tanh."""
    old_rope(config)
    config["hidden_act"] = "gelu"
    config.pop("head_dim")


@torch.no_grad()
def shift_positions(model):
    """The table of positions as if position 0 were its first row."""
    weight = model.model.decoder.embed_positions.weight
    weight.copy_(weight.roll(2, dims=0))


@torch.no_grad()
def swap_layer_norm(model):
    """RMS norms in the place of layer norms: without subtracting the mean."""
    def forward(norm, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps)
        return x * scale * norm.weight + norm.bias
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.forward = forward.__get__(module)


@torch.no_grad()
def unscale_embedding(model):
    model.model.embed_tokens.embed_scale.fill_(1.0)


@torch.no_grad()
def shift_norms(model):
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight -= 1.0


@torch.no_grad()
def swap_activation(model):
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.ReLU()


@torch.no_grad()
def unmix_heads(model):
    """query_key_value as if all of q came first, then all of k, then all of v."""
    heads = model.config.num_attention_heads
    for name, weight in model.named_parameters():
        if "query_key_value" in name:
            parts = weight.view(3, heads, -1, *weight.shape[1:])
            weight.copy_(parts.transpose(0, 1).reshape(weight.shape))


COMMON = dict(vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
              num_attention_heads=4, max_position_embeddings=256, bos_token_id=1, eos_token_id=2)

# OPT says ffn_dim.
OPT = {("ffn_dim" if name == "intermediate_size" else name): value for name, value in COMMON.items()}

# "without" maps a feature to the change of the config that takes it away, to the part of the names
# of the parameters that are set to what has no effect, or to a function that changes the model.
FAMILIES = {
    "llama2_mha_f16": dict(
        note="Llama 2: one key-value head per query head, a config that relies on defaults",
        config=LlamaConfig(**COMMON, num_key_value_heads=4, rms_norm_eps=1e-5),
        dtype=torch.float16, rewrite=old_llama2, without={}),
    "llama3_gqa_bf16": dict(
        note="Llama 3.1: grouped heads, RoPE scaling llama3 that acts within the prompt",
        config=LlamaConfig(**COMMON | dict(hidden_size=96, num_attention_heads=6, vocab_size=301),
                           num_key_value_heads=2, rms_norm_eps=1e-5,
                           rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0,
                                                low_freq_factor=1.0, high_freq_factor=4.0,
                                                original_max_position_embeddings=32)),
        dtype=torch.bfloat16, rewrite=old_rope,
        without={"RoPE scaling": dict(rope_scaling=None)}),
    "llama_linear_f32": dict(
        note="Llama with linear RoPE scaling, as rope_scaling.type, in float32",
        config=LlamaConfig(**COMMON | dict(intermediate_size=64), num_key_value_heads=2,
                           rms_norm_eps=1e-6,
                           rope_parameters=dict(rope_type="linear", rope_theta=10000.0,
                                                factor=4.0)),
        dtype=torch.float32, rewrite=lambda config: old_rope(config, "type"),
        without={"RoPE scaling": dict(rope_scaling=None)}),
    "llama_bias_sharded": dict(
        note="Llama with biases everywhere, one key-value head, a second layer in another shard",
        config=LlamaConfig(**COMMON, num_key_value_heads=1, attention_bias=True, mlp_bias=True,
                           hidden_act="gelu_pytorch_tanh"),
        dtype=torch.bfloat16, shard="90KB",
        without={"q bias": "q_proj.bias", "v bias": "v_proj.bias", "o bias": "o_proj.bias",
                 "gate bias": "gate_proj.bias", "down bias": "down_proj.bias",
                 "activation": dict(hidden_act="relu")}),
    "mistral_window": dict(
        note="Mistral: a sliding window of 24 tokens in every layer, heads of 8",
        config=MistralConfig(**COMMON | dict(num_attention_heads=8), num_key_value_heads=2,
                             sliding_window=24),
        dtype=torch.bfloat16, without={"sliding window": dict(sliding_window=None)}),
    "qwen2_tied": dict(
        note="Qwen2: biases of q, k and v, tied embeddings",
        config=Qwen2Config(**COMMON, num_key_value_heads=2, tie_word_embeddings=True,
                           rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
        dtype=torch.bfloat16,
        without={"q bias": "q_proj.bias", "v bias": "v_proj.bias"}),
    "qwen2_mixed_window": dict(
        note="Qwen2: a sliding window of 20 tokens from layer 1 of 3 on, by max_window_layers",
        config=Qwen2Config(**COMMON | dict(num_hidden_layers=3, intermediate_size=80),
                           num_key_value_heads=2, use_sliding_window=True, sliding_window=20,
                           max_window_layers=1),
        dtype=torch.bfloat16, rewrite=old_window,
        without={"sliding window": dict(use_sliding_window=False),
                 "the full first layer": dict(max_window_layers=0)}),
    "qwen3_qk_norm": dict(
        note="Qwen3: norms of q and k, heads of 32 in a hidden size of 64, layer_types",
        config=Qwen3Config(**COMMON, num_key_value_heads=2, head_dim=32, use_sliding_window=True,
                           sliding_window=33,
                           layer_types=["sliding_attention", "full_attention"]),
        dtype=torch.bfloat16,
        without={"norm of q": "q_norm.weight", "norm of k": "k_norm.weight",
                 "sliding window": dict(use_sliding_window=False, layer_types=None)}),
    "opt_relu_tied": dict(
        note="OPT: learned positions from row 2 on, layer norms, ReLU, biases everywhere, tied",
        config=OPTConfig(**OPT, pad_token_id=0),
        dtype=torch.float16,
        without={"positions": "embed_positions.weight", "position offset": shift_positions,
                 "mean of layer norms": swap_layer_norm, "biases of layer norms": "layer_norm.bias",
                 "q bias": "q_proj.bias", "v bias": "v_proj.bias", "o bias": "out_proj.bias",
                 "up bias": "fc1.bias", "down bias": "fc2.bias",
                 "activation": dict(activation_function="gelu")}),
    "neox_parallel": dict(
        note="GPT-NeoX as Pythia: parallel residuals, a quarter of each head rotated, q k v fused",
        config=GPTNeoXConfig(**COMMON | dict(num_attention_heads=2),
                             rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                  partial_rotary_factor=0.25)),
        dtype=torch.float16, rewrite=old_neox,
        without={"parallel residual": dict(use_parallel_residual=False),
                 "partial rotation": dict(rotary_pct=1.0), "heads of q k v": unmix_heads,
                 "q k v biases": "query_key_value.bias", "o bias": "attention.dense.bias",
                 "biases of layer norms": "layernorm.bias", "down bias": "dense_4h_to_h.bias",
                 "activation": dict(hidden_act="relu")}),
    "neox_sequential": dict(
        note="GPT-NeoX without parallel residuals and attention biases, tanh GELU, rope_parameters",
        config=GPTNeoXConfig(**COMMON | dict(hidden_size=48, vocab_size=301),
                             use_parallel_residual=False, attention_bias=False,
                             hidden_act="gelu_fast", layer_norm_eps=1e-3,
                             rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=2.0,
                                                  partial_rotary_factor=0.5)),
        dtype=torch.bfloat16,
        without={"sequential residual": dict(use_parallel_residual=True),
                 "heads of q k v": unmix_heads,
                 "up bias": "dense_h_to_4h.bias"}),
    "gemma_tied": dict(
        note="Gemma: scaled embedding, norms that store w - 1, heads of 256, one key-value head",
        config=GemmaConfig(**COMMON | dict(num_attention_heads=2, hidden_size=48),
                           num_key_value_heads=1, pad_token_id=0),
        dtype=torch.bfloat16, rewrite=old_gemma,
        without={"scale of the embedding": unscale_embedding, "offset of the norms": shift_norms,
                 "activation": swap_activation}),
    "llama_yarn": dict(
        note="Llama with RoPE scaling yarn, whose range and factor act within the prompt",
        config=LlamaConfig(**COMMON, num_key_value_heads=2,
                           rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                                original_max_position_embeddings=64,
                                                beta_fast=2.0)),
        dtype=torch.bfloat16, rewrite=old_rope,
        without={"RoPE scaling": dict(rope_scaling=None),
                 "attention factor": dict(rope_scaling=dict(
                     type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=2.0,
                     attention_factor=1.0)),
                 "beta_fast": dict(rope_scaling=dict(
                     type="yarn", factor=4.0, original_max_position_embeddings=64))}),
    "llama_dynamic": dict(
        note="Llama with RoPE scaling dynamic, all of the run within max_position_embeddings",
        config=LlamaConfig(**COMMON | dict(hidden_size=32, num_attention_heads=2,
                                           intermediate_size=48,
                                           max_position_embeddings=PROMPT_TOKENS + GREEDY_TOKENS),
                           num_key_value_heads=1,
                           rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0,
                                                factor=2.0)),
        dtype=torch.bfloat16, rewrite=old_rope, without={}),
}


def fill(model, generator):
    """Random weights under which activations keep a size of about one."""
    tied = model.config.tie_word_embeddings
    hidden = model.config.hidden_size
    offset = 1.0 if model.config.model_type == "gemma" else 0.0  # its files store w - 1
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if tied and name in ("model.norm.weight", "model.decoder.final_layer_norm.weight"):
            # Around zero: else the best next token is nearly always the last one again.
            values = noise - offset
        elif "norm" in name and name.endswith(".weight"):
            values = 1.0 + 0.3 * noise - offset
        elif name.endswith(".bias"):
            # Small where they go into the residual stream, which they would fill alike everywhere.
            inside = "proj.bias" in name and "self_attn" in name or "query_key_value" in name
            inside = inside and "o_proj" not in name and "out_proj" not in name
            values = noise * (0.7 if inside else 0.25)
        elif "query_key_value" in name:
            gains = torch.tensor([1.6, 1.6, 1.0]).view(1, 3, 1, 1)
            heads = model.config.num_attention_heads
            values = (noise.view(heads, 3, -1, hidden) * gains).view(weight.shape) / hidden**0.5
        elif "embed_positions" in name:
            values = noise * 0.5
        elif "embed_tokens" in name or "embed_in" in name:
            values = noise * (LOGIT_SPREAD / hidden**0.5 if tied else 1.0)
        elif "lm_head" in name or "embed_out" in name:
            values = noise * (LOGIT_SPREAD / hidden**0.5)
        else:
            # Queries and keys a little larger: attention that picks, rather than averages.
            gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
            values = noise * (gain / weight.shape[1] ** 0.5)
        with torch.no_grad():
            weight.copy_(values)


def load(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                 attn_implementation="eager")
    return model.eval()


@torch.no_grad()
def logits_of(model, ids):
    """[sequences, tokens, vocab]"""
    return model(torch.tensor(ids), use_cache=False).logits


@torch.no_grad()
def greedy(model, prompts):
    """The continuations of equally long prompts, and their margins."""
    ids = torch.tensor(prompts)
    margins = []
    for _ in range(GREEDY_TOKENS):
        best = model(ids, use_cache=False).logits[:, -1].topk(2)
        margins.append(best.values[:, 0] - best.values[:, 1])
        ids = torch.cat([ids, best.indices[:, :1]], dim=1)
    return ids[:, PROMPT_TOKENS:].tolist(), torch.stack(margins, dim=1).tolist()


def choose_prompt(model, generator):
    """The prompt whose greedy continuation is clearest, without a special token in it."""
    vocab = model.config.vocab_size
    prompts = torch.randint(3, vocab, (PROMPTS_TRIED, PROMPT_TOKENS), generator=generator).tolist()
    for prompt in prompts:
        prompt[0] = model.config.bos_token_id
    texts, margins = greedy(model, prompts)
    ranked = [i for i in range(PROMPTS_TRIED)
              if min(texts[i]) > 2 and len(set(texts[i])) >= DISTINCT_MIN]
    best = max(ranked, key=lambda i: min(margins[i]))
    return prompts[best], texts[best], margins[best]


def measure_without(path, changes, prompt, logits, scratch):
    """How far the logits move when each feature is taken away."""
    moved = {}
    for feature, change in changes.items():
        if isinstance(change, str):
            model = load(path)
            neutral = 1.0 if "norm" in change and not change.endswith(".bias") else 0.0
            touched = [weight for name, weight in model.named_parameters() if change in name]
            assert touched, change
            with torch.no_grad():
                for weight in touched:
                    weight.fill_(neutral)
        elif callable(change):
            model = load(path)
            change(model)
        else:
            shutil.copytree(path, scratch, dirs_exist_ok=True)
            config = json.loads((path / "config.json").read_text())
            if change.get("layer_types", "") is None:
                config.pop("layer_types")
                change = {k: v for k, v in change.items() if k != "layer_types"}
            (scratch / "config.json").write_text(json.dumps(config | change))
            model = load(scratch)
            shutil.rmtree(scratch)
        changed = logits_of(model, [prompt])[0, POSITIONS]
        moved[feature] = round(float((changed - logits).abs().max()), 3)
        assert moved[feature] > CHANGE_MIN, (path.name, feature, moved[feature])
    return moved


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def make(name, family, out, seed):
    path = out / name
    shutil.rmtree(path, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(family["config"])
    fill(model, generator)
    model = model.to(family["dtype"])
    model.save_pretrained(path, max_shard_size=family.get("shard", "1GB"))
    config = json.loads((path / "config.json").read_text())
    family.get("rewrite", lambda config: None)(config)
    write_json(path / "config.json", config)

    for file in path.iterdir():
        file.chmod(0o644)

    # From here on only what is in the files counts.
    model = load(path)
    prompt, text, margins = choose_prompt(model, generator)
    logits = logits_of(model, [prompt])[0, POSITIONS]
    without = measure_without(path, family["without"], prompt, logits, out / (name + ".scratch"))
    write_json(path / "expected.json", {
        "format": 1,
        "name": name,
        "note": family["note"],
        "made_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "vocab": logits.shape[1],
        "prompt": prompt,
        "logit_positions": POSITIONS,
        "logits": base64.b64encode(logits.numpy().astype("<f4").tobytes()).decode(),
        "greedy": text,
        "greedy_margins": [round(margin, 4) for margin in margins],
        "without": without,
    })
    size = sum(file.stat().st_size for file in path.iterdir())
    print(f"{name}: {size} bytes, logits' deviation {logits.std():.2f}, smallest margin "
          f"{min(margins):.3f}, without {without}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "families")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for index, (name, family) in enumerate(FAMILIES.items()):
        if options.only in (None, name):
            make(name, family, options.out, seed=1000 + index)


if __name__ == "__main__":
    main()
