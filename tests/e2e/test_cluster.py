"""Servers that lend each other memory: real processes, UCX between them, a real etcd."""

from __future__ import annotations

import concurrent.futures
import contextlib
import re
import signal
import time

import pytest
from cluster import BORROWED, ETCD, LENT, LOANS, STATE, Cluster, free_port
from harness import EXIT_S, MODEL, Server, command, wait_until

pytestmark = [
    pytest.mark.skipif(not ETCD, reason="etcd is not installed"),
    pytest.mark.skipif("without clusters" in command(
        "serve", "--model", "none", "--cluster-listen", "127.0.0.1:0").stderr,
        reason="this build has no clusters"),
]

# 80 pages of the demo model: three of the requests below, which take up to 24 each.
SMALL = ("--device-memory", "20M", "--host-memory", "600M", "--threads", "1", "--waiting-time", "0")
PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS = 1200, 300, 7
LENT_S = 60  # for liveness only


@pytest.fixture
def cluster(servers, tmp_path):
    made = Cluster(servers, tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return [[100 + (i * 7919 + j * j * 31) % 3000 for j in range(PROMPT_TOKENS)] for i in range(REQUESTS)]


@pytest.fixture(scope="module")
def alone(prompts, tmp_path_factory) -> list[list[int]]:
    """What each prompt says on a server that is in no cluster."""
    path = tmp_path_factory.mktemp("alone") / "server.log"
    with Server(path, ("--threads", "2")) as server:
        return [ask(server, prompt) for prompt in prompts]


def ask(server: Server, prompt: list[int], **fields) -> list[int]:
    return server.tokens(prompt, max_tokens=OUTPUT_TOKENS, ignore_eos=True, **fields)


@contextlib.contextmanager
def asking(server: Server, prompts: list[list[int]], **fields):
    """All prompts at once; the futures of their tokens."""
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        yield [pool.submit(ask, server, prompt, **fields) for prompt in prompts]


def results(futures) -> list[list[int]]:
    return [future.result() for future in futures]


@contextlib.contextmanager
def borrowing(server: Server, prompts: list[list[int]], expected: list[list[int]]):
    """All prompts at once, as `asking`, from when pages are lent for them. A new leader waits until it
    knows its members, and requests may all be answered by then: they are asked again."""
    deadline = time.monotonic() + LENT_S
    while True:
        with asking(server, prompts) as futures:
            while not (lent := server.metrics()[BORROWED] > 0) and not all(f.done() for f in futures):
                time.sleep(0.02)
            if lent:
                yield futures
                return
            assert results(futures) == expected
        assert time.monotonic() < deadline, f"after {LENT_S} s no pages were lent"


def test_members_find_each_other_and_one_leads(cluster):
    first = cluster.start(*SMALL)
    second = cluster.start(*SMALL)
    third = cluster.start(*SMALL)
    cluster.wait_complete()
    numbers = {s.metrics()["kvahead_cluster_node"] for s in (first, second, third)}
    assert numbers == {1, 2, 3}
    third.stop()
    cluster.members.remove(third)
    cluster.wait_complete()


def test_who_finds_no_place_has_the_next_one(cluster):
    """Servers that were killed keep their places until their leases end."""
    few = (*SMALL, "--cluster-nodes", "2", "--cluster-lease", "8s")
    first = cluster.start(*few)
    for _ in range(2):
        dying = cluster.start(*few)
        wait_until("it has joined", lambda server=dying: server.metrics()["kvahead_cluster_node"] > 0)
        cluster.kill(dying)
    last = cluster.start(*few)
    wait_until("it has joined", lambda: last.metrics()["kvahead_cluster_node"] > 0)
    cluster.wait_complete()
    assert first.metrics()["kvahead_cluster_links"] == 1


def test_nothing_is_lent_to_a_name_that_is_not_found(cluster, prompts, alone):
    """They are connected, since who has the smaller number connects."""
    nowhere = "x" * 64  # longer than any name: no resolver has to be asked
    cluster.start(*SMALL, "--cluster-advertise", nowhere)
    second = cluster.start(*SMALL)
    cluster.wait_complete()
    with asking(second, prompts) as futures:
        assert results(futures) == alone
    metrics = second.metrics()
    assert metrics[LOANS % "begun"] == metrics[LOANS % "lost"] == 0
    assert "nothing is lent to node 1 until it is found" in second.log()


def test_nothing_is_lent_to_whom_nobody_can_ask(cluster, prompts, alone):
    """Messages and pages come to it; where it would be asked for attention nobody listens."""
    cluster.start(*SMALL)
    cluster.wait_complete()
    assert cluster.etcd.change_records(guest_port=free_port()) == 1
    second = cluster.start(*SMALL)
    cluster.wait_complete()
    with asking(second, prompts) as futures:
        assert results(futures) == alone
    metrics = second.metrics()
    assert metrics[LOANS % "lent"] == metrics[LOANS % "lost"] == 0
    cluster.wait_nothing_lent()


def test_others_lend_where_one_cannot_be_asked(cluster, prompts, alone):
    """The one with the most memory free is the first in every plan, until it is known to be apart."""
    cluster.start(*SMALL, "--device-memory", "80M")
    cluster.wait_complete()
    assert cluster.etcd.change_records(guest_port=free_port()) == 1
    third = cluster.start(*SMALL)
    debtor = cluster.start(*SMALL)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        assert third.metrics()[LENT] > 0
        assert results(futures) == alone
    cluster.wait_nothing_lent()


def test_a_debtor_says_what_it_says_alone(cluster, prompts, alone):
    debtor, creditor = cluster.start(*SMALL), cluster.start(*SMALL)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        assert wait_until("the creditor says so", lambda: creditor.metrics()[LENT] > 0)
        assert results(futures) == alone
    cluster.wait_nothing_lent()
    debtor.wait_idle()
    creditor.wait_idle()
    seen = debtor.metrics()
    assert seen[LOANS % "lent"] > 0 and seen[LOANS % "lost"] == 0
    assert seen["kvahead_remote_tokens_total"] > 0
    assert creditor.metrics()["kvahead_cluster_answers_total"] > 0


def test_a_request_that_stays_is_not_lent(cluster, prompts, alone):
    debtor = cluster.start(*SMALL)
    cluster.start(*SMALL)
    cluster.wait_complete()
    with asking(debtor, prompts, kv={"policy": "full", "spread": "never"}) as futures:
        assert results(futures) == alone
    assert debtor.metrics()[LOANS % "begun"] == 0


@pytest.mark.parametrize("keep", ["true", "false"])
def test_a_creditor_is_killed(cluster, prompts, alone, keep):
    options = (*SMALL, f"--cluster-keep-home={keep}")
    debtor, creditor = cluster.start(*options), cluster.start(*options)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        cluster.kill(creditor)
        assert results(futures) == alone
    cluster.wait_nothing_lent()
    debtor.wait_idle()
    restarts = debtor.metrics()["kvahead_restarts_total"]
    assert keep == "false" or restarts == 0


@pytest.mark.parametrize("keep", ["true", "false"])
def test_a_creditor_drains(cluster, prompts, alone, keep):
    """What it holds goes home before it ends: nobody loses an answer, and nothing is computed again."""
    options = (*SMALL, f"--cluster-keep-home={keep}", "--cluster-recall", "60s", "--drain-timeout", "5m")
    debtor, creditor = cluster.start(*options), cluster.start(*options)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        wait_until("the creditor has pages", lambda: creditor.metrics()[LENT] > 0)
        creditor.stop()
        cluster.members.remove(creditor)
        wait_until("all is at home", lambda: debtor.metrics()[BORROWED] == 0)
        assert results(futures) == alone
    debtor.wait_idle()
    seen = debtor.metrics()
    assert seen[LOANS % "lent"] > 0
    assert seen[LOANS % "lost"] == 0 and seen["kvahead_cluster_lost_total"] == 0
    assert seen["kvahead_restarts_total"] == 0
    assert "draining took longer" not in creditor.log()


def test_a_debtor_drains(cluster, prompts, alone):
    """Its requests keep what is lent to them until they end; then it ends."""
    options = (*SMALL, "--drain-timeout", "5m")
    debtor, creditor = cluster.start(*options), cluster.start(*options)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        debtor.process.send_signal(signal.SIGTERM)
        assert results(futures) == alone
    debtor.process.wait(EXIT_S)
    debtor.stop()
    cluster.members.remove(debtor)
    cluster.wait_nothing_lent()
    creditor.wait_idle()


def test_a_creditor_that_stands_still_is_given_up(cluster, prompts, alone):
    options = (*SMALL, "--cluster-answer", "500ms")
    debtor, creditor = cluster.start(*options), cluster.start(*options)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        creditor.process.send_signal(signal.SIGSTOP)
        assert results(futures) == alone
    creditor.process.send_signal(signal.SIGCONT)
    cluster.wait_nothing_lent()
    creditor.wait_idle()


def test_a_debtor_is_killed(cluster, prompts, alone):
    debtor, creditor = cluster.start(*SMALL), cluster.start(*SMALL)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        cluster.kill(debtor)
        for future, expected in zip(futures, alone, strict=True):
            assert future.exception() is not None or future.result() == expected
        assert any(future.exception() for future in futures)
    cluster.wait_nothing_lent()
    creditor.wait_idle()


def test_the_leader_is_killed(cluster, prompts, alone):
    servers = [cluster.start(*SMALL) for _ in range(3)]
    cluster.wait_complete()
    leader = cluster.leader()
    debtor = next(s for s in servers if s is not leader)
    with borrowing(debtor, prompts, alone) as futures:
        cluster.kill(leader)
        assert results(futures) == alone
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        assert results(futures) == alone


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_etcd_goes_away_and_comes_back(cluster, prompts, alone, how):
    debtor = cluster.start(*SMALL)
    cluster.start(*SMALL)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        cluster.etcd.kill(how)
        assert results(futures) == alone
    wait_until("it is seen", lambda: debtor.metrics()[STATE % "apart"] == 1)
    assert debtor.request("GET", "/ready").status == 200
    if how == signal.SIGSTOP:
        cluster.etcd.process.send_signal(signal.SIGCONT)
    else:
        cluster.etcd.start()
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        assert results(futures) == alone


def test_a_creditor_takes_back_what_it_needs_itself(cluster, prompts, alone):
    debtor, creditor = cluster.start(*SMALL), cluster.start(*SMALL)
    cluster.wait_complete()
    with borrowing(debtor, prompts, alone) as futures:
        with asking(creditor, prompts[:6]) as own:
            assert results(own) == alone[:6]
        assert results(futures) == alone
    cluster.wait_nothing_lent()


def test_a_request_is_longer_than_a_server(cluster, tmp_path):
    prompt = [100 + (j * j * 31 + j * 7) % 3000 for j in range(7000)]  # 110 pages; each server has 100
    small = (*SMALL, "--device-memory", "25M")
    first = cluster.start(*small)
    refused = first.post("/v1/completions", {"prompt": prompt, "max_tokens": 100})
    assert refused.status == 400 and refused.error()["code"] == "context_length_exceeded"
    for _ in range(3):
        cluster.start(*small)
    cluster.wait_complete()
    with Server(tmp_path / "alone.log", ("--threads", "2")) as large:
        expected = large.tokens(prompt, max_tokens=200, ignore_eos=True)
    assert first.tokens(prompt, max_tokens=200, ignore_eos=True, kv={"policy": "full", "report": True}) == expected
    assert first.metrics()["kvahead_remote_tokens_total"] > 0
    cluster.wait_nothing_lent()
    first.wait_idle()


def test_a_server_without_etcd_serves_by_itself(servers, cluster, prompts, alone):
    cluster.etcd.kill()
    server = cluster.start(*SMALL)
    assert server.metrics()[STATE % "joining"] == 1
    assert ask(server, prompts[0]) == alone[0]
    assert re.search(r"etcd at \S+: ", server.log())
    cluster.etcd.start()
    wait_until("it joins", lambda: server.metrics()[STATE % "joined"] == 1)


def test_servers_of_another_secret_or_model_stay_apart(servers, cluster, tmp_path):
    first = cluster.start(*SMALL)
    other = tmp_path / "other"
    other.write_text("another secret of more than sixteen bytes\n")
    options = list(cluster.options(*SMALL))
    options[options.index("--cluster-secret-file") + 1] = str(other)
    stranger = servers.start(*options)
    named = servers.start(*cluster.options(*SMALL, "--model-name", "another"))
    wait_until("it is there", lambda: first.metrics()["kvahead_cluster_members"] == 2)
    time.sleep(2)
    assert first.metrics()["kvahead_cluster_links"] == 0
    assert stranger.metrics()["kvahead_cluster_links"] == 0
    assert named.metrics()["kvahead_cluster_members"] == 1


@pytest.mark.parametrize(("options", "said"), [
    (["--cluster-listen", "127.0.0.1:0"], "--cluster-etcd"),
    (["--cluster-etcd", "http://127.0.0.1:1", "--cluster-secret-file", "SECRET"], "--cluster-etcd needs --cluster-listen"),
    (["--cluster-secret-file", "SECRET"], "--cluster-secret-file needs --cluster-listen"),
    (["--cluster-listen", "no address", "--cluster-etcd", "http://127.0.0.1:1",
      "--cluster-secret-file", "SECRET"], "no address"),
    (["--cluster-listen", "127.0.0.1:0", "--cluster-etcd", "ftp://x", "--cluster-secret-file", "SECRET"], "ftp://x"),
    (["--cluster-listen", "127.0.0.1:0", "--cluster-etcd", "http://127.0.0.1:1,http://127.0.0.1:2",
      "--cluster-secret-file", "SECRET"], "give each URL by itself"),
    (["--cluster-listen", "127.0.0.1:0", "--cluster-etcd", "http://127.0.0.1:1",
      "--cluster-secret-file", "MISSING"], "missing-secret"),
    (["--cluster-listen", "127.0.0.1:0", "--cluster-etcd", "http://127.0.0.1:1",
      "--cluster-secret-file", "SHORT"], "at least 16"),
    (["--cluster-listen", "127.0.0.1:0", "--cluster-etcd", "http://127.0.0.1:1",
      "--cluster-secret-file", "SECRET", "--cluster-name", "a/b"], "a/b"),
])
def test_wrong_options_are_named(options, said, tmp_path):
    (tmp_path / "secret").write_text("x" * 32)
    (tmp_path / "short").write_text("x\n")
    names = {"SECRET": tmp_path / "secret", "SHORT": tmp_path / "short", "MISSING": tmp_path / "missing-secret"}
    ended = command("serve", "--model", MODEL, "--port", "0", *[names.get(o, o) for o in options])
    assert ended.returncode != 0
    assert said in ended.stderr
