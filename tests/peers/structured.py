"""Tokens/s with and without structured output, of kvahead and llama-server on the same model and schema, in turns.

    python structured.py MODEL.gguf [--kvahead build/kvahead] [--llama llama-server] [--streams 1,16,64]
                         [--tokens 64] [--rounds 3] [--threads 2]

Both serve the model with THREADS threads. In each round each server streams so many chats at once, plain ones and
ones that a JSON Schema holds, TOKENS tokens each, greedily: the schema is of an array that cannot end before. Told
are, by streams, tokens per second of wall time and per second of the server's processor time, which counts where the
machine has other work, and the ratio of structured to plain, of medians over the rounds. A first request of each
kind, which is not counted, makes the grammar.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "email": {"type": "string"},
        "married": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "email", "married", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "object", "properties": {"people": {"type": "array", "items": ITEM, "minItems": 64}},
          "required": ["people"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "people", "strict": True, "schema": SCHEMA}}
START_S = 300


class Server:
    """One that runs, and its processor time."""

    def __init__(self, command, port):
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def wait_ready(self, path):
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(self.url + path, timeout=5):
                    return
            time.sleep(0.2)
        self.log.seek(0)
        raise SystemExit(self.log.read()[-2000:].decode(errors="replace"))

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def chat(self, index, structured, tokens):
        """Tokens of the answer."""
        body = {"messages": [{"role": "user", "content": f"List people of town {index}, as JSON."}], "stream": True,
                "stream_options": {"include_usage": True}, "temperature": 0, "max_tokens": tokens}
        body |= {"response_format": FORMAT} if structured else {"ignore_eos": True}
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        count, said = 0, b""
        with urllib.request.urlopen(request, timeout=600) as answer:
            for line in answer:
                said = line if b'"error"' in line else said
                if line.startswith(b"data: {"):
                    usage = json.loads(line[6:]).get("usage")
                    count = usage["completion_tokens"] if usage else count
        if count != tokens:
            raise SystemExit(f"{self.url}: {count} tokens instead of {tokens} {said.decode()}")
        return count

    def measure(self, streams, structured, tokens):
        """Tokens per second of wall time, and of processor time."""
        begun, begun_cpu = time.monotonic(), self.cpu_s()
        with concurrent.futures.ThreadPoolExecutor(streams) as pool:
            total = sum(pool.map(lambda i: self.chat(i, structured, tokens), range(streams)))
        return total / (time.monotonic() - begun), total / max(self.cpu_s() - begun_cpu, 0.01)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(options, streams_max):
    threads, servers = str(options.threads), {}
    port = free_port()
    # Neither refuses what has to wait.
    servers["kvahead"] = Server([options.kvahead, "serve", "--model", options.model, "--port", str(port), "--threads",
                                 threads, "--waiting-time", "0", *options.ours], port)
    servers["kvahead"].wait_ready("/ready")
    if options.llama:
        port = free_port()
        servers["llama-server"] = Server(
            [options.llama, "-m", options.model, "--port", str(port), "--threads", threads, "--threads-batch", threads,
             "--parallel", str(streams_max), "-c", str(streams_max * 1024), "--no-webui"], port)
        servers["llama-server"].wait_ready("/health")
    return servers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--kvahead", default="build/kvahead")
    parser.add_argument("--llama", help="llama-server; without it only kvahead is measured")
    parser.add_argument("--ours", nargs=argparse.REMAINDER, default=[], help="options of kvahead serve, last")
    parser.add_argument("--streams", default="1,16,64")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    counts = [int(count) for count in options.streams.split(",")]
    servers = start(options, max(counts))
    found = {}
    try:
        for server in servers.values():
            for structured in (False, True):
                server.measure(1, structured, options.tokens)
        for _ in range(options.rounds):
            for count in counts:
                for name, server in servers.items():
                    for structured in (False, True):
                        speed = server.measure(count, structured, options.tokens)
                        found.setdefault((count, name, structured), []).append(speed)
    finally:
        for server in servers.values():
            server.process.terminate()
            server.process.wait(60)
    print("| streams | | plain, tokens/s | structured | ratio | plain, tokens/CPU s | structured | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for count in counts:
        for name in servers:
            cells = []
            for kind in (0, 1):
                plain, held = (statistics.median(speed[kind] for speed in found[count, name, structured])
                               for structured in (False, True))
                cells += [f"{plain:.1f}", f"{held:.1f}", f"{held / plain:.2f}"]
            print(f"| {count} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
