"""Writes a Llama checkpoint as GGUF, so that llama.cpp can be measured on the same weights.

    python to_gguf.py CHECKPOINT OUT.gguf        (needs gguf and numpy)

Matrices stay bf16. The vocabulary goes along: that of `kvahead make-model`, whose words are whole tokens
with no merges, and the bundled model's.
"""

import json
import pathlib
import struct
import sys

import gguf
import numpy as np

LAYER = {
    "input_layernorm.weight": "attn_norm",
    "self_attn.q_proj.weight": "attn_q",
    "self_attn.k_proj.weight": "attn_k",
    "self_attn.v_proj.weight": "attn_v",
    "self_attn.o_proj.weight": "attn_output",
    "post_attention_layernorm.weight": "ffn_norm",
    "mlp.gate_proj.weight": "ffn_gate",
    "mlp.up_proj.weight": "ffn_up",
    "mlp.down_proj.weight": "ffn_down",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd",
    "model.norm.weight": "output_norm",
    "lm_head.weight": "output",
}


def tensors(folder):
    """Name and bf16 bits of every tensor."""
    for path in sorted(folder.glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        (length,) = struct.unpack("<Q", bytes(data[:8]))
        table = json.loads(bytes(data[8 : 8 + length]))
        for name, entry in table.items():
            if name == "__metadata__":
                continue
            assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}"
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            yield name, data[begin:end].view(np.uint16).reshape(entry["shape"])


def interleaved(rows, heads):
    """llama.cpp rotates neighbours, the checkpoint halves."""
    dim = rows.shape[0] // heads
    return rows.reshape(heads, 2, dim // 2, -1).swapaxes(1, 2).reshape(rows.shape)


class Writer(gguf.GGUFWriter):
    """Writes empty arrays, too, as the merges of a vocabulary of whole words are: readers want them there."""

    def add_no_strings(self, key):
        self.add_key_value(key, [], gguf.GGUFValueType.ARRAY)

    def _pack_val(self, val, vtype, add_vtype, *rest, **named):
        if vtype != gguf.GGUFValueType.ARRAY or len(val) > 0:
            return super()._pack_val(val, vtype, add_vtype, *rest, **named)
        array = struct.pack("<IQ", gguf.GGUFValueType.STRING, 0)
        return (struct.pack("<I", vtype) if add_vtype else b"") + array


# llama.cpp knows pre-tokenizers by name: these two differ in how many digits stand together.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPLITS = {SPLIT % r"\p{N}": "qwen2", SPLIT % r"\p{N}{1,3}": "llama-bpe"}


def add_vocabulary(writer, folder, config):
    """A byte-level BPE as in tokenizer.json, with a pre-tokenizer that llama.cpp has."""
    path = folder / "tokenizer.json"
    if not path.exists():
        writer.add_tokenizer_model("none")
        return
    tokenizer = json.loads(path.read_text("utf-8"))
    split = tokenizer["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    tokens = [f"<unused_{i}>" for i in range(config["vocab_size"])]
    types = [gguf.TokenType.UNUSED] * len(tokens)
    for token, number in tokenizer["model"]["vocab"].items():
        tokens[number], types[number] = token, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        tokens[added["id"]], types[added["id"]] = added["content"], gguf.TokenType.CONTROL
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in tokenizer["model"]["merges"]]
    ends = config["eos_token_id"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(SPLITS[split])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if merges:
        writer.add_token_merges(merges)
    else:
        writer.add_no_strings(gguf.Keys.Tokenizer.MERGES)
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(ends[0] if isinstance(ends, list) else ends)
    writer.add_add_bos_token(True)
    template = json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("chat_template")
    if template:
        writer.add_chat_template(template)


def main():
    folder, out = pathlib.Path(sys.argv[1]), sys.argv[2]
    config = json.loads((folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    writer = Writer(out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer, folder, config)
    for name, bits in tensors(folder):
        if name in WHOLE:
            to = WHOLE[name]
        else:
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            to = f"blk.{layer}.{LAYER[rest]}"
        if to.endswith(("attn_q", "attn_k")):
            bits = interleaved(bits, heads if to.endswith("q") else kv_heads)
        if bits.ndim == 1:
            writer.add_tensor(f"{to}.weight", (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            writer.add_tensor(f"{to}.weight", np.ascontiguousarray(bits).view(np.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
