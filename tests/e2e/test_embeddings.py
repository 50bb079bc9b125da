"""/v1/embeddings: against a forward pass in NumPy, with the official SDK and with LangChain."""

from __future__ import annotations

import base64
import concurrent.futures
import json
import pathlib
import struct

import numpy
import pytest
from harness import CONTEXT, MODEL, Server, wait_until

TEXTS = [
    "Once upon a time",
    "The lamp is in the kitchen, and the kitchen is dark.",
    "1, 2, 3, 4, 5, 6, 7, 8, 9",
    "Ein Satz in einer anderen Sprache: schön!",
]


class Reference:
    """The bundled model in float64, as transformers' LlamaForCausalLM has it: its last hidden states."""

    def __init__(self) -> None:
        self.config = json.loads((MODEL / "config.json").read_text())
        data = (MODEL / "model.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        self.weights = {}
        for name, tensor in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            assert tensor["dtype"] == "BF16"
            begin, end = (8 + length + at for at in tensor["data_offsets"])
            bits = numpy.frombuffer(data[begin:end], "<u2").astype(numpy.uint32) << 16
            self.weights[name] = bits.view(numpy.float32).astype(float).reshape(tensor["shape"])

    def norm(self, x: numpy.ndarray, name: str) -> numpy.ndarray:
        mean = (x * x).mean(-1, keepdims=True)
        return x / numpy.sqrt(mean + self.config["rms_norm_eps"]) * self.weights[name + ".weight"]

    def turn(self, x: numpy.ndarray) -> numpy.ndarray:
        """Rotary embedding of [tokens, heads, head_dim]."""
        half = x.shape[-1] // 2
        angles = numpy.arange(len(x))[:, None] * self.config["rope_theta"] ** (-numpy.arange(half) / half)
        cos, sin = numpy.cos(angles)[:, None], numpy.sin(angles)[:, None]
        low, high = x[..., :half], x[..., half:]
        return numpy.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def attend(self, x: numpy.ndarray, at: str) -> numpy.ndarray:
        heads, kv_heads, dim = (self.config[n] for n in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, k, v = (
            (x @ self.weights[f"{at}.{n}_proj.weight"].T).reshape(len(x), -1, dim) for n in ("q", "k", "v")
        )
        q, k = self.turn(q), self.turn(k).repeat(heads // kv_heads, 1)
        scores = numpy.einsum("ihd,jhd->hij", q, k) / numpy.sqrt(dim)
        scores = numpy.where(numpy.tri(len(x), dtype=bool), scores, -numpy.inf)
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = numpy.einsum("hij,jhd->ihd", weights, v.repeat(heads // kv_heads, 1))
        return out.reshape(len(x), -1) @ self.weights[f"{at}.o_proj.weight"].T

    def hidden(self, ids: list[int]) -> numpy.ndarray:
        x = self.weights["model.embed_tokens.weight"][ids]
        for i in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = x + self.attend(self.norm(x, at + ".input_layernorm"), at + ".self_attn")
            y = self.norm(x, at + ".post_attention_layernorm")
            gate = y @ self.weights[at + ".mlp.gate_proj.weight"].T
            up = y @ self.weights[at + ".mlp.up_proj.weight"].T
            x = x + (gate / (1 + numpy.exp(-gate)) * up) @ self.weights[at + ".mlp.down_proj.weight"].T
        return self.norm(x, "model.norm")


def ids_of(server: Server, text: str) -> list[int]:
    """As a prompt has them, with BOS."""
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def floats32(values: list[float]) -> list[float]:
    """What fewer digits say, too."""
    return numpy.float32(values).tolist()


def unit(vector: numpy.ndarray) -> numpy.ndarray:
    return vector / numpy.linalg.norm(vector)


def embed(server: Server, given, **fields) -> list[list[float]]:
    reply = server.post("/v1/embeddings", {"input": given} | fields)
    assert reply.status == 200, reply.body
    data = reply.json()["data"]
    assert [entry["index"] for entry in data] == list(range(len(data)))
    return [entry["embedding"] for entry in data]


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory):
    """At this level all but K and V is fp32."""
    log = tmp_path_factory.mktemp("embeddings") / "server.log"
    with Server(log, ("--cpu-level", "avx2", "--pooling", "last")) as started:
        yield started


def test_embeddings__are_those_of_a_forward_pass_in_numpy(exact):
    reference = Reference()
    for text in TEXTS:
        hidden = reference.hidden(ids_of(exact, text))
        mean, last = unit(hidden.mean(0)), unit(hidden[-1])
        (got,) = embed(exact, text, pooling="mean")
        assert numpy.abs(numpy.array(got) - mean).max() < 0.01
        assert numpy.dot(got, mean) > 0.9995
        (got,) = embed(exact, text)  # --pooling last
        assert numpy.abs(numpy.array(got) - last).max() < 0.01
        assert numpy.dot(got, last) > 0.9995
        assert numpy.dot(mean, last) < 0.99


def write_base(folder: pathlib.Path, pooling: str, normalised: bool) -> pathlib.Path:
    """The bundled model as models for embeddings are published: of the base class, without an output matrix, with
    sentence-transformers' files, and with a token behind each text."""
    folder.mkdir()
    config = json.loads((MODEL / "config.json").read_text())
    config |= {"architectures": ["LlamaModel"], "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    data = (MODEL / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors, rest = {}, b""
    for name, tensor in json.loads(data[8 : 8 + length]).items():
        if name not in ("__metadata__", "lm_head.weight"):
            begin, end = (8 + length + at for at in tensor["data_offsets"])
            tensor["data_offsets"] = [len(rest), len(rest) + end - begin]
            rest += data[begin:end]
            tensors[name.removeprefix("model.")] = tensor
    header = json.dumps(tensors).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + rest)
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    end = tokenizer["added_tokens"][-1]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end["content"], "type_id": 0}}],
        "special_tokens": {end["content"]: {"id": end["content"], "ids": [end["id"]], "tokens": [end["content"]]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": False, "bos_token": None}))
    kinds = ["Transformer", "Pooling"] + ["Normalize"] * normalised
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
                for i, kind in enumerate(kinds)
            ]
        )
    )
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


@pytest.mark.parametrize("normalised", [True, False])
def test_embeddings__of_a_published_base_model(tmp_path, normalised):
    """Pooling, length and the token behind a text are the model's; what would be text is refused."""
    reference = Reference()
    folder = write_base(tmp_path / "base", "lasttoken", normalised)
    end = json.loads((MODEL / "tokenizer.json").read_text())["added_tokens"][-1]["id"]
    with Server(tmp_path / "server.log", ("--cpu-level", "avx2"), model=folder) as started:
        for text in TEXTS:
            ids = ids_of(started, text)
            assert ids[-1] == end and end not in ids[:-1]
            last = reference.hidden(ids)[-1]
            (got,) = embed(started, text)
            want = unit(last) if normalised else last
            assert numpy.abs(numpy.array(got) - want).max() < 0.01 * numpy.linalg.norm(want)
            (got,) = embed(started, text, normalize=True)
            assert numpy.dot(got, unit(last)) > 0.9995
        error = started.post("/v1/completions", {"prompt": "a"}).error()
        assert "base model without an output matrix" in error["message"] and error["code"] == "unsupported"


def test_embeddings__of_a_pooling_that_is_not_implemented(tmp_path):
    folder = write_base(tmp_path / "base", "cls_token", True)
    with Server(tmp_path / "server.log", model=folder) as started:
        error = started.post("/v1/embeddings", {"input": "a"}).error()
        assert error["param"] == "pooling" and "the pooling 'cls' (1_Pooling/config.json)" in error["message"]
        assert embed(started, "a", pooling="mean")
    with Server(tmp_path / "other.log", ("--pooling", "mean"), model=folder) as started:
        assert embed(started, "a")


def test_embeddings__of_the_sdk(client, server):
    """The SDK asks for base64 where nothing is said, and decodes it."""
    answer = client.embeddings.create(model="demo", input=TEXTS)
    assert answer.object == "list" and answer.model == "demo"
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3]
    floats = client.embeddings.create(model="demo", input=TEXTS, encoding_format="float")
    raw = server.post("/v1/embeddings", {"input": TEXTS, "encoding_format": "base64"}).json()["data"]
    for ours, theirs, coded in zip(answer.data, floats.data, raw, strict=True):
        assert floats32(ours.embedding) == floats32(theirs.embedding) and len(ours.embedding) == 320
        assert abs(numpy.linalg.norm(ours.embedding) - 1) < 1e-6
        assert list(struct.unpack("<320f", base64.b64decode(coded["embedding"]))) == ours.embedding
    tokens = sum(len(ids_of(server, text)) for text in TEXTS)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == tokens


def test_embeddings__of_texts_and_of_their_ids_are_the_same(server):
    texts = embed(server, TEXTS)
    ids = [ids_of(server, text) for text in TEXTS]
    assert embed(server, ids) == texts
    assert embed(server, ids[1]) == [texts[1]] == embed(server, TEXTS[1])
    assert embed(server, [TEXTS[0], ids[1]]) == texts[:2]


def test_embeddings__fewer_dimensions_are_the_first_as_a_unit_vector(client):
    (whole,) = client.embeddings.create(model="demo", input=TEXTS[0]).data
    (short,) = client.embeddings.create(model="demo", input=TEXTS[0], dimensions=64).data
    assert len(short.embedding) == 64
    assert numpy.allclose(short.embedding, unit(numpy.array(whole.embedding[:64])), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings__depend_on_the_text_alone(server, pooling):
    """Company, policies, what is cached: the same bits."""
    texts = [" ".join(TEXTS) * n for n in (1, 3, 11)] + TEXTS
    alone = [embed(server, text, pooling=pooling, cache_salt=f"alone {i}")[0] for i, text in enumerate(texts)]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        chats = [
            pool.submit(server.complete, TEXTS[i % 4], max_tokens=60, temperature=0, ignore_eos=True) for i in range(6)
        ]
        together = [pool.submit(embed, server, texts, pooling=pooling) for _ in range(4)]
        for answer in together:
            assert answer.result() == alone
        for chat in chats:
            assert chat.result()["usage"]["completion_tokens"] == 60
    allowed = server.request("GET", "/v1/models").json()["data"][0]
    policies = [name for name in ("offload", "kivi", "specache") if name in json.dumps(allowed)]
    assert policies
    for policy in policies:
        assert embed(server, texts, pooling=pooling, kv={"policy": policy}) == alone


def test_embeddings__the_last_tokens_prefix_is_cached(server):
    text = " ".join(TEXTS) * 4
    fields = {"pooling": "last", "cache_salt": "prefix", "kv": {"report": True}, "input": text}
    first, second = (server.post("/v1/embeddings", fields).json() for _ in range(2))
    assert first["data"] == second["data"]
    assert first["usage"]["kvahead"]["cached_prompt_tokens"] == 0
    assert second["usage"]["kvahead"]["cached_prompt_tokens"] >= 64


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({}, "input", None),
        ({"input": []}, "input", None),
        ({"input": {"a": 1}}, "input", None),
        ({"input": [["a"]]}, "input", None),
        ({"input": [1, 99999]}, "input", None),
        ({"input": ["a"] * 2049}, "input", None),
        ({"input": "a", "dimensions": 0}, "dimensions", None),
        ({"input": "a", "dimensions": 321}, "dimensions", None),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", None),
        ({"input": "a", "pooling": "cls"}, "pooling", None),
        ({"input": "a", "normalize": "no"}, "normalize", None),
        ({"input": "a", "messages": [{}]}, "messages", "unsupported"),
        ({"input": [1] * CONTEXT}, "input", "context_length_exceeded"),
        ({"input": "a", "model": "text-embedding-3-small"}, "model", "model_not_found"),
    ],
)
def test_embeddings__refusals_name_the_field(server, fields, param, code):
    reply = server.post("/v1/embeddings", fields)
    error = reply.error()
    assert reply.status == (404 if code == "model_not_found" else 400)
    assert error["param"].split("[")[0] == param and error["code"] == code


def test_embeddings__a_long_text_is_truncated_where_that_is_asked_for(server):
    ids = ids_of(server, " ".join(TEXTS) * 3)
    reply = server.post("/v1/embeddings", {"input": [ids], "truncate_prompt_tokens": 10})
    document = reply.json()
    assert reply.headers["x-kvahead-truncated-tokens"] == str(len(ids) - 10)
    assert document["usage"]["prompt_tokens"] == 10
    assert document["data"][0]["embedding"] == embed(server, ids[-10:])[0]


def test_embeddings__many_texts_in_one_request(server):
    count = 300
    before = server.metrics()["kvahead_embeddings_total"]
    vectors = embed(server, [f"text number {i % 7}" for i in range(count)], encoding_format="float")
    assert len(vectors) == count and vectors[:7] == vectors[7:14]
    assert server.metrics()["kvahead_embeddings_total"] == before + count
    server.wait_idle()


def test_embeddings__end_with_their_client(server):
    before = server.metrics()['kvahead_requests_finished_total{reason="abort"}']
    body = json.dumps({"input": [[5 + i % 100 for i in range(CONTEXT - 2)]] * 50}).encode()
    sock = server.connect()
    sock.sendall(
        b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    wait_until("something runs", lambda: server.metrics()["kvahead_requests_running"] > 0)
    sock.close()
    server.wait_idle()
    assert server.metrics()['kvahead_requests_finished_total{reason="abort"}'] > before


def test_embeddings__of_langchain(server):
    langchain = pytest.importorskip("langchain_openai")
    embeddings = langchain.OpenAIEmbeddings(
        model="demo",
        base_url=f"{server.url}/v1",
        api_key="any",
        check_embedding_ctx_length=False,  # else it sends ids of OpenAI's tokenizer
    )
    documents = embeddings.embed_documents(TEXTS)
    assert [floats32(d) for d in documents] == [floats32(d) for d in embed(server, TEXTS)]
    assert embeddings.embed_query(TEXTS[0]) == documents[0]
