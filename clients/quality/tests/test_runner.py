"""Runs: every sample once, resumed after any end, failures counted and tried again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stub import count_tokens

from kvahead_quality.client import RequestFailed
from kvahead_quality.counter import TokenCounter
from kvahead_quality.errors import UsageError
from kvahead_quality.records import Record, RecordFile, check_identity, write_json
from kvahead_quality.runner import Plan, Runner
from kvahead_quality.specs import parse_policies
from kvahead_quality.tasks import TASKS

COUNTER = TokenCounter(count_tokens, "test", True)


def plan(**kwargs) -> Plan:
    given = {
        "tasks": {name: TASKS[name] for name in ("niah_single_1", "vt")},
        "lengths": [1024, 2048],
        "policies": parse_policies("full,kivi:1"),
        "samples": 2,
        "seed": 1,
    }
    return Plan(**(given | kwargs))


def run(client, path: Path, the_plan: Plan, **kwargs):
    records = RecordFile(path)
    try:
        outcome = Runner(client, COUNTER, the_plan, records, **kwargs).run()
    finally:
        records.close()
    return outcome, records


def test_run__every_sample_once_and_the_same_prompt_for_every_policy(
    serve, connect, tmp_path: Path
) -> None:
    server = serve()
    path = tmp_path / "samples.jsonl"
    outcome, records = run(connect(server), path, plan(), concurrency=3)
    assert (outcome.done, outcome.failed, outcome.missing, outcome.retries) == (16, 0, 0, 0)
    assert set(records.finished) == set(plan().wanted())
    assert all(record.score == 1.0 for record in records.finished.values())
    prompts: dict[str, list[str]] = {}
    for body in server.generations():
        prompts.setdefault(body["prompt"], []).append(body["kv"]["policy"])
    assert len(prompts) == 8
    assert all(sorted(policies) == ["full", "kivi"] for policies in prompts.values())
    assert len(path.read_text().splitlines()) == 16
    one = records.finished[("vt", 2048, "kivi:1", 0, 1)]
    assert one.kv == {"policy": "kivi", "bits": 1, "report": True}
    assert 0.95 * 2048 <= one.fitted_tokens <= 2048
    assert one.usage["prompt_tokens"] + 30 == one.fitted_tokens
    assert one.device_kv_bytes and one.host_kv_bytes


def test_run__resumes_without_asking_again(serve, connect, tmp_path: Path) -> None:
    server = serve()
    path = tmp_path / "samples.jsonl"
    run(connect(server), path, plan(samples=1))
    before = len(server.generations())
    outcome, _ = run(connect(server), path, plan(samples=1))
    assert (outcome.done, outcome.resumed) == (0, 8)
    assert len(server.generations()) == before == 8
    # More samples and one more policy: only the new ones are asked.
    more = plan(samples=2, policies=parse_policies("full,kivi:1,offload"))
    outcome, records = run(connect(server), path, more)
    assert (outcome.done, outcome.resumed, outcome.missing) == (16, 8, 0)
    assert len(records.finished) == 24
    # Another seed is another sample.
    outcome, _ = run(connect(server), path, plan(samples=1, seed=2))
    assert (outcome.done, outcome.resumed) == (8, 0)


def test_run__a_torn_last_line_is_asked_again(serve, connect, tmp_path: Path) -> None:
    server = serve()
    path = tmp_path / "samples.jsonl"
    run(connect(server), path, plan())
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    outcome, records = run(connect(server), path, plan())
    assert (outcome.done, outcome.resumed, records.torn_lines) == (1, 15, 1)
    again = RecordFile(path)
    assert len(again.finished) == 16 and again.torn_lines == 1


def test_run__passing_failures_are_counted(serve, connect, tmp_path: Path) -> None:
    outcome, _ = run(connect(serve(fail=[500, 500, 503])), tmp_path / "s", plan())
    assert (outcome.done, outcome.retries, outcome.missing) == (16, 3, 0)


def test_run__a_failed_sample_is_recorded_and_tried_again_by_the_next_run(
    serve, connect, tmp_path: Path
) -> None:
    server = serve(fail_if="chain(s)")
    outcome, records = run(connect(server), tmp_path / "s", plan())
    assert (outcome.done, outcome.failed, outcome.missing) == (8, 8, 8)
    assert "HTTP 400" in outcome.last_error
    assert all(key[0] == "vt" for key in records.failed)
    server.behaviour.fail_if = None
    outcome, records = run(connect(server), tmp_path / "s", plan())
    assert (outcome.done, outcome.resumed, outcome.missing) == (8, 8, 0)
    assert not records.failed
    reloaded = RecordFile(tmp_path / "s")
    assert len(reloaded.finished) == 16 and not reloaded.failed


def test_run__gives_up_after_too_many_failures(serve, connect, tmp_path: Path) -> None:
    server = serve(fail_always=400)
    outcome, records = run(connect(server), tmp_path / "s", plan(samples=50), failures_max=5)
    assert outcome.gave_up and outcome.failed == 5 and outcome.missing == 400
    assert len(records.failed) == 5


def test_run__a_length_that_no_sample_fits_is_not_possible_and_no_failure(
    serve, connect, tmp_path: Path
) -> None:
    server = serve()
    short = plan(lengths=[300, 1024], samples=3)
    outcome, records = run(connect(server), tmp_path / "s", short, failures_max=1)
    assert (outcome.done, outcome.failed, outcome.missing) == (3 * 2 * 3, 0, 0)
    assert outcome.impossible == len(records.impossible) == 3 * 2
    assert not outcome.gave_up and not records.failed
    assert {key[:2] for key in records.impossible} == {("vt", 300)}
    assert all("the smallest sample needs" in r.error for r in records.impossible.values())
    # It stays so: the next run has nothing to do.
    posts = len(server.requests)
    outcome, records = run(connect(server), tmp_path / "s", short, failures_max=1)
    assert (outcome.done, outcome.resumed) == (0, 3 * 2 * 4)
    assert (outcome.impossible, outcome.missing) == (3 * 2, 0)
    assert len(server.requests) == posts


def test_run__a_server_that_does_not_count_is_a_failure(serve, connect, tmp_path: Path) -> None:
    def unreachable(text: str) -> int:
        raise RequestFailed("no /tokenize today", 3)

    records = RecordFile(tmp_path / "s")
    counter = TokenCounter(unreachable, "x", True)
    outcome = Runner(connect(serve()), counter, plan(samples=1), records).run()
    assert (outcome.failed, outcome.missing, outcome.impossible) == (8, 8, 0)


def test_records__a_failure_that_proves_not_possible_is_no_failure_any_more(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "s")
    records.append(record(score=None, error="vt: the smallest sample needs 1"))
    assert records.failed and not records.impossible
    records.append(record(score=None, error="the same", impossible=True))
    assert records.impossible and not records.failed
    records.close()
    assert RecordFile(tmp_path / "s").impossible == records.impossible


def test_run__a_defect_in_a_worker_ends_the_run(serve, connect, tmp_path: Path) -> None:
    def broken(text: str) -> int:
        raise ZeroDivisionError("broken counter")

    records = RecordFile(tmp_path / "s")
    runner = Runner(connect(serve()), TokenCounter(broken, "x", True), plan(), records)
    with pytest.raises(ZeroDivisionError):
        runner.run()


def record(**kwargs) -> Record:
    given = {
        "task": "vt",
        "length": 1024,
        "policy": "full",
        "index": 0,
        "seed": 1,
        "score": 1.0,
        "output": "x",
        "references": ["x"],
        "error": None,
        "attempts": 1,
        "latency_s": 0.1,
        "fitted_tokens": 1000,
        "size": 9,
        "prompt_sha256": "",
    }
    return Record(**(given | kwargs))


def test_records__any_text_survives(tmp_path: Path) -> None:
    path = tmp_path / "s"
    odd = 'quote " newline \n \u2028 emoji \U0001f600 lone \ud800 null \x00'
    records = RecordFile(path)
    records.append(record(output=odd))
    records.close()
    assert RecordFile(path).finished[record().key].output == odd


def test_records__nothing_is_written_after_close(tmp_path: Path) -> None:
    records = RecordFile(tmp_path / "s")
    records.append(record())
    records.close()
    records.append(record(index=1))
    assert len(RecordFile(tmp_path / "s").finished) == 1


def test_records__a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("hello\n")
    with pytest.raises(UsageError, match="s:1 is not a sample record"):
        RecordFile(path)


@pytest.mark.parametrize("usage", [{}, {"kvahead": None}, {"kvahead": {"device_kv_bytes": "9"}}])
def test_record__kv_bytes_only_when_the_server_tells(usage: dict) -> None:
    assert record(usage=usage).device_kv_bytes is None
    for name in ("device_kv_bytes", "device_bytes"):
        assert record(usage={"kvahead": {name: 9}}).device_kv_bytes == 9
    assert record(usage={"kvahead": {"host_bytes": 0}}).host_kv_bytes == 0


def test_check_identity__refuses_to_mix_runs(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    check_identity(path, {"model": "a"})
    write_json(path, {"identity": {"model": "a", "api": "chat"}})
    check_identity(path, {"model": "a"})
    with pytest.raises(UsageError, match="model = 'a', this one has 'b'"):
        check_identity(path, {"model": "b"})
    for bad in ("[]", "{", json.dumps({"identity": 3})):
        path.write_text(bad)
        with pytest.raises(UsageError, match="not a run description"):
            check_identity(path, {"model": "a"})


def test_run__questions_of_a_context_share_it_and_come_after_the_first(
    serve, connect, tmp_path: Path
) -> None:
    server = serve()
    tasks = {name: TASKS[name] for name in ("facts", "niah_multikey_1", "vt")}
    the_plan = plan(tasks=tasks, lengths=[2048], questions=5)
    outcome, records = run(connect(server), tmp_path / "s.jsonl", the_plan, together=4)
    # Two contexts, two policies; 5, 4 and 1 questions.
    assert (outcome.done, outcome.missing) == (2 * 2 * (5 + 4 + 1), 0)
    assert set(records.finished) == set(the_plan.wanted())
    assert all(record.score == 1.0 for record in records.finished.values())
    assert {r.index: r.group for r in records.finished.values() if r.task == "facts"} == {
        i: i // 5 for i in range(10)
    }
    contexts = [body["prompt"].rsplit("\n", 1)[0] for body in server.generations()]
    assert len({c for c in contexts if "lockers" in c}) == 2
    again, _ = run(connect(server), tmp_path / "s.jsonl", the_plan, together=4)
    assert (again.done, again.resumed) == (0, 40)


def test_run__an_answer_ends_at_its_only_reference(serve, connect, tmp_path: Path) -> None:
    server = serve()
    tasks = {name: TASKS[name] for name in ("facts", "vt")}
    the_plan = plan(tasks=tasks, lengths=[2048], samples=1, stop_at_answer=True, answer_tokens=20)
    _, records = run(connect(server), tmp_path / "s.jsonl", the_plan)
    asked = {body["prompt"][:4]: body for body in server.generations()}
    reference = records.finished[("facts", 2048, "full", 0, 1)].references[0]
    assert asked["Read"]["stop"] == [reference]
    assert asked["Read"]["include_stop_str_in_output"] is True
    assert "stop" not in asked["Memo"]
    assert (asked["Read"]["max_tokens"], asked["Memo"]["max_tokens"]) == (16, 20)
