"""Structured output with the official SDK: what ends is what was asked for, whatever asked for it.

Environment: KVAHEAD_TEST_SCHEMAS, how many random schemas (default: 60); KVAHEAD_TEST_SCHEMAS_FROM, the first seed.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import openai
import pydantic
import pytest
import schemas

COUNT = int(os.environ.get("KVAHEAD_TEST_SCHEMAS") or 60)
FIRST = int(os.environ.get("KVAHEAD_TEST_SCHEMAS_FROM") or 0)
POLICIES = ["full", "offload", "kivi", "specache"]
MESSAGES = [{"role": "user", "content": "Describe a person."}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def built(server):
    if "kvahead_grammar_bytes" not in server.request("GET", "/metrics").body.decode():
        pytest.skip("built without structured output")


def judge(schema: dict, text: str) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def complete(client: openai.OpenAI, extra: dict, **fields):
    asked = {"model": "demo", "prompt": "Once", "max_tokens": 1500, "seed": 1} | fields
    return client.completions.create(extra_body=extra, **asked)


def one_of_random(client: openai.OpenAI, seed: int) -> bool:
    """Whether it came to its end; what does is judged."""
    schema = schemas.make(seed)
    answer = complete(client, {"guided_json": schema, "kv": {"policy": POLICIES[seed % 4]}}, seed=seed,
                      temperature=seed % 3 / 2)
    choice = answer.choices[0]
    if choice.finish_reason == "stop":
        judge(schema, choice.text)
    return choice.finish_reason == "stop"


def test_schemas__random_ones_are_obeyed(client):
    patient = client.with_options(timeout=900)
    with ThreadPoolExecutor(16) as pool:
        ended = list(pool.map(lambda seed: one_of_random(patient, seed), range(FIRST, FIRST + COUNT)))
    # Some go on for ever: the model knows nothing of JSON.
    assert sum(ended) > COUNT * 0.6


@pytest.mark.parametrize("policy", POLICIES)
def test_policies__all_obey(client, policy):
    for temperature in (0, 1):
        answer = complete(client, {"guided_json": PERSON, "kv": {"policy": policy}}, temperature=temperature, n=3)
        for choice in answer.choices:
            assert choice.finish_reason == "stop"
            judge(PERSON, choice.text)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)
    age: int = pydantic.Field(ge=0, le=150)
    email: str | None


def test_sdk__parse(client):
    answer = client.chat.completions.parse(model="demo", messages=MESSAGES, response_format=Person, max_tokens=1000, seed=4,
                                           temperature=1)
    person = answer.choices[0].message.parsed
    assert isinstance(person, Person) and person.age <= 150


def test_sdk__stream_of_a_schema(client):
    with client.chat.completions.stream(model="demo", messages=MESSAGES, response_format=Person, max_tokens=1000, seed=4,
                                        temperature=1) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Person)
    assert "".join(deltas) == final.choices[0].message.content and len(deltas) > 5


def test_response_format__json_object(client):
    answer = client.chat.completions.create(model="demo", messages=MESSAGES, response_format={"type": "json_object"}, seed=2,
                                            max_tokens=2000, temperature=1)
    choice = answer.choices[0]
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)
    assert choice.message.content.startswith("{")


@pytest.mark.parametrize("stream", [False, True])
def test_contradictions__are_refused_once(client, server, stream):
    """What forbids what the grammar wants: no retry of the SDK mends that."""
    tokens = server.encode("x")
    json_object = {"response_format": {"type": "json_object"}, "bad_words": ["{"]}
    choice = {"guided_choice": ["ab"], "allowed_token_ids": tokens}
    refused = 'kvahead_http_requests_total{route="/v1/completions",code="400"}'
    for extra in (json_object, choice):
        before = server.metrics().get(refused, 0)
        with pytest.raises(openai.BadRequestError, match="No token is left that this request allows by '[gr]"):
            complete(client.with_options(max_retries=2), extra, stream=stream)
        assert server.metrics()[refused] == before + 1


def test_contradictions__within_a_stream_are_an_error_frame(client):
    extra = {"guided_regex": "a{3}b", "bad_words": ["b", "ab", "aab", "aaab"]}
    with pytest.raises(openai.APIError, match="No token is left") as caught:
        list(complete(client, extra, stream=True))
    assert caught.value.type == "invalid_request_error"


def test_reasoning__none_in_a_prompt_that_ends_in_a_thought(servers, tmp_path):
    (tmp_path / "thinks.jinja").write_text("{{ messages[-1].content }}<think>\n{# </think> #}")
    own = servers.start("--chat-template", str(tmp_path / "thinks.jinja"))
    body = {"messages": MESSAGES, "seed": 2, "max_tokens": 50}
    for extra, pattern in (({"regex": "[a-c]{3}"}, "[a-c]{3}"), ({"response_format": {"type": "json_object"}}, r"\{.*")):
        answer = own.post("/v1/chat/completions", body | extra).json()
        message = answer["choices"][0]["message"]
        assert re.fullmatch(pattern, message["content"], re.DOTALL) and not message.get("reasoning_content")
        assert answer["usage"].get("completion_tokens_details", {}).get("reasoning_tokens", 0) == 0
    free = own.post("/v1/chat/completions", body | {"ignore_eos": True}).json()["choices"][0]["message"]
    assert free["reasoning_content"] and not free["content"]


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"guided_regex": "(yes|no)!"}, "(yes|no)!"),
        ({"guided_choice": ["red", "green \"1\""]}, "red|green \"1\""),
        ({"ebnf": 'root ::= "a" next\nnext ::= "1" | "2"'}, "a[12]"),
        ({"guided_grammar": 'root ::= [0-9] | "x"'}, "[0-9]|x"),
        ({"structured_outputs": {"regex": "z{4}"}}, "z{4}"),
        ({"structured_outputs": {"choice": ["p", "q"], "json": None}}, "p|q"),
        ({"structured_outputs": {"json": {"const": 7}}}, r"\s*7\s*"),
        ({"json_schema": '{"const": 8}'}, r"\s*8\s*"),
    ],
)
def test_ways__each_is_obeyed(client, extra, pattern):
    for temperature in (0, 1):
        choice = complete(client, extra, temperature=temperature).choices[0]
        assert choice.finish_reason == "stop" and re.fullmatch(pattern, choice.text), choice


def test_end__max_tokens_min_tokens_and_ignore_eos(client):
    cut = complete(client, {"regex": "[a-z]{200}"}, max_tokens=3).choices[0]
    assert cut.finish_reason == "length"
    # There is nothing to come after the end, so it is the end.
    for more in ({"ignore_eos": True}, {"min_tokens": 50}, {"min_tokens": 50, "ignore_eos": True}):
        for skips in (True, False):  # the end is no part of the text, shown or not
            ended = complete(client, {"regex": "ab", "skip_special_tokens": skips} | more).choices[0]
            assert (ended.finish_reason, ended.text) == ("stop", "ab")


def test_alone_and_among_others__are_the_same(client):
    def ask(seed):
        return complete(client, {"guided_json": PERSON}, seed=seed, temperature=1).choices[0].text

    alone = [ask(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, range(6))) == alone


def test_preempted__are_the_same(client, servers):
    """Sixteen choices where three have memory: they take turns, and lose nothing."""
    small = servers.start("--sequences", "16", "--device-memory", "2M", "--prefix-cache=false")
    extra = {"regex": "([a-d]{3}-){20}[0-9]{8}!"}
    fields = {"prompt": "Once upon a time " * 20, "max_tokens": 400, "temperature": 1, "n": 16}
    with openai.OpenAI(base_url=small.url + "/v1", api_key="none", max_retries=0) as other:
        got = [choice.text for choice in complete(other, extra, **fields).choices]
    assert got == [choice.text for choice in complete(client, extra, **fields).choices]
    assert all(re.fullmatch(extra["regex"], text) for text in got)


def test_logprobs__are_the_models_own(client):
    free = complete(client, {"ignore_eos": True}, max_tokens=1, logprobs=5, temperature=0).choices[0].logprobs
    bound = complete(client, {"regex": "zq"}, max_tokens=1, logprobs=5, temperature=0).choices[0].logprobs
    best = {token: value for token, value in free.top_logprobs[0].items()}
    assert {token: value for token, value in bound.top_logprobs[0].items() if token in best} == best
    assert bound.token_logprobs[0] < min(best.values())


@pytest.mark.parametrize(
    ("extra", "param", "words"),
    [
        ({"guided_json": {"properties": {"a": {"items": {"not": {}}, "type": "array"}}}}, "guided_json", "#/properties/a/items"),
        ({"guided_json": "{"}, "guided_json", "JSON"),
        ({"guided_json": 7}, "guided_json", "object or a string"),
        ({"regex": "("}, "regex", "refused"),
        ({"ebnf": "root ::= nothing"}, "ebnf", "refused"),
        ({"guided_choice": []}, "guided_choice", "1 to"),
        ({"guided_choice": ["a"], "regex": "b"}, None, "both say"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structural_tag"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"regex": "a" * 300_000}, "regex", "limit is 262144"),
    ],
)
def test_refusals__name_the_field_and_the_place(client, extra, param, words):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, extra)
    assert words in caught.value.message and (param is None or caught.value.param == param)


def test_limits__of_making_a_grammar(servers):
    small = servers.start("--grammar-time", "10ms", "--grammar-memory", "1M")
    heavy = {"type": "object", "properties": {f"p{i}": {"type": "string", "format": "uri"} for i in range(40)}}
    body = {"prompt": "Once", "max_tokens": 5, "guided_json": heavy}
    answer = small.request("POST", "/v1/completions", body)
    assert answer.status == 400 and "than the limit of" in answer.json()["error"]["message"]
    assert small.request("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 5}).status == 200


def test_making__keeps_nobody_waiting(servers):
    """While as many grammars are made as there are threads for it, others are served, with a kept grammar too."""
    own = servers.start("--grammar-time", "3s")
    plain = {"prompt": "Once", "max_tokens": 5}
    kept = plain | {"regex": "kept[a-z]+"}
    assert own.request("POST", "/v1/completions", kept).status == 200

    def heavy(name):
        properties = {f"{name}{i}": {"type": "string", "format": "uri"} for i in range(1200)}
        return own.request("POST", "/v1/completions", plain | {"guided_json": {"type": "object", "properties": properties}})

    served = 0
    with ThreadPoolExecutor(2) as pool:
        making = [pool.submit(heavy, name) for name in "ab"]
        while 'grammar="new"} 3' not in own.request("GET", "/metrics").body.decode():
            assert not any(future.done() for future in making)
        while not any(future.done() for future in making):
            assert [own.request("POST", "/v1/completions", body).status for body in (plain, kept)] == [200, 200]
            served += 1
        assert all(future.result().status in (200, 400) for future in making)
    assert served > 0


def test_cache__a_schema_is_made_once(client, server):
    def count(which):
        text = server.request("GET", "/metrics").body.decode()
        return float(re.search(r'kvahead_grammar_requests_total{[^}]*grammar="%s"} (\S+)' % which, text)[1])

    new, kept = count("new"), count("kept")
    for _ in range(3):
        complete(client, {"regex": "only of this test"})
    assert (count("new"), count("kept")) == (new + 1, kept + 2)

