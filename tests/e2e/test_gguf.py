"""GGUF files that the gguf package wrote: the bundled model as it is, quantised, and split."""

from __future__ import annotations

import json
import pathlib
import shutil
import struct

import gguf
import numpy as np
import pytest
from harness import MODEL, ROOT, Server, command

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPT = "Once upon a time there was a girl named Alice. She had a red ball."
TEXT = (ROOT / "LICENSE").read_text()[:3000]
REQUEST = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "logprobs": 3}
MESSAGES = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 24, "temperature": 0}
BF16, F32 = gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.F32
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def config() -> dict:
    """The model's, with the base of its rotation as 32 bits have it, which is what GGUF keeps."""
    fields = json.loads((MODEL / "config.json").read_text())
    fields["rope_theta"] = float(np.float32(fields["rope_theta"]))
    return fields


def weights() -> dict[str, np.ndarray]:
    """Tensors of the checkpoint, as the 16 bits of bf16."""
    data = (MODEL / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    table = json.loads(data[8:8 + length])
    table.pop("__metadata__", None)
    tensors = {}
    for name, entry in table.items():
        assert entry["dtype"] == "BF16"
        first, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + length + first:8 + length + end], np.uint16).reshape(entry["shape"])
    return tensors


def to_float(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        number, rest = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{number}.{LAYER[rest.removesuffix('.weight')]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
            "lm_head.weight": "output.weight"}[name]


def reordered(name: str, tensor: np.ndarray, fields: dict) -> np.ndarray:
    """Rows of q and k as Meta's code has them: the two that RoPE rotates together side by side."""
    heads = {"q_proj": fields["num_attention_heads"], "k_proj": fields["num_key_value_heads"]}
    for part, count in heads.items():
        if part in name:
            shape = tensor.shape
            return tensor.reshape(count, 2, shape[0] // count // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    return tensor


def add_metadata(writer: gguf.GGUFWriter, fields: dict) -> None:
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(fields["hidden_size"])
    writer.add_block_count(fields["num_hidden_layers"])
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(fields["num_attention_heads"])
    writer.add_head_count_kv(fields["num_key_value_heads"])
    writer.add_key_length(fields["head_dim"])
    writer.add_value_length(fields["head_dim"])
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(fields["rope_theta"])
    writer.add_rope_dimension_count(fields["head_dim"])
    writer.add_vocab_size(fields["vocab_size"])
    writer.add_license("apache-2.0")


def add_tokenizer(writer: gguf.GGUFWriter, fields: dict) -> None:
    source = json.loads((MODEL / "tokenizer.json").read_text())
    settings = json.loads((MODEL / "tokenizer_config.json").read_text())
    size = fields["vocab_size"]
    tokens, types = [f"[PAD{i}]" for i in range(size)], [gguf.TokenType.UNUSED] * size
    for text, number in source["model"]["vocab"].items():
        tokens[number], types[number] = text, gguf.TokenType.NORMAL
    for token in source["added_tokens"]:
        tokens[token["id"]], types[token["id"]] = token["content"], gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in source["model"]["merges"]])
    writer.add_bos_token_id(fields["bos_token_id"])
    writer.add_eos_token_id(fields["eos_token_id"][0])
    writer.add_add_bos_token(True)
    writer.add_chat_template(settings["chat_template"])


def write(path: pathlib.Path, kind: gguf.GGMLQuantizationType, tensors: dict[str, np.ndarray], split: int = 0) -> None:
    fields = config()
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    add_metadata(writer, fields)
    add_tokenizer(writer, fields)
    for name, bits in tensors.items():
        values = reordered(name, bits, fields)
        if values.ndim == 1:
            writer.add_tensor(gguf_name(name), to_float(values), raw_dtype=F32)
        elif kind == BF16:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(values).view(np.uint8), raw_dtype=BF16)
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(to_float(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_folder(folder: pathlib.Path, kind: gguf.GGMLQuantizationType, tensors: dict[str, np.ndarray]) -> None:
    """The checkpoint with its matrices quantised and decoded again."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(MODEL / name, folder)
    (folder / "config.json").write_text(json.dumps(config()))
    table, data = {}, b""
    for name, bits in tensors.items():
        if bits.ndim == 2 and kind != BF16:
            bits = to_bf16(gguf.quants.dequantize(gguf.quants.quantize(to_float(bits), kind), kind))
        table[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [len(data), len(data) + bits.nbytes]}
        data += np.ascontiguousarray(bits).tobytes()
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)


def answers(model: pathlib.Path, log: pathlib.Path, *options: str) -> tuple:
    with Server(log, options, model=model) as server:
        completion = server.post(COMPLETIONS, REQUEST).json()["choices"][0]
        chat = server.post(CHAT, MESSAGES).json()
        return completion["text"], completion["logprobs"], chat["choices"][0]["message"], chat["usage"]


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf__answers_as_the_decoded_checkpoint(tmp_path, kind):
    tensors, kind = weights(), gguf.GGMLQuantizationType[kind]
    write(tmp_path / "demo.gguf", kind, tensors)
    write_folder(tmp_path / "demo", kind, tensors)
    expected = answers(tmp_path / "demo", tmp_path / "folder.log")
    assert expected[0]
    assert answers(tmp_path / "demo.gguf", tmp_path / "file.log", "--weights", "bf16") == expected


def prompt_logprobs(model: pathlib.Path, log: pathlib.Path, *options: str) -> tuple[np.ndarray, str]:
    """Of every token of a text, and what the server says of its weights."""
    request = {"prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 0}
    with Server(log, options, model=model) as server:
        reply = server.post(COMPLETIONS, request | {"return_token_ids": True}).json()["choices"][0]
        entries = reply["prompt_logprobs"][1:]
        values = [next(iter(e["logprob"] for i, e in entry.items() if int(i) == token))
                  for entry, token in zip(entries, reply["prompt_token_ids"][1:], strict=True)]
        return np.array(values), server.log()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_gguf__blocks_as_they_are(tmp_path, kind):
    """Weights are exactly those that NumPy decodes; activations are rounded to 8 bits, which costs less than
    rounding weights as well does."""
    tensors, kind = weights(), gguf.GGMLQuantizationType[kind]
    write(tmp_path / "demo.gguf", kind, tensors)
    write_folder(tmp_path / "demo", kind, tensors)
    expected, _ = prompt_logprobs(tmp_path / "demo", tmp_path / "folder.log")
    rounded, _ = prompt_logprobs(tmp_path / "demo", tmp_path / "int8.log", "--weights", "int8")
    found, log = prompt_logprobs(tmp_path / "demo.gguf", tmp_path / "file.log")
    assert "matrices as the file has them, in memory of this process" in log
    error = np.abs(found - expected).mean()
    assert 0 < error < 1.25 * np.abs(rounded - expected).mean()
    assert abs(found.mean() - expected.mean()) < 0.05
    assert sorted(p.name for p in tmp_path.glob("demo.gguf*")) == ["demo.gguf"]


def test_gguf__split_and_every_command(tmp_path):
    write(tmp_path / "demo.gguf", BF16, weights(), split=9)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) > 3 and parts[0].name.startswith("demo-00001-of-")
    info = command("info", "--model", parts[0])
    assert info.returncode == 0, info.stderr
    assert f"architecture llama, {len(parts)} parts" in info.stdout
    assert "licence              apache-2.0" in info.stdout and "chat template yes" in info.stdout
    for folder in (MODEL, parts[0]):
        ids = command("tokenize", "--model", folder, "--ids", PROMPT)
        text = command("generate", "--model", folder, "--max-tokens", "12", "--temperature", "0", PROMPT)
        assert ids.returncode == text.returncode == 0, ids.stderr + text.stderr
        if folder == MODEL:
            expected = ids.stdout, text.stdout
    assert (ids.stdout, text.stdout) == expected
    int8 = command("generate", "--model", parts[0], "--weights", "int8", "--max-tokens", "4", "--temperature", "0", PROMPT)
    assert int8.returncode == 0, int8.stderr
    assert (tmp_path / f"{parts[0].name}.int8").is_file()
    parts[1].unlink()
    missing = command("info", "--model", parts[0])
    assert missing.returncode == 1 and parts[1].name in missing.stderr
