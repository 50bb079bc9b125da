"""A trace on real servers, and what the virtual clock of the same planner, rManagers and cost model makes of it.

    python3 tests/cluster/measure_trace.py --model smollm2-135m-instruct [--trace 3] [--scale 0.036] [--rate 0.8] [--shares 0,80]

Servers with a thread each, as many as this machine has cores or --servers, in turns on the cores, and an etcd of their own.
Constants are those that the first server measures of itself, and what prompts of two lengths take it: a part for each token,
and one for each pair of them; of these, the mean of before the run and of another server after it, since a shared machine's
speed changes from minute to minute. Where several servers share a core, the prediction has each of them so many times slower,
as if all were busy all the time. Requests of the trace, their lengths scaled, come at the same times to the same servers in
both. With --fits only those come that one server can hold; a server alone refuses the others, and has no work with them.
Prints tokens a second of the measured time that were said and that were computed of prompts, by share that may be lent,
requests that were refused since no memory could hold them, and the prediction's ratio; then how long a layer has waited for an
answer on average, what plans have learnt of steps without loans and with them (kvahead_cluster_pace), and the prediction with
that wait. Needs the packages of tests/e2e/requirements.txt, and bench_cluster_prediction of a build folder.
"""

from __future__ import annotations

import argparse
import http.client
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from cluster import Cluster  # noqa: E402
from conftest import Servers  # noqa: E402
from harness import BINARY, PAGE_TOKENS  # noqa: E402
from measure_lending import on_core, prompt_of, tokens  # noqa: E402

PREDICT = pathlib.Path(BINARY).parent / "tests/cluster/traces/bench_cluster_prediction"
LINK_LATENCY_S, LINK_BYTES_PER_S = 20e-6, 2e9  # bench_cluster_link, two processes of one machine


def prompt_time(server, length: int) -> float:
    took = []
    for turn in range(5):
        began = time.monotonic()
        server.tokens(prompt_of(1000 * length + turn, length), max_tokens=1, ignore_eos=True)
        took.append(time.monotonic() - began)
    return statistics.median(took)


def constants(server, options, crowd: float) -> list[str]:
    """What the prediction needs to know of a server, measured while nobody has anything to do, for `crowd` of them a core."""
    log = server.log()
    points = re.search(r"steps by rows, ms: (.*?); 1,000 tokens of a row ([\d.]+) ms; a page ([\d.]+) ms", log)
    layers, heads, head_dim = options.layers, options.heads, options.head_dim
    short, long = options.pages * 8, options.pages * 48  # of those that fit
    of_short, of_long = (crowd * prompt_time(server, length) / length for length in (short, long))
    pair = max(0.0, (of_long - of_short) / (long - short))
    steps = [point.split() for point in points[1].split(",")]
    return [f"layers {layers}", f"page_bytes {options.page_bytes}", f"pages {options.pages}", "rows_max 64",
            f"step_pages {min(8, 0.01 * float(steps[0][1]) / float(points[3])):.4f}",
            f"attend_token_s {crowd * float(points[2]) / 1e6 / layers:.4e}", f"link_latency_s {LINK_LATENCY_S}",
            f"link_bytes_per_s {LINK_BYTES_PER_S}", f"query_bytes {heads * head_dim * 4}",
            f"partial_bytes {heads * (head_dim + 2) * 4}",
            f"prompt_s {of_short - short * pair:.4e}", f"prompt_pair_s {pair:.4e}",
            *(f"point {rows} {crowd * float(ms) / 1e3 / layers:.4e}" for rows, ms in steps)]


def between(before: list[str], after: list[str]) -> list[str]:
    """The means of the same constants, the last word of a line each."""
    pairs = [(one.rsplit(" ", 1), other.rsplit(" ", 1)) for one, other in zip(before, after, strict=True)]
    assert all(one[0] == other[0] for one, other in pairs)
    return [f"{one[0]} {one[1] if one[1] == other[1] else (float(one[1]) + float(other[1])) / 2}" for one, other in pairs]


def start(cluster, core: int, share: int, options):
    with on_core(core):
        return cluster.start(
            "--threads", "1", "--waiting-time", "0", "--device-memory", f"{options.device_memory}M", "--host-memory", "4G",
            "--no-prefix-cache", "--cluster-plan", "gain", "--cluster-round", "500ms", "--cluster-lend", str(share),
            "--cluster-patience", f"{options.patience}s", model=options.model)


def ask(server, index: int, prompt: int, outputs: int) -> None:
    try:
        server.tokens(prompt_of(index, prompt), max_tokens=outputs, ignore_eos=True)
    except (OSError, http.client.HTTPException, AssertionError):
        pass  # the servers were stopped, or it is too long for them


def of_prompts(servers) -> float:
    return sum(server.metrics()['kvahead_scheduler_prompt_tokens_total{source="computed"}'] for server in servers)


def replay(servers, requests, options) -> tuple[float, float]:
    """Tokens a second behind the time to warm up: said, and computed of prompts."""
    began, before, measured_s = time.monotonic(), None, 0.0
    end = options.warm + options.measured
    for index, (at, instance, prompt, outputs) in enumerate(requests):
        due = min(at, end)
        while time.monotonic() < began + due:
            if before is None and time.monotonic() >= began + options.warm:
                before, measured_s = (tokens(servers), of_prompts(servers)), time.monotonic()
            time.sleep(0.005)
        if at >= end:
            break
        threading.Thread(target=ask, args=(servers[instance], index, prompt, outputs), daemon=True).start()
    time.sleep(max(0.0, began + end - time.monotonic()))
    took_s = time.monotonic() - measured_s
    return (tokens(servers) - before[0]) / took_s, (of_prompts(servers) - before[1]) / took_s


def predict(folder: pathlib.Path, lines: list[str], count: int, options) -> dict[str, float]:
    path = folder / "prediction"
    path.write_text("\n".join(lines) + "\n")
    words = subprocess.run([PREDICT, "run", path, str(count), str(options.warm), str(options.measured)], check=True,
                           capture_output=True, text=True).stdout.split()
    return {name: float(value) for name, value in zip(words[::2], words[1::2])}


def say_loans(metrics, predict_with) -> None:
    questions = sum(one["kvahead_cluster_questions_total"] for one in metrics)
    wait_s = sum(one["kvahead_cluster_wait_seconds_total"] for one in metrics) / max(questions, 1)
    leader = max(metrics, key=lambda one: one["kvahead_cluster_plans_total"])
    expected = predict_with(wait_s)
    without, with_loans = (leader[f'kvahead_cluster_pace{{loans="{which}"}}'] for which in ("without", "with"))
    print(f"  a layer with loans waited {1e3 * wait_s:.2f} ms; steps took {without:.2f} of what was expected without loans and "
          f"{with_loans:.2f} with them; predicted with that wait {expected['tokens_per_s']:.1f} tokens/s, "
          f"{expected['loans']:.0f} loans", flush=True)


def measure(options, share: int, drawn: list[str]) -> None:
    cores = sorted(os.sched_getaffinity(0))
    requests = [(float(t), int(i), int(p), int(o)) for _, t, i, p, o in (line.split() for line in drawn)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        cluster = Cluster(Servers(folder), folder)
        try:
            members = [start(cluster, cores[index % len(cores)], share, options) for index in range(options.servers)]
            cluster.wait_complete()
            crowd = options.servers / len(cores)
            known = constants(members[0], options, crowd)
            said, computed = replay(members, requests, options)
            metrics = [member.metrics() for member in members]
            for member in members:
                cluster.kill(member)
            known = between(known, constants(start(cluster, cores[0], share, options), options, crowd))
            known += [f"lend_share {share / 100}", f"patience_s {options.patience}"]
            expected = predict(folder, [*known, *drawn], options.servers, options)
            lent = sum(one['kvahead_cluster_loans_total{event="lent"}'] for one in metrics)
            refused = sum(one['kvahead_requests_rejected_total{reason="context"}'] for one in metrics)
            print(f"| {share}% | {said:.1f} | {computed:.0f} | {refused:.0f} | {lent:.0f} | {expected['tokens_per_s']:.1f} "
                  f"| {expected['prompts_per_s']:.0f} | {expected['refused']:.0f} | {expected['loans']:.0f} "
                  f"| {expected['tokens_per_s'] / said:.2f} |", flush=True)
            if lent:
                say_loans(metrics, lambda wait_s: predict(folder, [*known, f"guest_wait_s {wait_s}", *drawn], options.servers,
                                                          options))
        finally:
            cluster.kill_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=9)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--page-bytes", type=int, default=64 * 23040, help="of 64 tokens' keys and values")
    parser.add_argument("--device-memory", type=int, default=100, help="MiB")
    parser.add_argument("--trace", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.036, help="of lengths")
    parser.add_argument("--rate", type=float, default=0.8, help="requests a second in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fits", action="store_true", help="leave out what no server holds alone")
    parser.add_argument("--servers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--patience", type=int, default=10, help="seconds, the servers' --cluster-patience")
    parser.add_argument("--shares", default="0,80")
    parser.add_argument("--warm", type=float, default=30)
    parser.add_argument("--measured", type=float, default=60)
    options = parser.parse_args()
    options.pages = int(options.device_memory * 2**20 // options.page_bytes)
    count = int(2 * options.rate * (options.warm + options.measured)) + 20
    drawn = subprocess.run([PREDICT, "draw", str(options.trace), str(options.scale), str(count), str(options.servers),
                            str(options.rate), str(options.seed)], check=True, capture_output=True, text=True).stdout.splitlines()
    if options.fits:
        drawn = [line for line in drawn if sum(map(int, line.split()[3:])) <= PAGE_TOKENS * options.pages]
    print("| may be lent | tokens/s | of prompts | refused | loans | predicted | of prompts | refused | loans | of measured |\n"
          "|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for share in map(int, options.shares.split(",")):
        measure(options, share, drawn)


if __name__ == "__main__":
    main()
