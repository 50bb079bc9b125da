"""The whole server on a CUDA device beside the same on the CPU: tests/gpu/serve.py SERVER MODULE MODEL [OPTION]...

Both answer the same requests under every KV policy, streamed and at once, alone and eight at a time. On the CUDA device
activations have 16 bits, so tokens may part where two are nearly as likely; the first tokens' log-probabilities must be
near. OPTIONs go to both servers, whose libraries may lie in lib/ beside SERVER. Nothing but Python is needed. A line
PASS or FAIL a check; exit code 1 if one failed.
"""

import concurrent.futures
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

LOW = {"min_tokens": 0}  # low bits, however short
KV = [
    {"policy": "full"},
    {"policy": "offload"},
    {"policy": "kivi", "bits": 2} | LOW,
    {"policy": "specache", "bits": 1} | LOW,
    {"policy": "streaming"},
    {"policy": "h2o"},
    {"policy": "q-hitter"},
    {"policy": "infinigen", "skew": "none"},
]
PROMPT = "Once upon a time there was a little dog. It lived in a house by the sea, and every morning it ran to the sand. " * 8
OUTPUT = 24
FIRST_MOST = 0.3  # how far the first token's log-probability may be from the CPU's
START_S, ANSWER_S = 120, 180

failures = 0


def say(good, what):
    global failures
    failures += not good
    print("PASS" if good else "FAIL", what, flush=True)


class Server:
    """A server on a free port of this machine, until the with block ends."""

    def __init__(self, binary, libraries, model, options):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        command = [binary, "serve", "--model", model, "--port", "0", "--log-format", "text", *options]
        env = {name: value for name, value in os.environ.items() if not name.startswith("KVAHEAD_")}
        env["LD_LIBRARY_PATH"] = f"{libraries}:{env.get('LD_LIBRARY_PATH', '')}"
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=env)

    def __enter__(self):
        deadline = time.monotonic() + START_S
        while True:
            line = re.search(r"serving .* at (http://\S+) after", self.text())
            if line:
                self.url = line[1]
                with contextlib.suppress(OSError):
                    self.ask("/ready")
                    return self
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"FAIL the server did not start:\n{self.text()}")
            time.sleep(0.1)

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = "none in 60 s"
        say(code == 0, f"stopped, exit code {code}")
        if code != 0:
            print(self.text()[-2000:])

    def text(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def ask(self, path, body=None):
        data = json.dumps(body).encode() if body else None
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError as error:
            raise SystemExit(f"FAIL {path} {body}: {error}: {error.read().decode()}") from error

    def complete(self, kv, **more):
        body = {"prompt": PROMPT, "max_tokens": OUTPUT, "temperature": 0, "logprobs": 1, "kv": kv} | more
        return json.loads(self.ask("/v1/completions", body))["choices"][0]

    def stream(self, kv):
        body = {"prompt": PROMPT, "max_tokens": OUTPUT, "temperature": 0, "kv": kv, "stream": True}
        events = [line[6:] for line in self.ask("/v1/completions", body).splitlines() if line.startswith("data: ")]
        return "".join(json.loads(event)["choices"][0]["text"] for event in events if event != "[DONE]"), events[-1]


def check_policy(cpu, cuda, kv):
    want, got, policy = cpu.complete(kv), cuda.complete(kv), kv["policy"]
    tokens = want["logprobs"]["tokens"], got["logprobs"]["tokens"]
    same = 0
    while same < min(map(len, tokens)) and tokens[0][same] == tokens[1][same]:
        same += 1
    apart = abs(want["logprobs"]["token_logprobs"][0] - got["logprobs"]["token_logprobs"][0])
    say(len(tokens[1]) > 0 and (same == 0 or apart <= FIRST_MOST),
        f"{policy}: {same} of {len(tokens[0])} tokens as on the CPU, the first {apart:.3f} apart")
    text, last = cuda.stream(kv)
    say(text == got["text"] and last == "[DONE]", f"{policy}: streamed, the same text")
    return same


def check_many(cuda):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        choices = list(pool.map(lambda i: cuda.complete(KV[i % len(KV)], ignore_eos=True), range(8)))
    say(all(len(choice["logprobs"]["tokens"]) == OUTPUT for choice in choices), "eight at once, a policy each")


def main():
    binary, module, model, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:  # a server takes the module that lies beside it
        beside = pathlib.Path(folder)
        shutil.copy(binary, beside / "kvahead")
        shutil.copy(module, beside / "kvahead-cuda.so")
        program, libraries = str(beside / "kvahead"), f"{pathlib.Path(binary).absolute().parent / 'lib'}:{folder}"
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:  # a simulated GPU: auto looks for a driver first, this is its stand-in
            shutil.copy(module, beside / "libcuda.so.1")
        options += [word for kv in KV for word in ("--kv-allow", kv["policy"])]
        with Server(program, libraries, model, ["--device", "cpu", *options]) as cpu, \
                Server(program, libraries, model, ["--device", "cuda:0", *options]) as cuda:
            print(*re.findall(r"(?:device|compute) .*", cuda.text())[:2], sep="\n")
            same = [check_policy(cpu, cuda, kv) for kv in KV]
            say(sum(same) * 2 >= len(same) * OUTPUT, f"{sum(same)} of {len(same) * OUTPUT} tokens as on the CPU")
            check_many(cuda)
            say("kvahead_" in cuda.ask("/metrics"), "/metrics")
        small = ["--gpu-memory", "600M", "--device-memory", "64M", "--host-memory", "256M", "--threads", "1"]
        with Server(program, libraries, model, ["--device", "auto", *small]) as server:
            say(re.search(r"device +cpu: .*no room for", server.text()), "a GPU without room is left alone")
    print(f"{failures} failed")
    sys.exit(failures > 0)


main()
