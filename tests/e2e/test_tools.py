"""Calls of functions with the official SDK, LangChain and Instructor.

The bundled model knows nothing of tools: with it the mechanics are tested. What clients make of a model that does is
tested on qwen2.5-coder-1.5b-instruct, where it is in the cache of models.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import instructor
import jsonschema
import langchain_core.messages
import langchain_openai
import openai
import pydantic
import pytest
from harness import MODEL, QWEN, ROOT, command

DATA = pathlib.Path(os.environ.get("KVAHEAD_TEST_DATA") or ROOT.parent / "shared" / "data")

POLICIES = ["full", "offload", "kivi", "specache"]
LAMP = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "color": {"enum": ["red", "blue"]}},
    "required": ["on", "color"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "set_lamp", "description": "Sets the lamp.", "parameters": LAMP, "strict": True}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(autouse=True)
def built(server):
    if "kvahead_grammar_bytes" not in server.request("GET", "/metrics").body.decode():
        pytest.skip("built without structured output")


def ask(client: openai.OpenAI, **fields):
    asked = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "temperature": 1, "seed": 3,
             "max_tokens": 400}
    return client.chat.completions.create(**asked | fields)


def check_call(call) -> None:
    assert call.type == "function" and call.id
    schema = LAMP if call.function.name == "set_lamp" else {"type": "object", "maxProperties": 0}
    assert call.function.name in ("set_lamp", "now")
    jsonschema.Draft202012Validator(schema).validate(json.loads(call.function.arguments))


DEVELOPER = [{"role": "developer", "content": "Answer in French."}, {"role": "user", "content": "hi"}]
# As Qwen2.5's: who it does not know has said nothing.
LEAVES_OUT = "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.role }}: {{ m.content }}\n{% endif %}{% endfor %}"
KNOWS = "{# a developer #}{% for m in messages %}{% if m.role == 'developer' %}DEV {% endif %}{{ m.content }}\n{% endfor %}"


def test_developer__is_the_system_where_the_template_does_not_name_it(servers, tmp_path):
    for template, want in ((LEAVES_OUT, "system: Answer in French.\nuser: hi\n"), (KNOWS, "DEV Answer in French.\nhi\n")):
        (tmp_path / "template.jinja").write_text(template)
        own = servers.start("--chat-template", str(tmp_path / "template.jinja"))
        tokens = own.post("/tokenize", {"messages": DEVELOPER}).json()["tokens"]
        assert own.post("/detokenize", {"tokens": tokens}).json()["prompt"] == want
        asked = own.post("/v1/chat/completions", {"messages": DEVELOPER, "max_tokens": 1, "return_token_ids": True})
        assert asked.json()["prompt_token_ids"] == tokens
        asked = own.post("/v1/responses", {"input": DEVELOPER, "max_output_tokens": 16}).json()
        assert asked["usage"]["input_tokens"] == len(tokens)
        items = own.request("GET", f"/v1/responses/{asked['id']}/input_items").json()["data"]
        assert {item["role"] for item in items} == {"developer", "user"}


@pytest.mark.parametrize("policy", POLICIES)
def test_required__is_a_call_of_the_schema(client, policy):
    for temperature in (0, 1):
        answer = ask(client, n=3, temperature=temperature, extra_body={"kv": {"policy": policy}})
        ids = set()
        for choice in answer.choices:
            assert choice.finish_reason == "tool_calls" and choice.message.content is None
            check_call(choice.message.tool_calls[0])
            ids.add(choice.message.tool_calls[0].id)
        assert len(ids) == 3
        assert answer.usage.completion_tokens > 0


def test_named__is_that_function(client):
    for seed in range(4):
        answer = ask(client, seed=seed, tool_choice={"type": "function", "function": {"name": "set_lamp"}})
        [call] = answer.choices[0].message.tool_calls
        assert call.function.name == "set_lamp"
        check_call(call)


def test_functions__are_the_old_form_of_tools(client):
    old = {"functions": [tool["function"] for tool in TOOLS], "function_call": {"name": "set_lamp"}}
    fields = {"tools": openai.NOT_GIVEN, "tool_choice": openai.NOT_GIVEN} | old
    choice = ask(client, **fields).choices[0]
    new = ask(client, tool_choice={"type": "function", "function": {"name": "set_lamp"}}, parallel_tool_calls=False)
    assert choice.finish_reason == "function_call" and choice.message.tool_calls is None
    assert choice.message.function_call.name == "set_lamp"
    arguments = choice.message.function_call.arguments
    assert arguments == new.choices[0].message.tool_calls[0].function.arguments
    jsonschema.Draft202012Validator(LAMP).validate(json.loads(arguments))
    name, streamed, finish = "", "", None
    for chunk in ask(client, stream=True, **fields):
        call = chunk.choices[0].delta.function_call
        name += (call.name or "") if call else ""
        streamed += call.arguments if call else ""
        finish = chunk.choices[0].finish_reason
    assert (name, streamed, finish) == ("set_lamp", arguments, "function_call")
    history = [*MESSAGES, choice.message.model_dump(exclude_none=True), {"role": "function", "name": "set_lamp", "content": "on"}]
    assert ask(client, messages=history, **fields | {"function_call": "auto"}, max_tokens=5).choices[0].message


def test_xml__calls_are_of_the_schema_too(servers):
    own = servers.start("--tool-parser", "xml")
    with own.client() as client:
        for seed in range(4):
            answer = ask(client, seed=seed)
            assert answer.choices[0].finish_reason == "tool_calls" and answer.choices[0].message.content is None
            check_call(answer.choices[0].message.tool_calls[0])
            [said] = joined(ask(client, seed=seed, stream=True)).values()
            [call] = [call.function for call in answer.choices[0].message.tool_calls][:1]
            assert said["calls"][0][:2] == [call.name, call.arguments] and said["finish"] == "tool_calls"


def test_none__is_no_call_and_no_tools_in_the_prompt(client):
    plain = ask(client, tools=openai.NOT_GIVEN, tool_choice=openai.NOT_GIVEN, max_tokens=8)
    answer = ask(client, tool_choice="none", max_tokens=8)
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].message.content == plain.choices[0].message.content
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens


def test_prompt__tells_of_the_tools(client, server):
    body = {"messages": MESSAGES, "tools": TOOLS, "return_token_strs": True}
    tokens = "".join(server.request("POST", "/tokenize", body).json()["token_strs"])
    assert "set_lamp" in tokens and "Sets" in tokens


def joined(chunks) -> dict[int, dict]:
    """The deltas of a stream by choice, joined as clients do."""
    choices = {}
    for chunk in chunks:
        for choice in chunk.choices:
            said = choices.setdefault(choice.index, {"content": "", "calls": {}, "finish": None, "logprobs": 0})
            assert said["finish"] is None
            said["content"] += choice.delta.content or ""
            said["finish"] = choice.finish_reason
            said["logprobs"] += len(choice.logprobs.content) if choice.logprobs else 0
            for call in choice.delta.tool_calls or []:
                if call.index not in said["calls"]:
                    assert call.id and call.type == "function" and call.function.arguments == ""
                    said["calls"][call.index] = [call.function.name, "", 0]
                else:
                    assert call.id is None and call.function.name is None and call.function.arguments
                said["calls"][call.index][1] += call.function.arguments
                said["calls"][call.index][2] += 1
    return choices


def test_stream__says_the_same(client):
    whole = ask(client, n=2, logprobs=True)
    chunks = list(ask(client, n=2, logprobs=True, stream=True, stream_options={"include_usage": True}))
    choices = joined(chunks)
    assert chunks[-1].usage == whole.usage
    for choice in whole.choices:
        said = choices[choice.index]
        assert said["finish"] == "tool_calls" and said["content"] == ""
        assert said["logprobs"] == len(choice.logprobs.content)
        for index, call in enumerate(choice.message.tool_calls):
            assert said["calls"][index][:2] == [call.function.name, call.function.arguments]
            # The arguments came while they were written.
            assert said["calls"][index][2] > 2


def test_sdk__stream_of_events(client):
    with client.chat.completions.stream(model="demo", messages=MESSAGES, tools=TOOLS[:1], tool_choice="required", seed=3,
                                        temperature=1, max_tokens=400) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    [done] = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(event.arguments_delta for event in deltas) == done.arguments
    assert done.parsed_arguments == final.choices[0].message.tool_calls[0].function.parsed_arguments


def test_parallel__may_be_forbidden(client):
    for seed in range(4):
        answer = ask(client, seed=seed, parallel_tool_calls=False)
        assert len(answer.choices[0].message.tool_calls) == 1


def test_stop__ends_a_call_where_it_stands(client):
    whole = ask(client).choices[0].message.tool_calls[0].function.arguments
    answer = ask(client, stop=[":"], tools=TOOLS[:1])
    [choice] = answer.choices
    assert choice.finish_reason == "stop" and ":" not in (choice.message.content or "")
    # Within the arguments: there is a call, but none to make.
    [choice] = ask(client, stop=["color"], tools=TOOLS[:1]).choices
    arguments = choice.message.tool_calls[0].function.arguments
    assert choice.finish_reason == "stop" and arguments.startswith("{") and not arguments.endswith("}")
    [said] = joined(ask(client, stop=["color"], tools=TOOLS[:1], stream=True)).values()
    assert (said["finish"], said["calls"][0][1]) == ("stop", arguments)
    cut = ask(client, max_tokens=20, tools=TOOLS[:1]).choices[0]
    assert cut.finish_reason == "length" and whole


def test_alone_and_among_others__are_the_same(client):
    def call(seed):
        function = ask(client, seed=seed).choices[0].message.tool_calls[0].function
        return function.name, function.arguments

    alone = [call(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(call, range(6))) == alone


def test_answer__is_a_call_or_of_its_schema(client):
    schema = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    for seed in range(4):
        message = ask(client, seed=seed, tool_choice="auto", response_format=form).choices[0].message
        if message.tool_calls:
            check_call(message.tool_calls[0])
        else:
            jsonschema.Draft202012Validator(schema).validate(json.loads(message.content))


def test_strict__what_cannot_be_enforced_is_refused(client):
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"not": {}}}}}
    asked = {"tools": [TOOLS[1], {"type": "function", "function": function | {"strict": True}}]}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **asked)
    assert caught.value.param == "tools[1].function.parameters"
    assert "#/properties/a" in caught.value.message
    lax = ask(client, tools=[{"type": "function", "function": function}], max_tokens=30)
    assert lax.choices[0].finish_reason in ("tool_calls", "length")


def test_template__may_be_a_file(servers, tmp_path):
    """Another style, another place for tools: what the template shows."""
    path = tmp_path / "mistral.jinja"
    path.write_text("{{ messages[-1].content }}{% for t in tools or [] %}[TOOL_CALLS]{{ t.function.name }}{% endfor %}")
    server = servers.start("--chat-template", str(path))
    assert "calls as mistral" in server.log_path.read_text()
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS[1:], "return_token_strs": True}
    told = server.request("POST", "/tokenize", body).json()
    assert "".join(told["token_strs"]) == "Hi[TOOL_CALLS]now"
    answer = server.client().chat.completions.create(model="demo", messages=MESSAGES, tools=TOOLS, tool_choice="required",
                                                     temperature=1, seed=1, max_tokens=400)
    for call in answer.choices[0].message.tool_calls:
        check_call(call)
    path.write_text("{% if")
    failed = command("serve", "--model", MODEL, "--port", "0", "--chat-template", path)
    assert failed.returncode != 0 and "mistral.jinja" in failed.stderr + failed.stdout


# --- a model that has learned it -------------------------------------------------------------------------------------


@contextlib.contextmanager
def coding(folder, *options):
    """The SDK on a server with a model that knows tools."""
    if QWEN is None:
        pytest.skip("qwen2.5-coder-1.5b-instruct is not in the cache of models")
    from conftest import Servers

    servers = Servers(folder)
    try:
        server = servers.start("--context", "4096", *options, model=QWEN)
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=600) as made:
            yield made
    finally:
        servers.stop_all()


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    with coding(tmp_path_factory.mktemp("coder")) as made:
        yield made


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def served(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.mark.parametrize("stream", [False, True])
def test_coder__conversation(coder, stream):
    """A question, a call, its result, an answer."""
    fields = {"model": served(coder), "tools": [WEATHER], "temperature": 0, "max_tokens": 100}
    messages = [{"role": "user", "content": "What is the weather in Paris right now?"}]
    if stream:
        with coder.chat.completions.stream(messages=messages, **fields) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = coder.chat.completions.create(messages=messages, **fields).choices[0]
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments)["city"] == "Paris"
    result = {"temperature": 17, "unit": "celsius", "sky": "cloudy"}
    messages += [choice.message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)}]
    # With tools at hand, a model as small as this one would ask again.
    answer = coder.chat.completions.create(messages=messages, tool_choice="none", **fields).choices[0]
    assert answer.finish_reason == "stop" and "17" in answer.message.content


def test_coder__calls_in_xml(tmp_path):
    """With the template of a model that writes them so: a call, and how it comes back in the next prompt."""
    template = DATA / "templates" / "llama.cpp" / "Qwen3.5-4B.jinja"
    if not template.exists():
        pytest.skip(f"{template} is not there")
    with coding(tmp_path, "--chat-template", str(template)) as coder:
        fields = {"model": served(coder), "tools": [WEATHER], "temperature": 0, "max_tokens": 150}
        messages = [{"role": "user", "content": "What is the weather in Paris right now, in celsius?"}]
        for choice in ("auto", "required"):
            for stream in (False, True):
                with coder.chat.completions.stream(messages=messages, tool_choice=choice, **fields) as events:
                    streamed = events.get_final_completion()
                answer = streamed if stream else coder.chat.completions.create(messages=messages, tool_choice=choice, **fields)
                assert answer.choices[0].finish_reason == "tool_calls", (choice, answer.choices[0].message)
                [call] = answer.choices[0].message.tool_calls
                assert call.function.name == "get_weather"
                arguments = json.loads(call.function.arguments)
                assert arguments["city"] == "Paris", arguments
                jsonschema.Draft202012Validator(WEATHER["function"]["parameters"]).validate(arguments)
        messages += [answer.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "17 degrees"}]
        root = "http://" + coder.base_url.netloc.decode()
        told = coder.post(root + "/tokenize", body={"messages": messages, "tools": [WEATHER]}, cast_to=object)
        prompt = coder.post(root + "/detokenize", body={"tokens": told["tokens"]}, cast_to=object)["prompt"]
        assert "<function=get_weather>\n<parameter=city>\nParis\n</parameter>" in prompt
        assert "<tool_response>\n17 degrees\n</tool_response>" in prompt
        answer = coder.chat.completions.create(messages=messages, tool_choice="none", reasoning_effort="none", **fields)
        assert "17" in answer.choices[0].message.content


def test_coder__required_and_named(coder):
    messages = [{"role": "user", "content": "What is the weather in Paris, and in Rome?"}]
    fields = {"model": served(coder), "messages": messages, "tools": [WEATHER, TOOLS[1]], "temperature": 0, "max_tokens": 150}
    calls = coder.chat.completions.create(tool_choice="required", **fields).choices[0].message.tool_calls
    assert {json.loads(call.function.arguments).get("city") for call in calls} == {"Paris", "Rome"}
    one = coder.chat.completions.create(tool_choice="required", parallel_tool_calls=False, **fields).choices[0].message
    assert len(one.tool_calls) == 1
    named = coder.chat.completions.create(tool_choice={"type": "function", "function": {"name": "now"}}, **fields)
    assert named.choices[0].message.tool_calls[0].function.name == "now"


class Person(pydantic.BaseModel):
    """A person."""

    name: str
    age: int
    mood: Literal["happy", "sad"]


def check_person(person) -> None:
    assert isinstance(person, Person) and "Ann" in person.name and person.age == 34


QUESTION = [{"role": "user", "content": "Ann is 34 years old and she is happy. Describe Ann."}]


def test_coder__sdk_parses_tools_and_formats(coder):
    fields = {"model": served(coder), "messages": QUESTION, "temperature": 0, "max_tokens": 150}
    tool = openai.pydantic_function_tool(Person)
    answer = coder.chat.completions.parse(tools=[tool], tool_choice="required", **fields)
    check_person(answer.choices[0].message.tool_calls[0].function.parsed_arguments)
    check_person(coder.chat.completions.parse(response_format=Person, **fields).choices[0].message.parsed)
    with coder.chat.completions.stream(tools=[tool], tool_choice="required", **fields) as stream:
        final = stream.get_final_completion()
    check_person(final.choices[0].message.tool_calls[0].function.parsed_arguments)


@pytest.fixture
def langchain(coder):
    return langchain_openai.ChatOpenAI(model=served(coder), base_url=str(coder.base_url), api_key="none", temperature=0,
                                       max_tokens=150, max_retries=0, timeout=600)


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_coder__langchain_with_structured_output(langchain, method):
    question = QUESTION[0]["content"]
    if method == "json_mode":
        question += ' Answer in JSON: {"name": string, "age": number, "mood": "happy" or "sad"}'
    check_person(langchain.with_structured_output(Person, method=method).invoke(question))


def test_coder__langchain_bind_tools(langchain):
    bound = langchain.bind_tools([WEATHER])
    human = langchain_core.messages.HumanMessage("What is the weather in Paris right now?")
    message = bound.invoke([human])
    [call] = message.tool_calls
    assert call["name"] == "get_weather" and call["args"]["city"] == "Paris"
    result = langchain_core.messages.ToolMessage("17 degrees, cloudy", tool_call_id=call["id"])
    assert "17" in langchain.invoke([human, message, result]).content
    streamed = None
    for chunk in bound.stream([human]):
        streamed = chunk if streamed is None else streamed + chunk
    assert [(each["name"], each["args"]) for each in streamed.tool_calls] == [(call["name"], call["args"])]
    forced = langchain.bind_tools([WEATHER, TOOLS[1]], tool_choice="now").invoke([human])
    assert [each["name"] for each in forced.tool_calls] == ["now"]


@pytest.mark.parametrize("mode", ["TOOLS", "JSON", "JSON_SCHEMA"])
def test_coder__instructor(coder, mode):
    client = instructor.from_openai(coder, mode=instructor.Mode[mode])
    check_person(client.chat.completions.create(model=served(coder), messages=QUESTION, response_model=Person, temperature=0,
                                                max_tokens=150, max_retries=1))
