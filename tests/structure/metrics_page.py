"""Checks that docs/operations.md names every metric that a server exports, with its type and labels, and no other; and
every alert.

    python3 metrics_page.py KVAHEAD SOURCE_ROOT
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

KEY = "key-of-this-test"
START_S = 60
ROW = re.compile(r"^\| `([a-z_:0-9]+)` \| (\w+) \| (.*?) \| .* \|$", re.M)
# On every metric, or of histograms.
COMMON = {"model", "model_name", "engine", "le"}


def call(port, path, body=None):
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data=body,
        headers={"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def port_of(process):
    """The server says in its log which port it has; wait until it is ready."""
    deadline = time.monotonic() + START_S
    for line in process.stderr:
        found = re.search(r"serving .* at http://127\.0\.0\.1:(\d+)", line)
        if found:
            port = int(found[1])
            break
    else:
        raise RuntimeError("the server ended before it listened")
    while time.monotonic() < deadline:
        try:
            call(port, "/ready")
            return port
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("the server is not ready")


def has_clusters(binary):
    ended = subprocess.run([binary, "serve", "--model", "none", "--cluster-listen", "127.0.0.1:0"], text=True,
                           capture_output=True, timeout=START_S, check=False)
    return "without clusters" not in ended.stderr


def scrape(binary, root, clustered):
    """What a server exports that has all optional metrics on and has answered something; its cluster has no etcd."""
    with tempfile.TemporaryDirectory() as folder:
        keys, secret = pathlib.Path(folder) / "keys", pathlib.Path(folder) / "secret"
        keys.write_text(f"{KEY} name=test\n")
        secret.write_text("of more than sixteen bytes\n")
        cluster = ["--cluster-listen", "127.0.0.1:0", "--cluster-etcd", "http://127.0.0.1:1", "--cluster-secret-file", secret]
        process = subprocess.Popen(
            [binary, "serve", "--model", root / "models/demo", "--port", "0", "--device-memory", "16M",
             "--host-memory", "16M", "--threads", "1", "--metrics-vllm", "--metrics-keys", "--api-key-file", keys,
             "--log-format", "text", *(cluster if clustered else [])], stderr=subprocess.PIPE, text=True)
        try:
            port = port_of(process)
            call(port, "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}).encode())
            return call(port, "/metrics")
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(timeout=START_S)


def parse(text):
    """{name: (type, labels)}"""
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    labels = {name: set() for name in types}
    for sample, inside in re.findall(r"^([a-z_:0-9]+)\{(.*)\} \S+$", text, re.M):
        name = sample if sample in types else re.sub(r"_(bucket|sum|count)$", "", sample)
        labels[name] |= set(re.findall(r'(\w+)="', inside)) - COMMON
    return {name: (types[name], frozenset(labels[name])) for name in types}


def main():
    binary, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    clustered = has_clusters(binary)
    exported = parse(scrape(binary, root, clustered))
    page = (root / "docs/operations.md").read_text()
    described = {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(page)
                 if name.startswith(("kvahead_", "vllm:")) and (clustered or not name.startswith("kvahead_cluster_"))}
    problems = [f"operations.md lacks `{name}`" for name in exported.keys() - described.keys()]
    problems += [f"operations.md has `{name}`, which is not exported" for name in described.keys() - exported.keys()]
    problems += [f"operations.md: `{name}` is {described[name]}, exported is {exported[name]}"
                 for name in exported.keys() & described.keys() if exported[name] != described[name]]
    alerts = re.findall(r"- alert: (\w+)", (root / "docker/prometheus/rules.yml").read_text())
    problems += [f"operations.md lacks the alert `{name}`" for name in alerts if f"| `{name}` |" not in page]
    for problem in sorted(problems):
        print(problem)
    print(f"{len(exported)} metrics, {len(problems)} problems")
    return 1 if problems or len(exported) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
