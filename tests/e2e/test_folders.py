"""Models' folders as they are found: what is missing, older tokenizers, more ids than embeddings."""

from __future__ import annotations

import json
import pathlib
import shutil

import pytest
from harness import MODEL, ROOT, command

FIXTURE = ROOT / "tests" / "text" / "tokenizer" / "data" / "folders.json"


def copy_of_the_model(folder: pathlib.Path, *without: str) -> pathlib.Path:
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("training", "*.py", *without))
    return folder


def why(folder: pathlib.Path) -> str:
    done = command("serve", "--model", folder, "--port", "0")
    assert done.returncode == 1, done
    return done.stderr.splitlines()[-1]


def test_folder__all_that_is_missing_is_said_at_once(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    line = why(tmp_path)
    for words in (str(tmp_path), "config.json", "model.safetensors", "pytorch_model.bin cannot be read",
                  "save the model as safetensors", "tokenizer.json", "tokenizer.model", "merges.txt", "kvahead pull"):
        assert words in line
    line = why(copy_of_the_model(tmp_path / "model", "tokenizer.json"))
    assert "lacks a tokenizer" in line and "weights" not in line and "config.json" not in line
    (tmp_path / "model" / "vocab.json").write_text('{"a": 0}')
    assert "lacks merges.txt, to which vocab.json belongs" in why(tmp_path / "model")


def test_folder__is_named_as_it_is_called():
    for path in (MODEL, f"{MODEL}/", f"{MODEL}/.", f"{MODEL}/training/.."):
        assert command("info", "--model", path).stdout.splitlines()[0].split() == ["model", MODEL.name]


@pytest.mark.parametrize("name", ["llama_added", "opt"])
def test_folder__of_an_older_tokenizer_is_served(servers, tmp_path, name):
    folder = copy_of_the_model(tmp_path / "model", "tokenizer*", "special_tokens_map.json")
    files = json.loads(FIXTURE.read_text())["folders"][name]["files"]
    for file, data in files.items():
        (folder / file).write_bytes(bytes.fromhex(data))
    server = servers.start(model=folder)
    tokens = server.post("/tokenize", {"prompt": "The ships", "return_token_strs": True}).json()
    assert tokens["token_strs"][0] == ("<s>" if name == "llama_added" else "</s>")
    text = server.post("/detokenize", {"tokens": tokens["tokens"][1:]}).json()["prompt"]
    assert text == "The ships"
    answer = server.post("/v1/completions", {"prompt": "The ships", "max_tokens": 4, "temperature": 0})
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_folder__ids_without_embeddings_are_refused_in_prompts(servers, tmp_path):
    folder = copy_of_the_model(tmp_path / "model")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(size): {"content": "<late>", "special": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    server = servers.start(model=folder)
    assert f"ids up to {size}, the model only {size} embeddings" in server.log()
    for path, body, param in (
        ("/v1/completions", {"prompt": "Once <late> more"}, "prompt"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "<late>"}]}, "messages"),
    ):
        reply = server.post(path, body)
        assert reply.status == 400 and reply.error()["param"] == param
        assert f"token {size} ('<late>')" in reply.error()["message"]
    assert server.post("/v1/completions", {"prompt": [size]}).status == 400
    assert server.post("/tokenize", {"prompt": "<late>"}).json()["tokens"][-1] == size
    # Its logits do not exist, so it needs no ban, nor can it have one.
    body = {"prompt": "Once", "max_tokens": 4, "temperature": 0}
    plain = server.post("/v1/completions", body).json()["choices"][0]["text"]
    banned = server.post("/v1/completions", {**body, "bad_words": ["<late>"]}).json()["choices"][0]["text"]
    assert plain == banned


def test_folder__its_tokenizer_s_own_end_ends_a_text(servers, tmp_path):
    """Descendants of a base model keep its generation_config.json, and say in tokenizer_config.json what they end with."""
    folder = copy_of_the_model(tmp_path / "model")
    files = {name: json.loads((folder / name).read_text()) for name in ("config.json", "generation_config.json")}
    for name, fields in files.items():
        (folder / name).write_text(json.dumps(fields | {"eos_token_id": fields["pad_token_id"]}))
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 400, "temperature": 0}
    answers = [servers.start(model=model).post("/v1/chat/completions", body).json() for model in (MODEL, folder)]
    assert answers[0]["choices"][0]["finish_reason"] == "stop"
    assert answers[1]["choices"] == answers[0]["choices"] and answers[1]["usage"] == answers[0]["usage"]
    prompt = "<|im_start|>user\nTell me a story.<|im_end|>\n<|im_start|>assistant\n"
    texts = [command("generate", "--model", model, "--max-tokens", "400", "--temperature", "0", prompt).stdout
             for model in (MODEL, folder)]
    assert texts[0] and texts[1] == texts[0]


def test_folder__a_template_for_tools_is_kept_beside_the_default(servers, tmp_path):
    folder = copy_of_the_model(tmp_path / "model")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert "chat template yes\n" in command("info", "--model", folder).stdout
    templates = {"default": settings["chat_template"], "tool_use": "{{ tools | tojson }}"}
    named = [{"name": name, "template": text} for name, text in templates.items()]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": named}))
    assert "chat template yes, another for tools\n" in command("info", "--model", folder).stdout
    file = folder / "additional_chat_templates" / "tool_use.jinja"
    file.parent.mkdir()
    file.write_text("{{ tools")
    assert str(file) in why(folder)
    # One that is given is for all requests.
    (tmp_path / "own.jinja").write_text(templates["default"])
    own = servers.start("--chat-template", str(tmp_path / "own.jinja"), model=folder)
    body = {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 1}
    assert own.post("/v1/chat/completions", body).status == 200
    # What continues a text has no use for any: neither is it stopped by one, nor is one taken and ignored.
    done = command("generate", "--model", folder, "--max-tokens", "1", "Once")
    assert done.returncode == 0, done
    done = command("generate", "--model", folder, "--chat-template", tmp_path / "own.jinja", "Once")
    assert done.returncode == 2 and "unknown option '--chat-template'" in done.stderr
