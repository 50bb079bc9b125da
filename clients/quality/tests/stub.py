"""A small OpenAI-compatible server in a thread: it really reads the prompt and answers from it.

It can forget, depending on the policy (for pictures that look like results), fail on purpose, and
leave out what other servers do not have (/tokenize, usage.kvahead).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = re.compile(r"[A-Za-z]{1,6}|[0-9]{1,3}|[^\sA-Za-z0-9]")
# (bits of the device copy, share of answers forgotten at 8k tokens) by policy.
POLICIES = {
    "full": (16, 0.0),
    "offload": (0.5, 0.0),
    "kivi": (1.3, 0.7),
    "specache": (1.6, 0.25),
}
KV_BYTES_PER_TOKEN = 16384


def count_tokens(text: str) -> int:
    return 1 + len(TOKEN.findall(text))


def answer_to(prompt: str) -> list[str]:
    """Find the true answers in a RULER prompt, from the text alone."""
    if values := re.findall(r"assigned the value (\d+) in the text above\.", prompt):
        section = prompt[prompt.rfind("Memorize and track") :]
        names = re.findall(rf"VAR (\w+) = {values[-1]}\b", section)
        for name, source in re.findall(r"VAR (\w+) = VAR (\w+)", section):
            if source in names:
                names.append(name)
        return names
    if "common words in the above list" in prompt:
        section = prompt[prompt.rfind("Below is a numbered list") :].split("\nQuestion")[0]
        return [w for w, _ in Counter(re.findall(r"\d+\. (\w+)", section)).most_common(10)]
    if "coded text" in prompt:
        section = prompt.split("coded words. ")[1].split("\nQuestion")[0]
        words = Counter(w for w in section.split() if w != "...")
        return [w for w, _ in words.most_common(3)]
    if "access codes of the lockers" in prompt:
        (key,) = re.findall(r"What is the access code of the (\w+ \w+) locker\?", prompt)
        return re.findall(rf"The access code of the {key} locker is (\w+)\.", prompt)
    question = prompt[prompt.rfind("\nWhat ") :]
    asked = re.findall(r"[0-9a-z]+(?:-[0-9a-z]+)+", question.split(" mentioned")[0])
    found = re.findall(r"One of the special magic \w+ for (\S+) is: (\S+)\.", prompt)
    return [value for key in asked for name, value in found if name == key]


@dataclass
class Behaviour:
    """What the stub does. `fail`: HTTP statuses for the next answers of more than one token."""

    fail: list[int] = field(default_factory=list)
    fail_always: int | None = None
    fail_if: str | None = None
    retry_after: str | None = None
    tokenize: bool = True
    kv_usage: bool = True
    usage: bool = True
    forgets: bool = False
    limit: int | None = 32768
    models: list[str] | None = field(default_factory=lambda: ["stub-model"])
    hold: threading.Event | None = None
    extra_prompt_tokens: int = 0


class StubServer:
    """Use as a context manager; `requests` holds (path, headers, body) of every POST."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.lock = threading.Lock()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def _send(
                self, status: int, body: object, headers: dict[str, str] | None = None
            ) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                for name, value in (headers or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(BrokenPipeError, ConnectionResetError):  # an interrupted client
                    self.wfile.write(data)

            def _refuse(self, status: int, message: str) -> None:
                after = stub.behaviour.retry_after
                error = {"message": message, "type": "error", "param": None, "code": None}
                self._send(status, {"error": error}, {"Retry-After": after} if after else None)

            def do_GET(self) -> None:
                if self.path == "/v1/models" and stub.behaviour.models is None:
                    self._refuse(500, "the list is broken")
                elif self.path == "/v1/models":
                    data = [
                        {"id": name, "object": "model", "created": 0, "owned_by": "stub"}
                        for name in stub.behaviour.models
                    ]
                    self._send(200, {"object": "list", "data": data})
                elif self.path == "/version":
                    self._send(200, {"version": "stub-1"})
                else:
                    self._refuse(404, "no such route")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub.lock:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    stub.requests.append((self.path, headers, body))
                if self.path == "/tokenize" and stub.behaviour.tokenize:
                    count = count_tokens(body["prompt"])
                    limit = stub.behaviour.limit
                    self._send(200, {"count": count, "max_model_len": limit, "tokens": []})
                elif self.path in ("/v1/completions", "/v1/chat/completions"):
                    self._generate(body)
                else:
                    self._refuse(404, "no such route")

            def _generate(self, body: dict[str, Any]) -> None:
                behaviour = stub.behaviour
                if behaviour.hold is not None and body["max_tokens"] > 1:
                    behaviour.hold.wait(30)
                chat = "messages" in body
                prompt = body["messages"][0]["content"] if chat else body["prompt"]
                with stub.lock:
                    status = behaviour.fail_always
                    if behaviour.fail and body["max_tokens"] > 1:
                        status = behaviour.fail.pop(0)
                if behaviour.fail_if is not None and behaviour.fail_if in prompt:
                    status = 400
                if status is not None:
                    self._refuse(status, f"made to fail with {status}")
                    return
                if behaviour.models and body["model"] not in behaviour.models:
                    self._refuse(404, f"no model '{body['model']}'")
                    return
                kv = body.get("kv", {"policy": "full"})  # as kvahead: no report unless asked for
                if kv["policy"] not in POLICIES:
                    self._refuse(400, f"unknown policy '{kv['policy']}'")
                    return
                self._send(200, reply(body, prompt, chat, kv, behaviour))

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> StubServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def generations(self) -> list[dict[str, Any]]:
        """Bodies of the completion requests for more than one token (not the policy check)."""
        return [
            body
            for path, _, body in self.requests
            if "completions" in path and body["max_tokens"] > 1
        ]


def reply(
    body: dict[str, Any], prompt: str, chat: bool, kv: dict[str, Any], behaviour: Behaviour
) -> dict[str, Any]:
    tokens = count_tokens(prompt) + behaviour.extra_prompt_tokens
    bits, forget = POLICIES[kv["policy"]]
    words = answer_to(prompt) if "\n" in prompt else ["green"]
    if behaviour.forgets:
        share = forget * min(tokens / 8192, 1.0) / (1 if kv.get("bits", 1) == 1 else 3)
        words = [w for w in words if _hash01(w + kv["policy"]) >= share] or ["nothing"]
    text = " " + ", ".join(words) + "."
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    usage: dict[str, Any] = {
        "prompt_tokens": tokens,
        "completion_tokens": 8,
        "total_tokens": tokens + 8,
    }
    if behaviour.kv_usage and kv.get("report"):
        usage["kvahead"] = {
            "policy": kv["policy"],
            "device_kv_bytes": int(tokens * KV_BYTES_PER_TOKEN * bits / 16),
            "host_kv_bytes": 0 if kv["policy"] == "full" else tokens * KV_BYTES_PER_TOKEN,
        }
    answer = {
        "id": "cmpl-1",
        "object": "chat.completion" if chat else "text_completion",
        "created": 0,
        "model": body["model"],
        "choices": [choice],
    }
    return answer | ({"usage": usage} if behaviour.usage else {})


def _hash01(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
