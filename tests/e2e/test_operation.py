"""kvahead as its operators meet it: metrics, signals, TLS, keys, start-up errors, the commands."""

from __future__ import annotations

import array
import contextlib
import fcntl
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import termios
import time

import openai
import pytest
from harness import BINARY, EXIT_S, MODEL, SANITIZER, Server, clean_environment, command, wait_until

COMPLETIONS = "/v1/completions"
SMALL = {"prompt": "Once", "max_tokens": 2, "temperature": 0}
LONG = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True}


# --- metrics


def test_metrics__promtool_has_no_complaint(servers):
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    both = servers.start("--metrics-vllm")
    both.post(COMPLETIONS, SMALL)
    text = both.request("GET", "/metrics").body
    for name in ("num_requests_running", "gpu_cache_usage_perc", "request_max_num_generation_tokens_bucket",
                 "iteration_tokens_total_bucket", "request_inference_time_seconds_bucket", "request_params_n_bucket"):
        assert re.search(rb'^vllm:%s\{model_name="[^"]*",engine="0"' % name.encode(), text, re.M), name
    check = [promtool, "check", "metrics"]
    done = subprocess.run(check, input=text, capture_output=True, check=False)
    # vLLM's names are what they are; our own must be beyond reproach.
    complaints = [line for line in done.stderr.decode().splitlines() if "vllm:" not in line]
    assert not [line for line in complaints if "kvahead_" in line], complaints
    own = b"".join(part for part in re.split(rb"(?=# HELP )", text) if b"vllm:" not in part)
    done = subprocess.run(check, input=own, capture_output=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr


def test_metrics__agree_with_the_client(servers):
    own = servers.start()
    tally = {"prompt": 0, "output": 0, "length": 0, "stop": 0, "requests": 0}

    def count(usage, choices):
        tally["prompt"] += usage["prompt_tokens"]
        tally["output"] += usage["completion_tokens"]
        tally["requests"] += 1
        for choice in choices:
            tally[choice["finish_reason"]] += 1

    for i in range(6):
        document = own.complete(f"Number {i} is", max_tokens=5 + i, n=1 + i % 2, ignore_eos=True)
        count(document["usage"], document["choices"])
    document = own.complete(["The end.", "Once"], max_tokens=9, logit_bias={"3557": 100})
    count(document["usage"], document["choices"])
    fields = {"prompt": "Once", "max_tokens": 11, "ignore_eos": True}
    with own.stream(COMPLETIONS, **fields, stream_options={"include_usage": True}) as stream:
        frames = list(stream.frames())
    count(frames[-1]["usage"], [frames[-2]["choices"][0]])
    for body, reason in (({}, "invalid"), ({"prompt": [1] * 9000}, "context")):
        assert own.post(COMPLETIONS, body).status == 400
        tally[reason] = 1
    own.wait_idle()
    got = own.metrics()
    assert got["kvahead_prompt_tokens_total"] == tally["prompt"]
    assert got["kvahead_generation_tokens_total"] == tally["output"]
    for reason in ("length", "stop"):
        assert got[f'kvahead_requests_finished_total{{reason="{reason}"}}'] == tally[reason]
    for reason in ("invalid", "context"):
        assert got[f'kvahead_requests_rejected_total{{reason="{reason}"}}'] == tally[reason]
    answers = 'kvahead_http_requests_total{route="/v1/completions",code="%d"}'
    assert got[answers % 200] == tally["requests"] and got[answers % 400] == 2
    computed, cached = (
        got[f'kvahead_scheduler_prompt_tokens_total{{source="{source}"}}']
        for source in ("computed", "cached")
    )
    assert computed + cached >= tally["prompt"]
    assert got["kvahead_time_to_first_token_seconds_count"] == tally["requests"]
    assert got["kvahead_request_generation_tokens_sum"] == tally["output"]
    assert got["kvahead_request_prompt_tokens_sum"] == tally["prompt"]


# --- signals


def test_sigterm__running_streams_finish_and_new_work_is_refused(servers):
    own = servers.start("--drain-timeout", "2m")
    asked = LONG | {"max_tokens": 4000}
    reference = own.tokens(**asked)
    kept = own.http()
    own.send(kept, "GET", "/ready")
    assert kept.getresponse().read()
    with own.stream(COMPLETIONS, **asked, n=2, return_token_ids=True) as stream:
        frames = stream.frames()
        next(frames)
        own.process.send_signal(signal.SIGTERM)
        wait_until("it drains", lambda: "new ones are refused" in own.log())
        assert kept.sock.recv(1) == b"", "an idle connection ends"
        for method, path, body in (("GET", "/ready", None), ("POST", COMPLETIONS, SMALL)):
            fresh = own.http()
            own.send(fresh, method, path, body)
            answer = fresh.getresponse()
            assert answer.status == 503 and answer.getheader("Retry-After")
            assert answer.getheader("Connection") == "close"
            assert "shutting down" in answer.read().decode()
        ids: dict[int, list[int]] = {i: [] for i in range(2)}
        for frame in frames:
            choice = frame["choices"][0]
            ids[choice["index"]] += choice.get("token_ids", [])
    assert own.process.wait(EXIT_S) == 0
    assert all(got == reference for got in ids.values())


def test_sigterm__twice_ends_at_once(servers):
    own = servers.start()
    with own.stream(COMPLETIONS, **LONG, n=16) as stream:
        next(stream.events())
        own.process.send_signal(signal.SIGTERM)
        wait_until("it drains", lambda: "new ones are refused" in own.log())
        own.process.send_signal(signal.SIGINT)
        with contextlib.suppress(AssertionError, http.client.HTTPException, ConnectionError):
            list(stream.frames())
    assert own.process.wait(EXIT_S) == 1
    own.stop(expected=1)


def test_drain_timeout__ends_what_still_runs(servers):
    own = servers.start("--drain-timeout", "200ms")
    with own.stream(COMPLETIONS, **LONG, n=16) as stream:
        frames = stream.frames()
        next(frames)
        own.process.send_signal(signal.SIGTERM)
        last = None
        with contextlib.suppress(AssertionError):
            for last in frames:
                pass
        assert "error" in last and "shutting down" in last["error"]["message"], last
    assert own.process.wait(EXIT_S) == 0, own.log()
    assert "took too long" in own.log(), "a drain within its bound is a success, and it is told"


# --- log


def test_log__a_pipe_that_nobody_reads_holds_up_nothing():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["serve", "--model", MODEL, "--port", str(port)]
    with subprocess.Popen(
        [BINARY, *arguments], stderr=subprocess.PIPE, env=clean_environment(), pipesize=4096
    ) as process:
        own = Server(log_path=pathlib.Path(os.devnull), port=port)

        def ready():
            with contextlib.suppress(OSError):
                return own.request("GET", "/ready").status == 200

        wait_until("/ready", ready)
        connection = own.http()
        for _ in range(1000):
            own.send(connection, "GET", "/v1/nothing")
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 404
        assert own.request("GET", "/health").status == 200
        # Full, or nothing was tested.
        waiting = array.array("i", [0])
        fcntl.ioctl(process.stderr, termios.FIONREAD, waiting)
        assert waiting[0] >= 3072
        process.send_signal(signal.SIGTERM)
        assert process.wait(EXIT_S) == 0


def test_metrics__what_a_request_does_to_itself_is_no_failed_device(servers):
    own = servers.start()
    end = own.encode("<|im_end|>")
    assert len(end) == 1
    reply = own.post("/v1/completions", {"prompt": "Once", "allowed_token_ids": end, "min_tokens": 1, "max_tokens": 4})
    assert reply.status == 400 and "'allowed_token_ids', 'min_tokens'" in reply.error()["message"]
    assert own.metrics()['kvahead_requests_rejected_total{reason="device"}'] == 0


# --- keys


def test_connections__those_of_operators_make_no_room_for_others(servers):
    own = servers.start("--connections", "2", "--admin-listen", "127.0.0.1:0")
    (port,) = re.findall(r"probes and metrics at http://127.0.0.1 port (\d+)", own.log())
    admin = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
    idle = [own.http() for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for connection in (admin, *idle):
            stack.callback(connection.close)
        for connection, path in ((admin, "/health"), *((one, "/v1/models") for one in idle), (admin, "/metrics")):
            connection.auto_open = connection.sock is None  # the operators' is still the same
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, path


def test_log__who_asked_what_was_refused_and_what_nobody_knows(servers, tmp_path):
    (tmp_path / "keys").write_text("one name=search\ntwo\n")
    own = servers.start("--api-key-file", str(tmp_path / "keys"), "--log-format", "json", key="one")

    def logged(reply) -> dict:
        wanted = reply.headers["x-request-id"]
        return wait_until("the line", lambda: next(
            (line for line in map(json.loads, own.log().splitlines()) if line.get("request_id") == wanted), None))

    good = logged(own.post(COMPLETIONS, SMALL))
    assert (good["key"], good["key_name"], good["output_tokens"]) == (0, "search", SMALL["max_tokens"]), good
    assert not {"error", "param", "unknown_field"} & good.keys()
    assert f" id={good['request_id']} key=0 key_name=search prompt=" in good["message"]
    typed = logged(own.post(COMPLETIONS, SMALL | {"temprature": 0, 'x"\n key=7\u20ac': 1}))
    assert (typed["unknown_field"], typed["unknown_fields"]) == ("temprature", 2), typed
    assert " unknown=temprature+1 prompt=" in typed["message"]
    forged = logged(own.post(COMPLETIONS, SMALL | {'x"\n key=7\u20ac': 1}))
    assert forged["unknown_field"] == "x???key?7???" and " unknown=x???key?7??? " in forged["message"]
    refused_ = logged(own.post(COMPLETIONS, SMALL | {"temperature": 9}))
    assert (refused_["status"], refused_["error"], refused_["param"]) == (400, "invalid_request", "temperature")
    assert " error=invalid_request param=temperature" in refused_["message"]
    stranger = logged(own.request("GET", "/v1/models", headers={"Authorization": "Bearer three"}))
    assert stranger["error"] == "unauthorized" and "key_name" not in stranger and "param" not in stranger


def test_keys__on_every_route_but_liveness(servers, tmp_path):
    path = tmp_path / "keys"
    path.write_text("# two of them\n\nfile-one\n  file-two  \n")
    own = servers.start(
        "--api-key-file", str(path), env={"KVAHEAD_API_KEY": "env-key"}, key="env-key"
    )
    for key in ("env-key", "file-one", "file-two"):
        with openai.OpenAI(base_url=f"{own.url}/v1", api_key=key, max_retries=0) as client:
            assert client.models.list().data
    for key in ("env-ke", "env-keyx", "ENV-KEY", "# two of them"):
        with openai.OpenAI(base_url=f"{own.url}/v1", api_key=key, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.models.list()
            assert caught.value.code == "invalid_api_key" and key not in caught.value.message
    own.key = None
    routes = ["/metrics", "/version", "/v1/models", "/v1/models/demo", "/nowhere"]
    for path_ in [*routes, "/v1/kvahead/requests"]:
        reply = own.request("GET", path_)
        assert reply.status == 401 and reply.headers["www-authenticate"] == "Bearer", path_
        reply.error()
    for path_ in (COMPLETIONS, "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert own.post(path_, SMALL).status == 401, path_
    assert own.request("GET", "/health").status == 200
    assert own.request("GET", "/metrics", None, {"X-API-Key": "file-one"}).status == 200
    # The file is read again on SIGHUP; keys of the environment stay.
    path.write_text("file-three\n")
    own.process.send_signal(signal.SIGHUP)
    header = {"Authorization": "Bearer file-three"}
    wait_until("the new key", lambda: own.request("GET", "/metrics", None, header).status == 200)
    assert own.request("GET", "/metrics", None, {"Authorization": "Bearer file-one"}).status == 401
    assert own.request("GET", "/metrics", None, {"Authorization": "Bearer env-key"}).status == 200
    assert "file-" not in own.log().replace(str(path), "") and "env-key" not in own.log()


def test_keys__from_the_environment(servers):
    own = servers.start(env={"KVAHEAD_API_KEY": "from-env"}, key="from-env")
    assert own.post(COMPLETIONS, SMALL).status == 200
    own.key = "another"
    assert own.post(COMPLETIONS, SMALL).status == 401
    own.key = "from-env"


def test_keys__rate_limit_of_one_key(servers):
    own = servers.start("--key-rate", "3", env={"KVAHEAD_API_KEY": "a,b"}, key="a")
    statuses = [own.post(COMPLETIONS, SMALL).status for _ in range(5)]
    assert statuses[:3] == [200, 200, 200] and 429 in statuses[3:]
    with own.client() as client, pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="demo", prompt="x")
    assert int(caught.value.response.headers["retry-after"]) >= 1
    own.key = "b"
    assert own.post(COMPLETIONS, SMALL).status == 200, "another key has its own allowance"


def test_keys__are_no_flag():
    line = serve("--api-key", "secret", code=2)
    assert "--api-key-file" in line and "KVAHEAD_API_KEY" in line and "secret" not in line


def test_keys__do_not_share_prefixes(servers):
    """A prefix that another key has made is not found: its time would tell."""
    own = servers.start(env={"KVAHEAD_API_KEY": "a,b"}, key="a")
    ids = [300 + i for i in range(400)]

    def cached() -> int:
        return own.complete(ids, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert (cached(), cached()) == (0, 384)
    own.key = "b"
    assert (cached(), cached()) == (0, 384)


# --- TLS


def make_certificate(folder, name: str) -> tuple[str, str]:
    openssl = shutil.which("openssl")
    if not openssl:
        pytest.skip("the openssl command is not installed")
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        + ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)


def test_tls__and_a_new_certificate_without_a_restart(servers, tmp_path):
    first, second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    cert, key = tmp_path / "serving.pem", tmp_path / "serving.key"
    shutil.copy(first[0], cert)
    shutil.copy(first[1], key)
    own = servers.start("--tls-cert", str(cert), "--tls-key", str(key), ca_path=str(first[0]))
    assert "https://127.0.0.1" in own.log()
    reference = own.tokens("Once", max_tokens=2000, ignore_eos=True)
    context = ssl.create_default_context(cafile=first[0])
    transport = openai.DefaultHttpxClient(verify=context)
    with own.client(http_client=transport) as client:
        chunks = client.completions.create(model="demo", stream=True, **SMALL)
        assert "".join(chunk.choices[0].text for chunk in chunks)
    with own.stream(COMPLETIONS, **LONG | {"max_tokens": 2000}, return_token_ids=True) as stream:
        frames = stream.frames()
        got = next(frames)["choices"][0].get("token_ids", [])
        shutil.copy(second[0], cert)
        shutil.copy(second[1], key)
        own.process.send_signal(signal.SIGHUP)
        own.ca_path = second[0]

        def trusted() -> bool:
            with contextlib.suppress(ssl.SSLCertVerificationError):
                return own.request("GET", "/ready").status == 200
            return False

        wait_until("the new certificate", trusted)
        for frame in frames:
            got += frame["choices"][0].get("token_ids", [])
    assert got == reference, "a stream of before the change goes on"
    own.ca_path = first[0]
    with pytest.raises(ssl.SSLCertVerificationError):
        own.request("GET", "/ready")
    own.ca_path = second[0]
    # What cannot be used is refused, and the old one stays.
    cert.write_text("nonsense")
    own.process.send_signal(signal.SIGHUP)
    wait_until("it complains", lambda: "the old certificate stays" in own.log())
    assert own.request("GET", "/ready").status == 200
    with socket.create_connection(("127.0.0.1", own.port), timeout=30) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert not plain.recv(100).startswith(b"HTTP/1.1 200")


# --- start-up errors


def refused(*arguments, code: int = 1, env: dict | None = None) -> str:
    """The one line that a start that fails ends with."""
    done = command(*arguments, env=env)
    assert done.returncode == code, done
    lines = [line for line in done.stderr.splitlines() if line.startswith("kvahead: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def serve(*options, **fields) -> str:
    return refused("serve", "--model", MODEL, "--port", "0", *options, **fields)


def test_start__model_missing_or_not_a_model(tmp_path):
    assert "--model" in refused("serve", "--port", "0")
    assert "nowhere" in refused("serve", "--model", tmp_path / "nowhere", "--port", "0")
    assert "config.json" in refused("serve", "--model", tmp_path, "--port", "0")


@pytest.mark.parametrize("damage", ["cut", "header", "offsets", "missing", "config"])
def test_start__damaged_model(tmp_path, damage):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("training", "*.py"))
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    if damage == "cut":
        weights.write_bytes(data[: len(data) // 2])
    elif damage == "header":
        weights.write_bytes(struct.pack("<Q", 1 << 62) + data[8:])
    elif damage == "offsets":
        header = json.loads(data[8 : 8 + size])
        tensor = next(name for name in header if name != "__metadata__")
        header[tensor]["data_offsets"] = [1 << 50, (1 << 50) + 8]
        text = json.dumps(header).encode()
        weights.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": -1}')
    line = refused("serve", "--model", folder, "--port", "0")
    assert ("config.json" if damage == "config" else "safetensors") in line


@pytest.mark.parametrize(
    "name",
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    + ["chat_template.jinja", "model.safetensors", "model.safetensors.index.json"],
)
def test_start__a_fifo_in_the_place_of_a_model_file(tmp_path, name):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("training", "*.py"))
    if name == "model.safetensors.index.json":
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    line = refused("serve", "--model", folder, "--port", "0")
    assert name in line and "not a regular file" in line


def loading(tmp_path, *signals):
    """A server that waits, while it loads, for a lock that is never let go; signals; exit code, log."""
    cache = tmp_path / "cache"
    arguments = ["--port", "0", "--log-format", "text", "--weights", "int8", "--weights-cache", cache]
    first = command("generate", "--model", MODEL, "--weights", "int8", "--weights-cache", cache, "a")
    assert first.returncode == 0, first
    (made,) = cache.glob("*.int8")
    made.unlink()
    log = tmp_path / "log"
    with open(f"{made}.new", "wb") as lock, open(log, "wb") as to:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(
            [BINARY, "serve", "--model", MODEL, *arguments], stderr=to, env=clean_environment()
        ) as process:
            wait_until("it waits", lambda: f"process that makes {made}" in log.read_text())
            for number in signals:
                process.send_signal(number)
            return process.wait(EXIT_S), log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start__a_signal_stops_loading(tmp_path, number):
    code, log = loading(tmp_path, number)
    assert code == 0 and "loading was stopped" in log, log


def test_start__two_signals_end_loading(tmp_path):
    code, log = loading(tmp_path, signal.SIGTERM, signal.SIGINT)
    # Loading may have stopped in between.
    assert code in (0, -signal.SIGTERM, -signal.SIGINT), log


def test_start__bad_options():
    assert "--prot" in serve("--prot", "1", code=2)
    line = serve("--port", "70000", code=2)
    assert "--port" in line and "70000" in line and "65535" in line
    assert "offload" in serve("--kv", "magic", code=2)
    line = serve("--device-memory", "lots", code=2)
    assert "device-memory" in line and "lots" in line
    line = serve(env=clean_environment(KVAHEAD_SEQUENCES="0"), code=2)
    assert "KVAHEAD_SEQUENCES" in line
    line = serve("--request-limit", "n=0")
    assert "'n=0'" in line and "4096" in line
    assert "best_of" in serve("--request-limit", "stops=3")
    assert "stray" in command("serve", "--model", MODEL, "stray").stderr
    assert "context" in serve("--context", "100000")


def test_start__limits_of_requests_are_the_operators(servers, server):
    """A fixed limit, and what a request beyond it is told, with another number."""
    own = servers.start("--request-limit", "prompts=300", "--request-limit", "n=2")
    many = SMALL | {"prompt": [[1]] * 300, "max_tokens": 1}
    assert own.request("POST", COMPLETIONS, many).status == 200
    refused = server.request("POST", COMPLETIONS, many)
    assert refused.status == 400 and "256" in refused.json()["error"]["message"]
    refused = own.request("POST", COMPLETIONS, SMALL | {"n": 3})
    assert refused.status == 400 and refused.json()["error"]["param"] == "n"


def test_start__configuration_file(servers, tmp_path):
    path = tmp_path / "kvahead.json"
    path.write_text(json.dumps({"model-name": "from-file", "sequences": 3, "api-key": ["k"]}))
    own = servers.start("--config", str(path), env={"KVAHEAD_MODEL_NAME": "from-env"}, key="k")
    models = own.request("GET", "/v1/models").json()["data"]
    assert models[0]["id"] == "from-env", "the environment comes before the file"
    path.write_text('{"seqences": 3}')
    line = serve("--config", str(path), code=2)
    assert "seqences" in line and str(path) in line
    path.write_text('{"sequences": ')
    assert "line 1" in serve("--config", str(path), code=2)


def test_start__port_in_use(server: Server):
    line = refused("serve", "--model", MODEL, "--port", str(server.port))
    assert str(server.port) in line and "in use" in line


def test_start__callers_that_never_come():
    assert "https://a.example/" in serve("--cors-origin", "https://a.example/")
    assert "http://a.example" in serve("--allowed-host", "http://a.example")


def test_start__a_name_that_nobody_can_ask_for():
    assert "--model-name is ''" in serve("--model-name", "")
    assert "of 256 bytes, it must have 1 to 255" in serve("--model-name", "x" * 256)


def test_start__other_machines_want_a_key():
    for host in ("0.0.0.0", "::"):
        line = serve("--host", host, env=clean_environment())
        assert host in line and "KVAHEAD_API_KEY" in line and "--public-without-key" in line


def test_start__budget_too_small():
    line = serve("--device-memory", "64K")
    assert "device" in line and re.search(r"\d+", line)
    line = serve("--host-memory", "64K")
    assert "host" in line


def test_start__tiers_that_memory_lacks(servers):
    twice = f"{2 * os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30}G"
    # Taken at once they would end the process, and perhaps others, without a word.
    line = serve("--prefault", "--host-memory", twice)
    assert "--prefault" in line and "--host-memory" in line and len(re.findall(r"[\d.]+ GiB", line)) == 1, line
    own = servers.start("--host-memory", twice)
    assert re.search(r"warn .*the tiers are [\d.]+ GiB, and [\d.]+ can be taken.*--host-memory", own.log()), own.log()


def test_start__unreadable_key_file_and_certificate(tmp_path):
    assert "nokeys" in serve("--api-key-file", str(tmp_path / "nokeys"))
    (tmp_path / "empty").write_text("\n# nothing\n")
    assert "empty" in serve("--api-key-file", str(tmp_path / "empty"))
    assert "nocert" in serve("--tls-cert", str(tmp_path / "nocert"))
    os.mkfifo(tmp_path / "fifo")
    for option in ("--api-key-file", "--tls-cert"):
        line = serve(option, str(tmp_path / "fifo"))
        assert "fifo" in line and "not a regular file" in line


def test_budget__a_request_that_can_never_fit_is_told(servers):
    own = servers.start("--device-memory", "4M", "--host-memory", "64M")
    reply = own.post(COMPLETIONS, {"prompt": [1] * 8000, "max_tokens": 10})
    assert reply.status in (400, 503), reply
    error = reply.error()
    assert "device" in error["message"] and len(re.findall(r"\d+", error["message"])) >= 2, error
    assert own.post(COMPLETIONS, SMALL).status == 200


def test_start__time_to_ready_is_told(servers, capsys):
    started = time.monotonic()
    own = servers.start()
    ready = time.monotonic() - started
    first = time.monotonic()
    own.post(COMPLETIONS, {"prompt": "Once", "max_tokens": 1})
    with capsys.disabled():
        print(f"\n  ready after {ready:.2f} s, first token {time.monotonic() - first:.3f} s later")


# --- the other commands


def test_commands__version_help_options():
    version = command("--version")
    assert version.returncode == 0 and re.fullmatch(r"kvahead \d+\.\d+\.\d+\n", version.stdout)
    overview = command("--help")
    for name in ("serve", "chat", "generate", "tokenize", "info", "bench", "doctor", "make-model"):
        assert f"kvahead {name}" in overview.stdout
        help_ = command(name, "--help")
        assert help_.returncode == 0 and not help_.stderr and "--" in help_.stdout
        assert command("help", name).stdout == help_.stdout
    options = command("options")
    assert options.returncode == 0 and "| `api-key-file` |" in options.stdout
    assert command().returncode == 2
    unknown = command("swerve")
    assert unknown.returncode == 2 and "swerve" in unknown.stderr
    unknown = command("help", "swerve")
    assert unknown.returncode == 2 and "swerve" in unknown.stderr
    for name in ("serve", "info", "doctor"):
        positional = command(name, MODEL)
        assert positional.returncode == 2 and "--model MODEL" in positional.stderr


def test_commands__info():
    info = command("info", "--model", MODEL)
    assert info.returncode == 0, info
    for part in ("llama", "8192", "device", "chat template yes", "full", "offload"):
        assert part in info.stdout, part


def test_commands__tokenize_as_the_server_does(server):
    text = "Once upon a time, \U0001f600 한글"
    by_server = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    by_argument = command("tokenize", "--model", MODEL, "--ids", text)
    by_input = command("tokenize", "--model", MODEL, "--ids", stdin=text)
    assert [int(i) for i in by_argument.stdout.split()] == by_server
    assert by_input.stdout == by_argument.stdout
    raw = command("tokenize", "--model", MODEL, "--ids", "--raw", text)
    assert [int(i) for i in raw.stdout.split()] == server.encode(text)
    empty = command("tokenize", "--model", MODEL, "")
    assert empty.returncode == 1 and empty.stderr == "kvahead: no text given\n" and not empty.stdout
    shown = command("tokenize", "--model", MODEL, text)
    assert len(shown.stdout.splitlines()) == len(by_server)


def test_commands__generate_as_the_server_does(server):
    document = server.complete("Once upon a time", max_tokens=30)
    asked = ("generate", "--model", MODEL, "--max-tokens", "30", "--log-level", "error")
    done = command(*asked, "Once upon a time")
    assert done.returncode == 0, done
    assert document["choices"][0]["text"].strip() in done.stdout
    assert command(*asked, "--kv", "offload", "Once upon a time").stdout == done.stdout
    for text, words in ((("--prompt", "Once", "upon"), "two texts"), (("",), "no text given")):
        refused_ = command(*asked, *text)
        assert refused_.returncode == 2 and words in refused_.stderr and not refused_.stdout, refused_
    seeded = [command(*asked, "--temperature", "1", "--seed", "7", "Once").stdout for _ in (1, 2)]
    assert seeded[0] == seeded[1]


# --- a model's file that is cut


@pytest.mark.parametrize("weights", ["auto", "int8"])
def test_model__a_file_that_is_cut_ends_serving_with_a_word(tmp_path, weights):
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("training"))
    options = ("--weights", weights, "--weights-cache", str(tmp_path))
    own = Server(tmp_path / "server.log", options, model=folder).start()
    (file,) = folder.glob("*.safetensors") if weights == "auto" else tmp_path.glob("*.int8")
    with own.stream(COMPLETIONS, **LONG) as stream:
        events = stream.events()
        assert json.loads(next(events))["choices"]
        os.truncate(file, file.stat().st_size // 2)
        last = [json.loads(event) for event in events if not event.startswith(":")][-1]
    # Whoever was being served is told, and gets no [DONE] behind tokens that nothing computed.
    assert last["error"]["code"] == "device_failed"
    assert last["error"]["message"] == "The server has failed and is shutting down."
    assert own.process.wait(EXIT_S) == 1
    words = f"Serving has ended: the engine failed: {file.name} has been cut, or cannot be read"
    assert words in own.log()
    assert not SANITIZER.search(own.log())
