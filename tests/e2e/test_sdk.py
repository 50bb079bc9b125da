"""The official SDK against the binary: everything that the API promises, as users write it."""

from __future__ import annotations

import asyncio
import math

import openai
import pytest
from harness import CONTEXT, Server

PROMPT = "Once upon a time there was"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"model": "demo", "temperature": 0}


def complete(client: openai.OpenAI, prompt=PROMPT, extra: dict | None = None, **fields):
    """A greedy completion that does not end early, with token ids."""
    extra_body = {"ignore_eos": True, "return_token_ids": True} | (extra or {})
    return client.completions.create(prompt=prompt, extra_body=extra_body, **(GREEDY | fields))


def chat(client: openai.OpenAI, extra: dict | None = None, **fields):
    extra_body = {"ignore_eos": True, "return_token_ids": True} | (extra or {})
    asked = GREEDY | {"messages": MESSAGES} | fields
    return client.chat.completions.create(extra_body=extra_body, **asked)


# --- models


def test_models__list_and_retrieve(client):
    models = client.models.list().data
    assert [model.id for model in models] == ["demo"]
    model = client.models.retrieve("demo")
    assert model.object == "model" and model.owned_by == "kvahead" and model.created > 0
    assert model.max_model_len == CONTEXT
    assert {"full", "offload"} <= set(model.kv_policies)


def test_models__unknown_one_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("gpt-9")
    assert caught.value.code == "model_not_found" and caught.value.type == "invalid_request_error"
    assert caught.value.param == "model" and "gpt-9" in caught.value.message


# --- prompts


def test_completions__string_and_token_ids_are_the_same_prompt(client, server):
    ids = server.request("POST", "/tokenize", {"prompt": PROMPT}).json()["tokens"]
    by_text = complete(client, max_tokens=12)
    by_ids = complete(client, ids, max_tokens=12)
    assert by_text.object == "text_completion" and by_text.model == "demo"
    assert by_text.choices[0].prompt_token_ids == ids == by_ids.choices[0].prompt_token_ids
    assert by_text.choices[0].text == by_ids.choices[0].text
    assert by_text.choices[0].token_ids == by_ids.choices[0].token_ids
    usage = by_text.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), 12)
    assert usage.total_tokens == len(ids) + 12


def test_completions__batches_keep_their_order(client, server):
    texts = [PROMPT, "The cat", "One day Tom", "A red ball", "The sun"]
    alone = [complete(client, text, max_tokens=10).choices[0] for text in texts]
    ids = [choice.prompt_token_ids for choice in alone]
    for batch in (texts, ids):
        together = complete(client, batch, max_tokens=10)
        assert [choice.index for choice in together.choices] == list(range(len(texts)))
        assert [c.token_ids for c in together.choices] == [c.token_ids for c in alone]
        assert together.usage.prompt_tokens == sum(map(len, ids))
        assert together.usage.completion_tokens == 10 * len(texts)


def test_completions__sixteen_tokens_by_default(client):
    assert complete(client).usage.completion_tokens == 16


def test_completions__choices_of_a_batch_are_numbered_prompt_by_prompt(client):
    reply = complete(client, ["The cat", "The dog"], n=3, temperature=1, seed=5, max_tokens=6)
    assert [choice.index for choice in reply.choices] == list(range(6))
    for prompt, text in enumerate(["The cat", "The dog"]):
        alone = complete(client, text, n=3, temperature=1, seed=5, max_tokens=6)
        ours = reply.choices[3 * prompt : 3 * prompt + 3]
        assert [c.token_ids for c in ours] == [c.token_ids for c in alone.choices]
        assert len({tuple(c.token_ids) for c in ours}) > 1, "n draws are independent"


def test_chat__answers_and_counts(client):
    reply = chat(client, max_completion_tokens=9)
    assert reply.object == "chat.completion" and reply.id.startswith("chatcmpl-")
    choice = reply.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length" and len(choice.token_ids) == 9
    assert reply.usage.completion_tokens == 9
    assert chat(client, max_tokens=9).choices[0].message == choice.message


def test_chat__is_the_template_rendered_and_tokenised(client, server):
    reply = chat(client, max_tokens=1)
    tokens = server.post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
    assert reply.prompt_token_ids == tokens
    assert complete(client, tokens, max_tokens=1).choices[0].token_ids == (
        reply.choices[0].token_ids
    )


def test_tokenize__takes_what_a_chat_takes(server):
    for field, value, name in [("reasoning_effort", "much", "reasoning_effort"), ("documents", 7, "documents"),
                               ("messages", [{"role": "king", "content": "x"}], "messages[0].role")]:
        for path in ("/tokenize", "/v1/chat/completions"):
            reply = server.request("POST", path, {"messages": MESSAGES} | {field: value})
            assert (reply.status, reply.json()["error"]["param"]) == (400, name), path


def test_chat__parts_of_text_are_the_text(client):
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me a story."}]}]
    assert chat(client, messages=parts, max_tokens=8).choices == chat(client, max_tokens=8).choices


def test_tokenize__round_trip(server):
    text = "Emoji \U0001f600, Hangul 한글, combining e\u0301, and\ttabs\n"
    ids = server.encode(text)
    assert server.post("/detokenize", {"tokens": ids}).json() == {"prompt": text}


# --- streaming


@pytest.mark.parametrize("usage", [False, True])
def test_streaming_completion__is_the_document_in_pieces(client, usage):
    whole = complete(client, max_tokens=20)
    options = {"stream_options": {"include_usage": True}} if usage else {}
    text, ids, finish, last = "", [], [], None
    for chunk in complete(client, max_tokens=20, stream=True, **options):
        assert last is None, "nothing follows the usage"
        if not chunk.choices:
            last = chunk.usage
            continue
        assert chunk.object == "text_completion" and chunk.usage is None
        text += chunk.choices[0].text
        ids += getattr(chunk.choices[0], "token_ids", None) or []
        finish += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert text == whole.choices[0].text and ids == whole.choices[0].token_ids
    assert finish == [whole.choices[0].finish_reason]
    assert (last is not None) == usage
    if usage:
        assert last.completion_tokens == 20 and last.prompt_tokens == whole.usage.prompt_tokens


def test_streaming_chat__role_first_then_content_then_reason(client):
    whole = chat(client, max_tokens=20)
    chunks = list(chat(client, max_tokens=20, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == (
        whole.choices[0].message.content
    )
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_streaming__choices_interleave_and_each_is_whole(client):
    fields = {"n": 4, "temperature": 1, "seed": 11, "max_tokens": 12}
    whole = complete(client, ["The cat", "The dog"], **fields)
    texts = dict.fromkeys(range(8), "")
    for chunk in complete(client, ["The cat", "The dog"], stream=True, **fields):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {choice.index: choice.text for choice in whole.choices}


def test_streaming_chat__with_the_sdk_helper(client):
    # The helper wants an answer that ends by itself: the end token comes as soon as it may.
    asked = GREEDY | {"messages": MESSAGES, "logit_bias": {"3557": 100}}
    asked["extra_body"] = {"min_tokens": 8}
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    plain = client.chat.completions.create(**asked)
    assert final.choices[0].message.content == plain.choices[0].message.content
    assert plain.choices[0].finish_reason == "stop" and plain.usage.completion_tokens == 9


# --- choices, seeds, lengths


def test_seed__makes_draws_repeatable(client):
    fields = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 24}
    first = complete(client, seed=42, **fields).choices[0].token_ids
    assert complete(client, seed=42, **fields).choices[0].token_ids == first
    others = {tuple(complete(client, seed=s, **fields).choices[0].token_ids) for s in range(5)}
    assert len(others) > 1
    for none in ({}, {"seed": -1}):
        unseeded = {tuple(complete(client, **none, **fields).choices[0].token_ids)
                    for _ in range(4)}
        assert len(unseeded) > 1, "without a seed every request draws anew"


def test_best_of__returns_the_most_probable(client):
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 10, "logprobs": 0}
    drawn = complete(client, n=6, **fields).choices
    best = complete(client, n=2, best_of=6, **fields)

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    expected = sorted(drawn, key=mean, reverse=True)[:2]
    assert [c.token_ids for c in best.choices] == [c.token_ids for c in expected]
    assert [c.index for c in best.choices] == [0, 1]
    assert best.usage.completion_tokens == 60, "all that was generated is counted"


def test_max_tokens__zero_scores_the_prompt(client):
    reply = complete(client, max_tokens=0, echo=True, logprobs=1)
    choice = reply.choices[0]
    assert choice.text == PROMPT and reply.usage.completion_tokens == 0
    assert len(choice.logprobs.tokens) == len(choice.prompt_token_ids)
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value <= 0 for value in choice.logprobs.token_logprobs[1:])


def test_echo__prompt_first(client):
    plain = complete(client, max_tokens=8)
    echoed = complete(client, max_tokens=8, echo=True)
    assert echoed.choices[0].text == PROMPT + plain.choices[0].text
    streamed = complete(client, max_tokens=8, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == echoed.choices[0].text


def test_ignore_eos_and_min_tokens(client, server):
    eos = client.completions.create(
        prompt="The end.<|im_end|>", max_tokens=40, logit_bias={"3557": 100}, **GREEDY
    )
    assert eos.choices[0].finish_reason == "stop" and eos.usage.completion_tokens == 1
    assert eos.choices[0].text == "", "an end token is not text"
    held = client.completions.create(
        prompt="The end.",
        max_tokens=40,
        logit_bias={"3557": 100},
        extra_body={"min_tokens": 7, "return_token_ids": True},
        **GREEDY,
    )
    assert held.usage.completion_tokens == 8 and held.choices[0].token_ids[7] == 3557
    assert 3557 not in held.choices[0].token_ids[:7]
    ignored = complete(client, max_tokens=12, logit_bias={"3557": 100})
    assert ignored.usage.completion_tokens == 12 and ignored.choices[0].finish_reason == "length"


# --- stopping


def test_stop__cuts_before_the_string_streamed_or_not(client):
    whole = complete(client, max_tokens=40).choices[0].text
    stop = whole[25:31]
    at = whole.index(stop)
    reply = complete(client, max_tokens=40, stop=[stop, "never in any text"])
    assert reply.choices[0].text == whole[:at]
    assert reply.choices[0].finish_reason == "stop" and reply.choices[0].stop_reason == stop
    streamed = complete(client, max_tokens=40, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole[:at]
    included = complete(client, max_tokens=40, stop=stop, extra={"include_stop_str_in_output": True})
    assert included.choices[0].text == whole[: at + len(stop)]


@pytest.mark.parametrize("begin", range(4, 40, 5))
@pytest.mark.parametrize("length", [1, 2, 9])
def test_stop__at_any_place_nothing_leaks_and_nothing_is_lost(client, begin, length):
    whole = complete(client, max_tokens=24).choices[0].text
    stop = whole[begin : begin + length]
    expected = whole[: whole.index(stop)]
    overlapping = [stop, stop + "?", whole[begin - 1 : begin] + stop + "!"]
    for stops in (stop, overlapping):
        chunks = complete(client, max_tokens=24, stop=stops, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected


def test_stop__half_a_stop_string_at_the_end_is_text(client):
    whole = complete(client, max_tokens=16).choices[0].text
    stops = [whole[-5:] + "\x01"]
    reply = complete(client, max_tokens=16, stop=stops)
    assert reply.choices[0].text == whole and reply.choices[0].finish_reason == "length"
    streamed = complete(client, max_tokens=16, stop=stops, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == whole


def test_stop_token_ids(client):
    ids = complete(client, max_tokens=20).choices[0].token_ids
    stop = ids[11]
    reply = complete(client, max_tokens=20, extra={"stop_token_ids": [stop]})
    choice = reply.choices[0]
    assert choice.token_ids == ids[: ids.index(stop) + 1]
    assert choice.finish_reason == "stop" and choice.stop_reason == stop


# --- log-probabilities


def test_logprobs__completions(client):
    reply = complete(client, max_tokens=10, logprobs=3)
    choice = reply.choices[0]
    listed = choice.logprobs
    assert "".join(listed.tokens) == choice.text
    assert listed.text_offset == [len("".join(listed.tokens[:i])) for i in range(10)]
    for token, value, top in zip(
        listed.tokens, listed.token_logprobs, listed.top_logprobs, strict=True
    ):
        assert 3 <= len(top) <= 4 and top[token] == value == max(top.values())
        assert sum(math.exp(v) for v in top.values()) <= 1.0001
    assert complete(client, max_tokens=10, logprobs=0).choices[0].logprobs.token_logprobs == (
        listed.token_logprobs
    )
    assert complete(client, max_tokens=1).choices[0].logprobs is None


def test_logprobs__chat(client):
    reply = chat(client, max_tokens=10, logprobs=True, top_logprobs=4)
    content = reply.choices[0].logprobs.content
    assert len(content) == 10
    said = b"".join(bytes(entry.bytes) for entry in content).decode()
    assert said == reply.choices[0].message.content
    for entry in content:
        assert len(entry.top_logprobs) == 4
        assert entry.top_logprobs[0].token == entry.token
        values = [top.logprob for top in entry.top_logprobs]
        assert values == sorted(values, reverse=True) and values[0] == entry.logprob
    streamed = chat(client, max_tokens=10, logprobs=True, top_logprobs=4, stream=True)
    pieces = [c.choices[0].logprobs for c in streamed if c.choices and c.choices[0].logprobs]
    assert [entry for piece in pieces for entry in piece.content] == content


def test_prompt_logprobs__agree_with_echo(client):
    reply = complete(client, max_tokens=1, extra={"prompt_logprobs": 2})
    ids = reply.choices[0].prompt_token_ids
    entries = reply.choices[0].prompt_logprobs
    assert entries[0] is None and len(entries) == len(ids)
    echoed = complete(client, max_tokens=1, echo=True, logprobs=2).choices[0].logprobs
    for position in range(1, len(ids)):
        entry = entries[position]
        assert 2 <= len(entry) <= 3
        actual = entry[str(ids[position])]
        assert actual["logprob"] == echoed.token_logprobs[position]
        assert actual["rank"] >= 1 and actual["decoded_token"] == echoed.tokens[position]
        assert 1 in {other["rank"] for other in entry.values()}


# --- restricting the choice of tokens


def test_logit_bias__allowed_and_bad(client, server):
    plain = complete(client, max_tokens=6).choices[0].token_ids
    banned = complete(client, max_tokens=6, logit_bias={str(plain[0]): -100}).choices[0].token_ids
    assert plain[0] != banned[0]
    forced = complete(client, max_tokens=6, logit_bias={"100": 100}).choices[0].token_ids
    assert forced == [100] * 6
    allowed = [300, 301, 302]
    ids = complete(client, max_tokens=6, extra={"allowed_token_ids": allowed}).choices[0].token_ids
    assert set(ids) <= set(allowed)
    text = complete(client, max_tokens=30).choices[0].text
    word = max(text.replace(".", " ").replace(",", " ").split(), key=len)
    without = complete(client, max_tokens=30, extra={"bad_words": [word]}).choices[0]
    assert f" {word}" not in without.text and without.text != text


def test_samplers__that_leave_one_token_are_greedy(client):
    greedy = complete(client, max_tokens=16).choices[0].token_ids
    for extra in ({"top_k": 1}, {"min_p": 1.0}):
        ids = complete(client, max_tokens=16, temperature=2, extra=extra).choices[0].token_ids
        assert ids == greedy, extra
    assert complete(client, max_tokens=16, temperature=2, top_p=0).choices[0].token_ids == greedy


def test_penalties__change_what_repeats(client):
    def distinct(**fields):
        reply = complete(client, max_tokens=64, **fields)
        return len(set(reply.choices[0].token_ids))

    plain = distinct()
    assert distinct(extra={"repetition_penalty": 5.0}) > plain
    assert distinct(presence_penalty=2.0) > plain
    assert distinct(frequency_penalty=2.0) > plain


# --- the rest of what is ours or vLLM's


def test_truncate_prompt_tokens__keeps_the_end_and_says_so(client):
    ids = [(i * 37) % 3500 for i in range(300)]
    whole = complete(client, ids[-100:], max_tokens=8)
    cut = complete(client, ids, max_tokens=8, extra={"truncate_prompt_tokens": 100})
    assert cut.choices[0].token_ids == whole.choices[0].token_ids
    assert cut.usage.prompt_tokens == 100
    assert cut.usage.kvahead["truncated_prompt_tokens"] == [200]


def test_cache_salt_and_prefix_cache__never_change_the_answer(client):
    ids = [(i * 41) % 3500 for i in range(400)]
    first = complete(client, ids, max_tokens=8, extra={"cache_salt": "a"})
    again = complete(client, ids, max_tokens=8, extra={"cache_salt": "a"})
    other = complete(client, ids, max_tokens=8, extra={"cache_salt": "b"})
    cached = [r.usage.prompt_tokens_details.cached_tokens for r in (first, again, other)]
    assert cached == [0, 384, 0]
    assert first.choices[0].token_ids == again.choices[0].token_ids == other.choices[0].token_ids


def test_kv__policy_and_report(client):
    ids = [(i * 43) % 3500 for i in range(200)]
    replies = {}
    for policy in ("full", "offload"):
        extra = {"kv": {"policy": policy, "report": True}}
        replies[policy] = complete(client, ids, max_tokens=8, extra=extra)
        report = replies[policy].usage.kvahead
        assert report["policy"] == policy and report["host_bytes"] > 0
    assert replies["full"].choices == replies["offload"].choices
    assert replies["offload"].usage.kvahead["fetched_bytes"] > 0
    assert "kvahead" not in complete(client, max_tokens=1).usage.model_extra


def test_priority_user_and_unknown_fields_are_accepted(client, server):
    name = "kvahead_unknown_fields_total"
    before = server.metrics()[name]
    plain = complete(client, max_tokens=4)
    reply = complete(client, max_tokens=4, user="me", extra={"priority": -5, "nobody_knows": 1})
    assert reply.choices == plain.choices
    assert server.metrics()[name] == before + 1


# --- refusals

REFUSALS = [
    ({"extra_body": {"temperature": -0.1}}, "temperature"),
    ({"extra_body": {"temperature": 2.5}}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 21}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"stop": [str(i) for i in range(17)]}, "stop"),
    ({"logit_bias": {"99999": 1}}, "logit_bias"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"suffix": "x"}, "suffix"),
    ({"extra_body": {"seed": "one"}}, "seed"),
    ({"extra_body": {"top_k": -2}}, "top_k"),
    ({"extra_body": {"min_p": 2}}, "min_p"),
    ({"extra_body": {"min_tokens": 99}}, "min_tokens"),
    ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
    ({"extra_body": {"allowed_token_ids": [4096]}}, "allowed_token_ids"),
    ({"extra_body": {"prompt_logprobs": 21}}, "prompt_logprobs"),
    ({"extra_body": {"truncate_prompt_tokens": 0}}, "truncate_prompt_tokens"),
    ({"extra_body": {"kv": {"policy": "magic"}}}, "kv.policy"),
    ({"extra_body": {"kv": {"policy": "kivi", "bits": 3}}}, "kv.bits"),
    ({"extra_body": {"response_format": {"type": "xml"}}}, "response_format"),
    ({"extra_body": {"guided_json": {"not": {}}}}, "guided_json"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [4096]}, "prompt"),
    ({"prompt": [[1], [2, -1]]}, "prompt[1]"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSALS, ids=lambda value: str(value)[:40])
def test_completions__refusals_name_the_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": "demo", "prompt": "x"} | fields)
    assert caught.value.param == param, caught.value.message
    assert caught.value.type == "invalid_request_error"
    assert param in caught.value.message


CHAT_REFUSALS = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call.name"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://a/b.png"}}],
                }
            ]
        },
        "messages[0].content[0]",
    ),
    ({"modalities": ["audio"]}, "modalities"),
]


@pytest.mark.parametrize(("fields", "param"), CHAT_REFUSALS, ids=lambda value: str(value)[:40])
def test_chat__refusals_name_the_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": "demo", "messages": MESSAGES} | fields)
    assert caught.value.param == param, caught.value.message
    assert caught.value.message


def test_context__refusals_have_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt=[1] * 9001)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "prompt"
    assert "9001" in caught.value.message and str(CONTEXT) in caught.value.message
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="demo", prompt=[1] * 100, max_tokens=CONTEXT)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "max_tokens"
    assert "100" in caught.value.message and str(CONTEXT) in caught.value.message
    long = [{"role": "user", "content": "word " * 9000}]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=long)
    assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"


def test_model__unknown_one_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model" and "gpt-9" in caught.value.message


def test_routes__that_are_not_here_say_so(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.moderations.create(model="demo", input="x")
    assert caught.value.code == "not_found"
    assert "/v1/moderations" in caught.value.message


# --- many at once


def test_async__sixty_four_streams(server: Server):
    """All at the same time, each one whole and equal to what it is alone."""
    prompts = [f"Once upon a time, number {i}," for i in range(64)]

    async def ask(client: openai.AsyncOpenAI, prompt: str) -> tuple[list[int], str]:
        stream = await client.completions.create(
            prompt=prompt,
            max_tokens=24,
            stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
            **GREEDY,
        )
        ids, text = [], ""
        async for chunk in stream:
            text += chunk.choices[0].text
            ids += getattr(chunk.choices[0], "token_ids", None) or []
        return ids, text

    async def ask_all() -> list[tuple[list[int], str]]:
        async with openai.AsyncOpenAI(**server.client_options()) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in prompts))

    together = asyncio.run(ask_all())
    for prompt, (ids, text) in list(zip(prompts, together, strict=True))[::9]:
        alone = server.complete(prompt, max_tokens=24, ignore_eos=True)["choices"][0]
        assert (alone["token_ids"], alone["text"]) == (ids, text)
    assert all(len(ids) == 24 for ids, _ in together)
    server.wait_idle()
