"""Whole commands against the stub server: results, pictures, exit codes and one-line errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kvahead_quality.cli import main

SMALL = ["--lengths", "1k,2k", "--samples", "2", "--concurrency", "2"]
PNG = b"\x89PNG\r\n\x1a\n"


def ruler(server, out: Path, *more: str) -> int:
    given = ["ruler", "--base-url", server.url, "--out", str(out), *SMALL, *more]
    if "--tasks" not in more:
        given += ["--tasks", "niah_single_1,niah_multivalue"]
    return main(given)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return stderr's only line."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "Traceback" not in text, text
    assert text.startswith("kvahead-quality: ")
    return text.strip()


def test_ruler__results_report_and_pictures(serve, tmp_path: Path) -> None:
    server = serve(forgets=True)
    assert ruler(server, tmp_path, "--policies", "full,kivi:1") == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["server"]["model"] == "stub-model"
    assert results["server"]["version"] == {"version": "stub-1"}
    assert results["args"]["seed"] == 1 and results["args"]["lengths"] == "1k,2k"
    assert results["identity"]["tokenizer"] == "the server's /tokenize"
    assert {"python", "openai", "kvahead-quality", "task generators"} <= results["versions"].keys()
    cells = results["results"]["cells"]
    assert len(cells) == 8 and all(cell["estimate"]["count"] == 2 for cell in cells)
    full = [c for c in cells if c["policy"] == "full"]
    assert all(c["estimate"]["mean"] == 1.0 for c in full)
    assert {c["estimate"]["method"] for c in full} == {"wilson"}
    column = results["results"]["columns"][0]
    assert column["device_kv_bytes"] > 1e6 and column["host_kv_bytes"] == 0
    for fill in results["results"]["fills"]:
        assert 0.95 * fill["length"] <= fill["server_min"] <= fill["server_max"] <= fill["length"]
    for name in ("tasks", "score_by_length", "score_by_kv"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    text = (tmp_path / "report.md").read_text()
    assert "| niah_single_1 | 100.0 [34.2, 100.0] |" in text
    assert "Difference to `full`" in text and "kvahead-quality ruler --base-url" in text


def test_ruler__without_policies_no_kv_field_is_sent_and_the_report_says_why(
    serve, tmp_path: Path
) -> None:
    server = serve(kv_usage=False, usage=False)
    assert ruler(server, tmp_path) == 0
    assert server.generations() and not any("kv" in body for body in server.generations())
    text = (tmp_path / "report.md").read_text()
    assert "KV bytes are left out" in text
    assert not (tmp_path / "score_by_kv.png").exists()


def test_ruler__estimated_lengths_are_flagged(serve, tmp_path: Path, capsys) -> None:
    assert ruler(serve(tokenize=False), tmp_path) == 0
    assert "lengths are only estimated" in capsys.readouterr().err
    assert "**Lengths are estimated**" in (tmp_path / "report.md").read_text()


def test_ruler__a_server_that_counts_more_than_the_target_is_reported(
    serve, tmp_path: Path
) -> None:
    assert ruler(serve(extra_prompt_tokens=200), tmp_path) == 0
    assert "more than the target" in (tmp_path / "report.md").read_text()


def test_ruler__chat_reserves_tokens_for_the_template(serve, tmp_path: Path) -> None:
    server = serve()
    assert ruler(server, tmp_path, "--api", "chat") == 0
    fills = json.loads((tmp_path / "results.json").read_text())["results"]["fills"]
    assert all(fill["server_max"] <= fill["length"] - 64 for fill in fills)
    assert all("messages" in body for body in server.generations())


def test_ruler__missing_samples_give_exit_1_and_a_rerun_completes(
    serve, tmp_path: Path, capsys
) -> None:
    server = serve(fail_if="Some special magic")
    assert ruler(server, tmp_path) == 1
    assert "4 samples could not be obtained" in capsys.readouterr().err
    text = (tmp_path / "report.md").read_text()
    assert "Incomplete: 4 samples are missing" in text
    assert "failed 4 x: HTTP 400: made to fail with 400" in text
    assert (tmp_path / "tasks.png").exists()
    server.behaviour.fail_if = None
    asked = len(server.generations())
    assert ruler(server, tmp_path) == 0
    assert len(server.generations()) == asked + 4
    assert "Incomplete" not in (tmp_path / "report.md").read_text()


def test_ruler__what_is_not_possible_is_told_and_is_no_failure(
    serve, tmp_path: Path, capsys
) -> None:
    server = serve()
    more = ["--lengths", "300,1k", "--tasks", "niah_single_1,vt", "--max-failures", "1"]
    more += ["--policies", "full,kivi:1"]
    for _ in range(2):
        assert ruler(server, tmp_path, *more) == 0
        assert "4 samples are not possible: vt at 300 tokens" in capsys.readouterr().err
        text = (tmp_path / "report.md").read_text()
        assert "- **Not possible**: `vt` at 300 tokens, 4 of 4 samples: vt: the smallest" in text
        assert "| vt | not possible | not possible |" in text
        assert "Incomplete" not in text and "failed" not in text
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [(i["task"], i["length"], i["count"]) for i in results["impossible"]] == [("vt", 300, 4)]
    assert results["missing"] == 0 and results["failures"] == []
    assert main(["report", "--out", str(tmp_path)]) == 0


def test_ruler__nothing_possible_is_no_success(serve, tmp_path: Path) -> None:
    given = ["--lengths", "300,310", "--tasks", "vt"]
    assert ruler(serve(), tmp_path, *given) == 1
    assert "| vt | not possible |" in (tmp_path / "report.md").read_text()
    assert main(["report", "--out", str(tmp_path)]) == 1


def test_needle__what_is_not_possible_is_told(serve, tmp_path: Path) -> None:
    given = ["--out", str(tmp_path), "--samples", "1", "--depths", "0,50", "--lengths", "256,1k"]
    assert main(["needle", "--base-url", serve().url, *given, "--overhead", "200"]) == 0
    assert "| 50% | not possible | 100 |" in (tmp_path / "report.md").read_text()


def test_ruler__retries_are_told(serve, tmp_path: Path) -> None:
    server = serve()
    assert ruler(server, tmp_path, "--samples", "1") == 0
    server.behaviour.fail = [500, 503]
    assert ruler(server, tmp_path, "--samples", "2") == 0
    assert "- 2 requests had to be repeated." in (tmp_path / "report.md").read_text()


def test_needle__grid_and_pictures(serve, tmp_path: Path) -> None:
    server = serve(forgets=True)
    args = ["needle", "--base-url", server.url, "--out", str(tmp_path), *SMALL]
    assert main([*args, "--depths", "0,50,100", "--policies", "full,kivi:1"]) == 0
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert results["tasks"] == ["needle_d0", "needle_d50", "needle_d100"]
    assert (tmp_path / "needle.png").read_bytes().startswith(PNG)
    assert "| 50% | 100 | 100 |" in (tmp_path / "report.md").read_text()


def test_prompts__are_those_of_a_run(serve, tmp_path: Path, capsys) -> None:
    given = ["--lengths", "1k,2k", "--samples", "2", "--seed", "5", "--tokenizer", "estimate"]
    assert main(["prompts", "--tasks", "niah_single_1,vt", *given]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    cells = [(line["task"], line["length"], line["index"]) for line in lines]
    lengths, indexes = (1024, 2048), (0, 1)
    assert cells == [(t, n, i) for t in ("niah_single_1", "vt") for n in lengths for i in indexes]
    assert len({line["prompt"] for line in lines}) == len(lines)
    server = serve()
    more = ["--tasks", "niah_single_1,vt", "--seed", "5", "--tokenizer", "estimate"]
    assert ruler(server, tmp_path, *more) == 0
    asked = {body.get("prompt") for _, _, body in server.requests}
    assert {line["prompt"] for line in lines} <= asked
    capsys.readouterr()
    assert main(["prompts", "--tasks", "vt", "--lengths", "300", "--tokenizer", "estimate"]) == 2
    assert "target length is 300" in one_line(capsys)


def test_report__needs_no_server(serve, tmp_path: Path) -> None:
    assert ruler(serve(), tmp_path) == 0
    before = (tmp_path / "report.md").read_text()
    (tmp_path / "report.md").unlink()
    (tmp_path / "tasks.png").unlink()
    assert main(["report", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "report.md").read_text() == before
    assert (tmp_path / "tasks.png").exists()


def test_run__the_api_key_is_used_and_never_written(serve, tmp_path: Path) -> None:
    server = serve()
    assert ruler(server, tmp_path, "--api-key", "sesame-4711") == 0
    assert {h["authorization"] for _, h, _ in server.requests} == {"Bearer sesame-4711"}
    for path in tmp_path.iterdir():
        assert b"sesame-4711" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tasks", "niah_single_9"], "unknown task 'niah_single_9'"),
        (["--policies", "kivi:1.5"], "bad policy spec 'kivi:1.5'"),
        (["--policies", "full,evict"], "'evict' does not work here: HTTP 400: unknown policy"),
        (["--lengths", "64k"], "65536 tokens is above the limit of model 'stub-model', 32768"),
        (["--lengths", "much"], "'much' is not a length"),
        (["--model", "other"], "HTTP 404: no model 'other' (--model: 'other' is not among"),
        (["--samples", "0"], "'0' is not a whole number"),
        (["--timeout", "0"], "not a number of seconds"),
        (["--tokenizer", "/nonexistent/tokenizer.json"], "--tokenizer"),
        (["--colour", "red"], "unrecognized arguments: --colour red"),
    ],
)
def test_bad_input__one_line_and_exit_2(
    serve, tmp_path: Path, capsys, more: list[str], says: str
) -> None:
    assert ruler(serve(), tmp_path, *more) == 2
    assert says in one_line(capsys)
    assert not (tmp_path / "samples.jsonl").exists()


def test_bad_input__no_server_no_tokenizer_no_folder(serve, tmp_path: Path, capsys) -> None:
    assert main(["ruler", "--base-url", "http://127.0.0.1:1", "--out", str(tmp_path)]) == 2
    assert "cannot use http://127.0.0.1:1/v1" in one_line(capsys)
    assert ruler(serve(tokenize=False), tmp_path, "--tokenizer", "server") == 2
    assert "no usable /tokenize" in one_line(capsys)
    file = tmp_path / "file"
    file.write_text("")
    assert ruler(serve(), file) == 2
    assert "File exists" in one_line(capsys)
    assert main([]) == 2
    assert "required: command" in one_line(capsys)
    assert main(["report", "--out", str(tmp_path / "none")]) == 2
    assert "cannot read" in one_line(capsys)


def test_bad_input__a_folder_of_another_run(serve, tmp_path: Path, capsys) -> None:
    assert ruler(serve(), tmp_path) == 0
    capsys.readouterr()
    assert ruler(serve(models=["other"]), tmp_path) == 2
    assert "holds a run with model = 'stub-model', this one has 'other'" in one_line(capsys)


def test_interrupt__ends_in_good_order_and_can_be_continued(serve, tmp_path: Path) -> None:
    hold = threading.Event()
    server = serve(hold=hold)
    command = [sys.executable, "-m", "kvahead_quality", "ruler", "--base-url", server.url]
    command += ["--out", str(tmp_path), *SMALL, "--tasks", "niah_single_1"]
    process = subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stderr=subprocess.PIPE,
        text=True,
        # Tests may have been started in the background, where shells make SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not server.generations():  # ends at the latest when the process does
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    hold.set()
    assert process.returncode == 130
    assert "Traceback" not in errors and "run the same command again to continue" in errors
    server.behaviour.hold = None
    assert main([*command[3:]]) == 0
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == 4


def test_options__have_no_short_forms(tmp_path: Path, capsys) -> None:
    # A key that is given by one would be kept in reports.
    given = ["--base-url", "http://127.0.0.1:1", "--out", str(tmp_path), "--api-k", "secret"]
    assert main(["ruler", *given]) == 2
    assert "--api-k" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
