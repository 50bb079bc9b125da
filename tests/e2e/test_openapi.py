"""Answers against OpenAI's own schemas: openai/openai-openapi's openapi.json, which KVAHEAD_OPENAPI names.

Two things are read into them that OpenAI's API does, too: `nullable` means what it meant in OpenAPI 3.0, and
`usage` is null in what has not ended.
"""

from __future__ import annotations

import json
import os
import pathlib

import jsonschema
import pytest
from test_tools import TOOLS

SPEC = os.environ.get("KVAHEAD_OPENAPI")
MESSAGES = [{"role": "user", "content": "Once upon a time"}]
FUNCTIONS = [tool["function"] for tool in TOOLS]


def with_nulls(schema):
    if isinstance(schema, list):
        return [with_nulls(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: with_nulls(value) for name, value in schema.items()}
    return {"anyOf": [made, {"type": "null"}]} if made.get("nullable") is True else made


def without_usage(document):
    if isinstance(document, list):
        return [without_usage(item) for item in document]
    if not isinstance(document, dict):
        return document
    return {name: without_usage(value) for name, value in document.items() if (name, value) != ("usage", None)}


@pytest.fixture(scope="module")
def schemas():
    if not SPEC:
        pytest.skip("KVAHEAD_OPENAPI does not name OpenAI's openapi.json (github.com/openai/openai-openapi)")
    return with_nulls(json.loads(pathlib.Path(SPEC).read_text())["components"])


@pytest.fixture
def check(schemas):
    def holds(name: str, document: dict) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": schemas}
        errors = list(jsonschema.Draft202012Validator(schema).iter_errors(without_usage(document)))
        best = jsonschema.exceptions.best_match(errors)
        assert not errors, f"{name}: {best.json_path}: {best.message[:500]}"

    return holds


def post(server, path: str, **fields) -> dict:
    reply = server.post(path, fields)
    assert reply.status == 200, reply.body
    return reply.json()


def frames(server, path: str, **fields) -> list[dict]:
    reply = server.post(path, fields | {"stream": True})
    assert reply.status == 200, reply.body
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_openapi__chats(server, check):
    fields = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    check("CreateChatCompletionResponse", post(server, "/v1/chat/completions", **fields))
    for frame in frames(server, "/v1/chat/completions", **fields):
        check("CreateChatCompletionStreamResponse", frame)


@pytest.mark.parametrize(
    "calls",
    [{"tools": TOOLS, "tool_choice": "required"}, {"functions": FUNCTIONS, "function_call": {"name": "set_lamp"}}],
)
def test_openapi__calls(server, check, calls):
    fields = {"messages": MESSAGES, "max_tokens": 400, "seed": 3} | calls
    document = post(server, "/v1/chat/completions", **fields)
    message = document["choices"][0]["message"]
    assert "tool_calls" in message or "function_call" in message
    check("CreateChatCompletionResponse", document)
    for frame in frames(server, "/v1/chat/completions", **fields):
        check("CreateChatCompletionStreamResponse", frame)


@pytest.mark.parametrize("fields", [{}, {"dimensions": 7}, {"pooling": "last"}])
def test_openapi__embeddings(server, check, fields):
    check("CreateEmbeddingResponse", post(server, "/v1/embeddings", input=["Once", [1, 2, 3]], **fields))


def test_openapi__responses(server, check):
    fields = {"model": "demo", "input": "Once upon a time", "temperature": 0, "max_output_tokens": 12}
    document = post(server, "/v1/responses", **fields)
    check("Response", document)
    items = server.request("GET", f"/v1/responses/{document['id']}/input_items").json()
    check("ResponseItemList", items)
    for event in frames(server, "/v1/responses", **fields):
        check("ResponseStreamEvent", event)


def test_openapi__errors_and_models(server, check):
    for path, fields in (("/v1/embeddings", {}), ("/v1/responses", {"input": []}), ("/v1/chat/completions", {})):
        check("ErrorResponse", server.post(path, fields).json())
    check("ListModelsResponse", server.request("GET", "/v1/models").json())
