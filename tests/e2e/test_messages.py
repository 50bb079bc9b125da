"""/v1/messages with Anthropic's SDK, whose types every answer and every event is held against."""

from __future__ import annotations

import json

import anthropic
import jsonschema
import pydantic
import pytest
from anthropic.types import ErrorResponse, Message, RawMessageStreamEvent
from test_tools import LAMP, TOOLS, coder, served  # noqa: F401 (a fixture)

EVENT = pydantic.TypeAdapter(RawMessageStreamEvent)
CUSTOM = [
    {"name": tool["function"]["name"], "description": tool["function"]["description"],
     "input_schema": tool["function"].get("parameters") or {"type": "object", "properties": {}}}
    for tool in TOOLS
]
ONCE = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="module")
def grammars(server):
    if "kvahead_grammar_bytes" not in server.request("GET", "/metrics").body.decode():
        pytest.skip("built without structured output")


def ask(claude: anthropic.Anthropic, **fields):
    """Newer SDKs have no parameter for the temperature."""
    asked = {"model": "demo", "messages": ONCE, "max_tokens": 30}
    extra = {"temperature": 0} | fields.pop("extra_body", {})
    return claude.messages.create(**asked | fields, extra_body=extra)


def events_of(server, **fields) -> list[dict]:
    body = {"model": "demo", "messages": ONCE, "temperature": 0, "max_tokens": 30, "stream": True} | fields
    reply = server.request("POST", "/v1/messages", body)
    assert reply.status == 200
    events = []
    for block in reply.body.decode().strip().split("\n\n"):
        name, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    return events


@pytest.mark.parametrize("policy", ["full", "offload", "kivi", "specache"])
def test_create__is_the_chats_answer(claude, client, server, policy):
    extra = {"kv": {"policy": policy}}
    answer = ask(claude, extra_body=extra)
    chat = client.chat.completions.create(model="demo", messages=ONCE, temperature=0, max_tokens=30, extra_body=extra)
    assert [block.text for block in answer.content] == [chat.choices[0].message.content]
    assert answer.stop_reason == "end_turn" and answer.id.startswith("msg_")
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == chat.usage.prompt_tokens
    assert usage.output_tokens == chat.usage.completion_tokens
    body = {"model": "demo", "messages": ONCE, "max_tokens": 3, **extra}
    document = server.request("POST", "/v1/messages", body).json()
    Message.model_validate(document)
    assert document["stop_reason"] == "max_tokens"


def test_create__system_and_blocks_are_messages(claude, client):
    blocks = [
        {"role": "user", "content": [{"type": "text", "text": "Once", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""},
                                          {"type": "text", "text": "upon"}]},
        {"role": "user", "content": "a time"},
    ]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once"},
                {"role": "assistant", "content": "upon"}, {"role": "user", "content": "a time"}]
    chat = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=30)
    for system in ("Be brief.", [{"type": "text", "text": "Be brief."}]):
        answer = ask(claude, messages=blocks, system=system)
        assert answer.content[0].text == chat.choices[0].message.content
        counted = claude.messages.count_tokens(model="demo", messages=blocks, system=system)
        assert counted.input_tokens == chat.usage.prompt_tokens


def test_stop__sequences_are_told(claude):
    whole = ask(claude).content[0].text
    word = whole.split()[1]
    answer = ask(claude, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)
    assert answer.content[0].text == whole[: whole.index(word)]


def test_stream__says_the_same(claude, server):
    whole = ask(claude)
    events = events_of(server)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert text == whole.content[0].text and kinds.count("content_block_delta") > 3
    assert events[-2]["usage"]["output_tokens"] == whole.usage.output_tokens
    with claude.messages.stream(model="demo", messages=ONCE, max_tokens=30, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().stop_reason == "end_turn"


@pytest.mark.usefixtures("grammars")
def test_tools__are_called(claude, server):
    fields = {"tools": CUSTOM, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 400}
    answer = ask(claude, **fields)
    [call] = answer.content
    assert answer.stop_reason == "tool_use" and call.type == "tool_use" and call.name in ("set_lamp", "now")
    named = ask(claude, **fields | {"tool_choice": {"type": "tool", "name": "set_lamp"}})
    jsonschema.Draft202012Validator(LAMP).validate(named.content[0].input)
    events = events_of(server, **fields)
    [start] = [event for event in events if event["type"] == "content_block_start"]
    assert (start["content_block"]["name"], start["content_block"]["input"]) == (call.name, {})
    parts = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == call.input
    with claude.messages.stream(model="demo", messages=ONCE, extra_body={"temperature": 0}, **fields) as stream:
        assert stream.get_final_message().content[0].input == call.input
    follow = [*ONCE, {"role": "assistant", "content": [call.to_dict()]},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "It is on."},
                                           {"type": "text", "text": "Thanks."}]}]
    assert ask(claude, messages=follow, tools=CUSTOM, tool_choice={"type": "none"}).content[0].type == "text"
    count = claude.messages.count_tokens(model="demo", messages=ONCE, tools=CUSTOM).input_tokens
    assert count > claude.messages.count_tokens(model="demo", messages=ONCE).input_tokens + 20


@pytest.mark.usefixtures("grammars")
def test_output__is_of_its_format(claude):
    form = {"type": "json_schema", "schema": LAMP}
    answer = ask(claude, max_tokens=400, extra_body={"output_config": {"format": form}})
    jsonschema.Draft202012Validator(LAMP).validate(json.loads(answer.content[0].text))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages[0].content[0]"),
        ({"messages": [*ONCE, {"role": "user", "content": 7}]}, "messages[1].content"),
        ({"system": 7}, "system"),
        ({"system": [{"type": "text", "text": "x"}, {"type": "image", "source": {}}]}, "system[1]"),
        ({"messages": [*ONCE, {"role": "assistant", "content": ""}]}, "messages[1].content"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tools": CUSTOM, "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": CUSTOM, "tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"thinking": {"type": "perhaps"}}, "thinking"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ],
    ids=str,
)
def test_refusals__are_anthropics(claude, server, fields, param):
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(claude, extra_body=fields)
    assert caught.value.body["type"] == "error" and caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.body["error"]["param"] == param, caught.value.body
    assert caught.value.message


def test_keys__are_anthropics_header(servers, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    server = servers.start("--api-key-file", str(keys), key="secret")
    with anthropic.Anthropic(base_url=server.url, api_key="secret", max_retries=0) as good:
        assert ask(good, max_tokens=1).usage.output_tokens == 1
    with anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0) as bad:
        with pytest.raises(anthropic.AuthenticationError) as caught:
            ask(bad)
        error_of(caught.value, "authentication_error")


def error_of(caught: anthropic.APIStatusError, kind: str) -> None:
    body = caught.body
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["request_id"] == caught.request_id and caught.request_id
    if kind != "request_too_large":  # which the SDK has no type for
        ErrorResponse.model_validate(body)


def test_errors__have_anthropics_types_and_ids(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(claude, model="another")
    error_of(caught.value, "not_found_error")
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.batches.list()
    error_of(caught.value, "not_found_error")
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(claude, messages=[{"role": "user", "content": "x" * (17 << 20)}])
    error_of(caught.value, "request_too_large")
    assert ask(claude, max_tokens=1)._request_id


def test_coder__conversation(coder):  # noqa: F811
    """A question, a call, its result, an answer."""
    url = str(coder.base_url).removesuffix("/v1/")
    messages = [{"role": "user", "content": "Please set the lamp to red and switch it on."}]
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=600) as claude:
        fields = {"model": served(coder), "max_tokens": 100, "extra_body": {"temperature": 0}}
        with claude.messages.stream(messages=messages, tools=CUSTOM[:1], **fields) as stream:
            answer = stream.get_final_message()
        [call] = [block for block in answer.content if block.type == "tool_use"]
        assert answer.stop_reason == "tool_use" and call.input == {"on": True, "color": "red"}
        messages += [{"role": "assistant", "content": [block.to_dict() for block in answer.content]},
                     {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Done: red, on."}]}]
        last = claude.messages.create(messages=messages, tools=CUSTOM[:1], tool_choice={"type": "none"}, **fields)
        assert last.stop_reason == "end_turn" and "red" in last.content[0].text.lower()


def test_prefill__the_answer_goes_on(claude, client):
    begun = [*ONCE, {"role": "assistant", "content": "Hello! How"}]
    answer = ask(claude, messages=begun)
    chat = client.chat.completions.create(model="demo", messages=begun, temperature=0, max_tokens=30,
                                          extra_body={"continue_final_message": True})
    assert answer.content[0].text == chat.choices[0].message.content
    turn = "<|im_start|>user\nOnce upon a time<|im_end|>\n<|im_start|>assistant\nHello! How"
    plain = client.completions.create(model="demo", prompt=turn, temperature=0, max_tokens=30)
    assert plain.choices[0].text == answer.content[0].text and plain.usage.prompt_tokens == chat.usage.prompt_tokens
