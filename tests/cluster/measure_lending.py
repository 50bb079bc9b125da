"""What lending wins on one machine: tokens a second of a debtor and a creditor, by how much may be lent.

    python3 tests/cluster/measure_lending.py --model smollm2-135m-instruct [--shares 0,20,40,60,80] [--plan waiting] [--pin]

Two servers with a thread each, an etcd of their own. The debtor decodes one long request, which takes most of its device
tier, while short ones wait; the creditor has fewer short ones than it has room for. Shares are the creditor's --cluster-lend;
--plan waiting lends all of that, beyond what pays. --pin gives each server a core. Prints a table of what was lent, what both
gave, and what the leader's model says of the state they were in, on average. Needs the packages of tests/e2e/requirements.txt.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import pathlib
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from cluster import LENT, Cluster  # noqa: E402
from conftest import Servers  # noqa: E402
from harness import PAGE_TOKENS, wait_until  # noqa: E402


@contextlib.contextmanager
def on_core(core: int | None):
    """What is started meanwhile stays on one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    yield
    os.sched_setaffinity(0, before)


def prompt_of(number: int, count: int) -> list[int]:
    """Ids of a prompt that no other number has."""
    return [100 + (number * 104729 + j * j * 31) % 2000 for j in range(count)]


class Load:
    """Requests of a kind, so many at once, until it is stopped."""

    def __init__(self, server, at_once: int, prompt_tokens: int, output_tokens: int) -> None:
        self.server, self.sizes, self.ends = server, (prompt_tokens, output_tokens), threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(at_once)]
        for thread in self.threads:
            thread.start()

    def run(self, index: int) -> None:
        turn = 0
        while not self.ends.is_set():
            prompt = prompt_of(100 * index + turn, self.sizes[0])
            try:
                self.server.tokens(prompt, max_tokens=self.sizes[1], ignore_eos=True)
            except (OSError, http.client.HTTPException):
                return  # the server was stopped
            turn += 1


def tokens(servers) -> float:
    return sum(server.metrics()["kvahead_generation_tokens_total"] for server in servers)


def measure(options, share: int) -> dict:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        servers = Servers(folder)
        cluster = Cluster(servers, folder)
        try:
            common = ("--threads", "1", "--waiting-time", "0", "--device-memory", options.device_memory, "--host-memory", "4G",
                      "--no-prefix-cache", "--cluster-plan", options.plan)
            cores = sorted(os.sched_getaffinity(0))[:2] if options.pin else [None, None]
            with on_core(cores[0]):
                debtor = cluster.start(*common, "--cluster-lend", "0", model=options.model)
            with on_core(cores[-1]):
                creditor = cluster.start(*common, "--cluster-lend", str(share), model=options.model)
            cluster.wait_complete()
            Load(debtor, 1, options.long, 2000)
            wait_until("the long one decodes", lambda: debtor.metrics()["kvahead_generation_tokens_total"] > 3, 300)
            Load(debtor, options.waiting, options.prompt, options.output)
            Load(creditor, options.own, options.prompt, options.output)
            time.sleep(options.warm)
            before, began, lent, model = tokens([debtor, creditor]), time.monotonic(), [], []
            parts = [tokens([debtor]), tokens([creditor])]
            leader = next(s for s in (debtor, creditor) if s.metrics()["kvahead_cluster_leads"] == 1)
            while time.monotonic() < began + options.seconds:
                time.sleep(0.5)
                lent.append(creditor.metrics()[LENT])
                model.append(leader.metrics()['kvahead_cluster_plan_tokens_per_second{plan="before"}'])
            took = time.monotonic() - began
            after = [tokens([debtor]), tokens([creditor])]
            page_bytes = options.page_bytes
            return {"share": share, "pages": sum(lent) / len(lent) / page_bytes, "all": (sum(after) - before) / took,
                    "debtor": (after[0] - parts[0]) / took, "creditor": (after[1] - parts[1]) / took,
                    "model": sum(model) / len(model)}
        finally:
            cluster.kill_all()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--page-bytes", type=float, default=PAGE_TOKENS * 22.5 * 1024, help="of 64 tokens' keys and values")
    parser.add_argument("--device-memory", default="200M")
    parser.add_argument("--long", type=int, default=5800, help="tokens of the long prompt")
    parser.add_argument("--waiting", type=int, default=16, help="short requests at the debtor, at once")
    parser.add_argument("--own", type=int, default=2, help="short requests at the creditor, at once")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a short request's prompt")
    parser.add_argument("--output", type=int, default=440, help="tokens of its answer")
    parser.add_argument("--pin", action="store_true", help="a core for each server")
    parser.add_argument("--shares", default="0,15,30,45,60,80")
    parser.add_argument("--plan", default="gain", choices=("gain", "waiting"), help="the servers' --cluster-plan")
    parser.add_argument("--warm", type=float, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    print("| may be lent | pages lent | tokens/s | debtor | creditor | the model | of measured |\n|---|---|---|---|---|---|---|", flush=True)
    for share in map(int, options.shares.split(",")):
        row = measure(options, share)
        print(f"| {row['share']}% | {row['pages']:.0f} | {row['all']:.1f} | {row['debtor']:.1f} | {row['creditor']:.1f} "
              f"| {row['model']:.1f} | {row['model'] / row['all']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
