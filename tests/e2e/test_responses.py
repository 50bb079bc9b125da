"""/v1/responses with the official SDK, whose types every answer and every event is held against."""

from __future__ import annotations

import json

import jsonschema
import openai
import pydantic
import pytest
from harness import wait_until
from openai.types.responses import Response, ResponseStreamEvent
from test_tools import LAMP, TOOLS, coder, served  # noqa: F401 (a fixture)

FLAT = [{"type": "function", **tool["function"]} for tool in TOOLS]
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def grammars(server):
    if "kvahead_grammar_bytes" not in server.request("GET", "/metrics").body.decode():
        pytest.skip("built without structured output")


def ask(client: openai.OpenAI, **fields):
    asked = {"model": "demo", "input": "Once upon a time", "temperature": 0, "max_output_tokens": 30}
    return client.responses.create(**asked | fields)


def events_of(server, **fields) -> list[dict]:
    """The raw events of a stream, each valid and in its place."""
    body = {"input": "Once upon a time", "temperature": 0, "max_output_tokens": 30, "stream": True} | fields
    reply = server.request("POST", "/v1/responses", body)
    assert reply.status == 200 and reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.body.decode().strip().split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n", 1)
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_create__is_a_response_of_the_sdk(client, server):
    answer = ask(client)
    body = {"input": "Once upon a time", "temperature": 0, "max_output_tokens": 30, "metadata": {"a": "b"}}
    document = server.request("POST", "/v1/responses", body).json()
    Response.model_validate(document)
    assert document["metadata"] == {"a": "b"} and document["id"] != answer.id
    for temperature, top_p in ((0.7, 0.95), (1, 0.1), (0.123, 1e-5)):
        sampled = server.request("POST", "/v1/responses", body | {"temperature": temperature, "top_p": top_p}).json()
        assert (sampled["temperature"], sampled["top_p"]) == (temperature, top_p)
    chat = client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Once upon a time"}],
                                          temperature=0, max_tokens=30)
    assert answer.output_text == chat.choices[0].message.content
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (chat.usage.prompt_tokens, chat.usage.completion_tokens)
    assert answer.status == "completed" and answer.incomplete_details is None


def test_stream__logprobs_are_those_of_the_whole_answer(server):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    plain = server.request("POST", "/v1/responses", {"input": "Once upon a time", "temperature": 0, "max_output_tokens": 30}
                           | fields).json()
    wanted = plain["output"][0]["content"][0]["logprobs"]
    assert len(wanted) > 5
    events = events_of(server, **fields)
    told = [entry for event in events if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert told == wanted[:len(told)] and len(told) >= len(wanted) - 1
    done = {event["type"]: event for event in events}
    assert done["response.output_text.done"]["logprobs"] == wanted
    assert done["response.content_part.done"]["part"]["logprobs"] == wanted
    last = done.get("response.completed") or done["response.incomplete"]
    assert last["response"]["output"][0]["content"][0]["logprobs"] == wanted
    kept = server.request("GET", f"/v1/responses/{last['response']['id']}").json()
    assert kept["output"][0]["content"][0]["logprobs"] == wanted


def test_create__a_cut_answer_is_incomplete(client):
    answer = ask(client, max_output_tokens=3)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete" and answer.usage.output_tokens == 3


@pytest.mark.parametrize("policy", ["full", "offload", "kivi", "specache"])
def test_input__items_are_messages(client, policy):
    extra = {"kv": {"policy": policy}}
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Once"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "upon", "annotations": []}]},
        {"type": "reasoning", "id": "rs", "summary": []},
        {"role": "user", "content": "a time"},
    ]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Once"},
                {"role": "assistant", "content": "upon"}, {"role": "user", "content": "a time"}]
    chat = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=30, extra_body=extra)
    answer = ask(client, input=items, extra_body=extra)
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    told = ask(client, input=items[1:], instructions="Be brief.", extra_body=extra)
    assert told.instructions == "Be brief." and told.usage.input_tokens < answer.usage.input_tokens + 4


def test_stream__says_the_same(client, server):
    whole = ask(client)
    events = events_of(server)
    assert [events[0]["type"], events[1]["type"], events[-1]["type"]] == [
        "response.created", "response.in_progress", "response.completed"]
    deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    assert "".join(deltas) == done["text"] == whole.output_text and len(deltas) > 3
    last = events[-1]["response"]
    assert last["usage"]["output_tokens"] == whole.usage.output_tokens
    assert last["output"][0]["content"][0]["text"] == whole.output_text
    assert events_of(server, max_output_tokens=3)[-1]["type"] == "response.incomplete"
    with client.responses.stream(model="demo", input="Once upon a time", temperature=0, max_output_tokens=30) as stream:
        assert stream.get_final_response().output_text == whole.output_text


@pytest.mark.usefixtures("grammars")
def test_tools__are_called(client, server):
    fields = {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 400, "parallel_tool_calls": False}
    answer = ask(client, **fields)
    [call] = answer.output
    assert call.type == "function_call" and call.status == "completed" and call.name in ("set_lamp", "now")
    named = ask(client, **fields | {"tool_choice": {"type": "function", "name": "set_lamp"}})
    jsonschema.Draft202012Validator(LAMP).validate(json.loads(named.output[0].arguments))
    events = events_of(server, **fields)
    [added] = [event for event in events if event["type"] == "response.output_item.added"]
    [done] = [event for event in events if event["type"] == "response.function_call_arguments.done"]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert added["item"]["name"] == call.name and added["item"]["arguments"] == ""
    assert "".join(deltas) == done["arguments"] == call.arguments
    # What was called, and what came of it, goes on.
    items = [{"role": "user", "content": "Light!"}, call.to_dict(),
             {"type": "function_call_output", "call_id": call.call_id, "output": "It is on."}]
    alone = ask(client, input=items)
    follow = ask(client, previous_response_id=ask(client, input="Light!", **fields).id, input=items[2:])
    assert follow.usage.input_tokens == alone.usage.input_tokens and follow.output_text == alone.output_text


@pytest.mark.usefixtures("grammars")
def test_tools__a_call_that_a_stop_string_cuts_is_incomplete(client, server):
    fields = {"tools": FLAT[:1], "tool_choice": "required", "max_output_tokens": 400}
    answer = ask(client, extra_body={"stop": ["color"]}, **fields)
    [call] = answer.output
    assert (answer.status, call.type, call.status) == ("completed", "function_call", "incomplete")
    events = events_of(server, stop=["color"], **fields)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["status"], item["arguments"]) for item in done] == [("incomplete", call.arguments)]


@pytest.mark.usefixtures("grammars")
def test_tools__an_answers_schema_is_refused_by_its_field(client):
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"a": {"not": {}}}}, "strict": True}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, tools=FLAT, text={"format": form})
    assert caught.value.param == "text.format", caught.value.message


def test_input__as_many_messages_as_a_chat_may_have(servers):
    own = servers.start("--request-limit", "messages=2")
    said = {"role": "user", "content": "Light!"}
    calls = [{"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"} for i in range(20)]
    # Calls behind each other are one message's.
    assert own.post("/v1/responses", {"input": [said, *calls], "max_output_tokens": 16}).status == 200
    refused = own.post("/v1/responses", {"input": [said, *calls, said], "max_output_tokens": 16})
    assert refused.status == 400 and refused.error()["param"] == "input"
    assert "more than 2 messages" in refused.error()["message"]


@pytest.mark.usefixtures("grammars")
def test_text__is_of_its_format(client):
    class Lamp(pydantic.BaseModel):
        on: bool

    answer = client.responses.parse(model="demo", input="Light!", text_format=Lamp, temperature=0, max_output_tokens=300)
    assert isinstance(answer.output_parsed, Lamp)


def test_store__responses_are_continued_shown_and_deleted(client):
    first = ask(client, instructions="You are a poet.")
    second = ask(client, input="And then?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    messages = [{"role": "user", "content": "Once upon a time"}, {"role": "assistant", "content": first.output_text},
                {"role": "user", "content": "And then?"}]
    # The instructions of the first are not those of the second.
    chat = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=30)
    assert second.output_text == chat.choices[0].message.content
    assert second.usage.input_tokens == chat.usage.prompt_tokens
    assert client.responses.retrieve(second.id) == second
    client.responses.delete(second.id)
    for request in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            request(second.id)
    hidden = ask(client, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(hidden.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, previous_response_id=hidden.id)
    # Clients that then send the whole conversation anew go by this code.
    assert caught.value.param == "previous_response_id" and caught.value.code == "previous_response_not_found"


def test_store__what_a_request_continues_counts_as_its_body(servers):
    server = servers.start("--body-limit", "64K", "--bodies-per-key", "150K")
    held = "kvahead_request_body_bytes"
    # The template trims it: few tokens, many bytes.
    first = server.post("/v1/responses", {"input": "hi" + " " * 60_000, "max_output_tokens": 4})
    assert first.status == 200, first
    more = {"input": "x", "previous_response_id": first.json()["id"], "max_output_tokens": 6000, "ignore_eos": True}
    with server.stream("/v1/responses", **more), server.stream("/v1/responses", **more):
        assert server.metrics()[held] > 120_000
        refused = server.post("/v1/responses", more)
        assert refused.status == 429 and "bodies-per-key" in refused.json()["error"]["message"], refused
        assert refused.headers["retry-after"] == "1"
        assert server.post("/v1/responses", {"input": "y", "max_output_tokens": 4}).status == 200
    wait_until("no body is held", lambda: server.metrics()[held] == 0)
    again = server.post("/v1/responses", more | {"max_output_tokens": 4})
    assert again.status == 200, again


@pytest.mark.parametrize("arguments", ["[" * 60 + "]" * 60, '{"a": 1, "a": 2}', '{"a": "\\u0000"}', "no JSON"],
                         ids=["deep", "twice", "nul", "text"])
def test_store__whatever_a_call_was_given_is_continued(client, arguments):
    items = [{"role": "user", "content": "x"},
             {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
             {"type": "function_call_output", "call_id": "c", "output": "done"}]
    first = ask(client, input=items)
    second = ask(client, input="And then?", previous_response_id=first.id)
    assert second.output_text and second.usage.input_tokens > first.usage.input_tokens


def test_store__says_what_was_asked(client, server):
    items = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Well."}]}]
    answer = ask(client, input=items)
    shown = client.responses.input_items.list(answer.id, order="asc").data
    assert [item.type for item in shown] == ["message"] * 3 and [item.id for item in shown] == ["item_0", "item_1", "item_2"]
    assert [item.role for item in shown] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in shown] == ["Hello", "Yes?", "Well."]
    assert [item.content[0].type for item in shown] == ["input_text", "output_text", "input_text"]
    page = client.responses.input_items.list(answer.id, limit=2)
    assert [item.id for item in page.data] == ["item_2", "item_1"] and page.has_more
    assert [item.id for item in page] == ["item_2", "item_1", "item_0"], "the SDK asks for the rest"
    later = ask(client, previous_response_id=answer.id, input="And?")
    [item] = client.responses.input_items.list(later.id).data
    assert item.content[0].text == "And?"
    for query in ("limit=0", "limit=101", "limit=x", "order=up"):
        reply = server.request("GET", f"/v1/responses/{answer.id}/input_items?{query}")
        assert reply.status == 400 and reply.error()["param"] == query.partition("=")[0]
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list(answer.id)


def test_cancel__is_for_what_runs_in_the_background(client, server):
    answer = ask(client)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_none")
    assert server.request("POST", f"/v1/responses/{answer.id}/cancel").status == 400, "without a body"
    assert server.request("GET", f"/v1/responses/{answer.id}/cancel").headers["allow"] == "POST, OPTIONS"
    refused = server.request("POST", f"/v1/responses/{answer.id}", {})
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD, DELETE, OPTIONS")
    with pytest.raises(openai.NotFoundError, match="is not supported by this server"):
        client.responses.input_tokens.count(model="demo", input="x")
    assert server.request("GET", f"/v1/responses/{answer.id}/elsewhere").status == 404


def test_store__a_complete_response_is_no_stream(client):
    answer = ask(client)
    with pytest.raises(openai.BadRequestError, match="complete") as caught:
        client.responses.retrieve(answer.id, stream=True)
    assert caught.value.param == "stream"
    assert client.responses.retrieve(answer.id).output_text == answer.output_text


def test_store__is_bounded_and_belongs_to_its_key(servers, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    server = servers.start("--api-key-file", str(keys), "--responses-memory", "16K", key="one")
    with server.client() as one, server.client(api_key="two") as two:
        first = ask(one)
        with pytest.raises(openai.NotFoundError):
            two.responses.retrieve(first.id)
        with pytest.raises(openai.BadRequestError):
            ask(two, previous_response_id=first.id)
        later = [ask(one).id for _ in range(30)]
        with pytest.raises(openai.NotFoundError):
            one.responses.retrieve(first.id)
        assert one.responses.retrieve(later[-1]).id == later[-1]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"input": [7]}, "input[0]"),
        ({"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "x"}]}, "input[1]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": None}]}, "input[0].output"),
        ({"instructions": 7}, "instructions"),
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": FLAT, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"metadata": {"a": "x" * 20_000}}, "metadata"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_refusals__name_the_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, extra_body=fields)
    assert caught.value.param == param, caught.value.message


def test_coder__langchain_uses_responses(coder):  # noqa: F811
    import langchain_openai

    model = langchain_openai.ChatOpenAI(model=served(coder), base_url=str(coder.base_url), api_key="none", temperature=0,
                                        max_tokens=100, max_retries=0, timeout=600, use_responses_api=True)
    bound = model.bind_tools([{"type": "function", "function": TOOLS[0]["function"]}])
    message = bound.invoke("Please set the lamp to red and switch it on.")
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("set_lamp", {"on": True, "color": "red"})]
    assert "Paris" in model.invoke("What is the capital of France? Answer with one word.").text
    assert "Paris" in "".join(chunk.text for chunk in model.stream("What is the capital of France? Answer with one word."))


@pytest.mark.usefixtures("grammars")
def test_stream__an_error_is_an_event(client, server):
    """One that comes within the text: the grammar wants what bad_words forbid."""
    pattern = {"type": "json_schema", "name": "x", "schema": {"type": "string", "pattern": "^a{3}b$"}}
    broken = {"text": {"format": pattern}, "bad_words": ["b", "ab", "aab", "aaab", 'b"', 'ab"', 'aab"', 'aaab"']}
    *before, last = events_of(server, **broken)
    assert before[0]["type"] == "response.created" and last["type"] == "error"
    assert last["message"] == last["error"]["message"] and "No token is left" in last["message"]
    assert last["error"]["type"] == "invalid_request_error"
    with pytest.raises(openai.APIError, match="No token is left"):
        list(ask(client, stream=True, text=broken["text"], extra_body={"bad_words": broken["bad_words"]}))
