"""The command line: `kvahead-quality ruler | needle | report | prompts | tasks`.

Exit codes: 0 all samples obtained that are possible; 1 some are missing, or none is possible; 2 bad
input or an unusable server; 130 interrupted (a rerun of the same command continues).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markdown import Markdown

from . import __version__, report
from .client import Client, RequestFailed, ServerFacts, ServerParams, one_line
from .counter import TokenCounter, estimated, from_file
from .errors import UsageError
from .progress import RunProgress
from .records import RecordFile, check_identity, write_json
from .runner import Outcome, Plan, Runner
from .specs import parse_depths, parse_lengths, parse_policies, parse_tasks
from .summary import Summary, summarise
from .tasks import DEFAULT_TASKS, GENERATOR_VERSION, TASKS, NeedleGridTask, Task, TaskError, fit

EXIT_OK, EXIT_MISSING, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130
CHAT_OVERHEAD_TOKENS = 64


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` has the rest."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # No short forms: a key that is given by one would be kept in reports.
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _whole(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number in {low}..{high}")
        return value

    return parse


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds in 0..86400")
    return value


def _add_run_options(parser: argparse.ArgumentParser, lengths: str, samples: int) -> None:
    add = parser.add_argument
    add("--base-url", required=True, help="the server, e.g. http://127.0.0.1:8080/v1")
    add("--model", help="model id (default: the first that the server lists)")
    add("--api-key", help="API key (default: OPENAI_API_KEY, else none)")
    add("--api", choices=("completions", "chat"), default="completions")
    add("--lengths", default=lengths, help=f"tokens, e.g. 4096,8k (default {lengths})")
    add(
        "--policies",
        help="KV policies of kvahead, NAME[:BITS[:TOPK]], e.g. full,kivi:1,specache:1:64,offload; "
        "'default' sends no kv field (default: no kv field at all, for any server)",
    )
    add("--samples", type=_whole(1, 100_000), default=samples, help=f"per cell ({samples})")
    add(
        "--questions",
        type=_whole(1, 60),
        default=1,
        help="about one context, where a task has several; --samples then counts contexts (1)",
    )
    add(
        "--together",
        type=_whole(1, 512),
        default=1,
        help="questions and policies of a context that are asked at a time, after the first (1)",
    )
    add(
        "--stop-at-answer",
        action="store_true",
        help="end an answer at its reference, where a task has one: the same score for fewer "
        "tokens (kvahead and vLLM: needs include_stop_str_in_output)",
    )
    add(
        "--answer-tokens",
        type=_whole(1, 1_000_000),
        help="cut answers at so many tokens, where the task's own budget is larger",
    )
    add("--concurrency", type=_whole(1, 512), default=4, help="contexts at a time (4)")
    add("--seed", type=_whole(0, 2**63 - 1), default=1)
    add("--out", help="folder for results; an existing run there is continued")
    add(
        "--tokenizer",
        default="auto",
        help="how lengths are measured: server (its /tokenize), a tokenizer.json, estimate, or "
        "auto: server if it can, else estimate, with a warning (auto)",
    )
    add(
        "--overhead",
        type=_whole(0, 4096),
        help="tokens kept free for the chat template "
        f"(0 with completions, {CHAT_OVERHEAD_TOKENS} with chat)",
    )
    add(
        "--no-answer-prefix",
        action="store_true",
        help="send the question without the first words of the answer",
    )
    add("--timeout", type=_seconds, default=600.0, help="seconds per attempt (600)")
    add("--retries", type=_whole(0, 50), default=6, help="after a failed attempt (6)")
    add(
        "--max-failures",
        type=_whole(1, 1_000_000),
        default=20,
        help="stop after so many samples that could not be obtained (20)",
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser = _Parser(prog="kvahead-quality", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    ruler = commands.add_parser("ruler", help="RULER's synthetic tasks")
    _add_run_options(ruler, "4k,8k", 20)
    ruler.add_argument(
        "--tasks",
        default=",".join(DEFAULT_TASKS),
        help=f"of {', '.join(TASKS)}, or all (default: the eight of {', '.join(DEFAULT_TASKS)})",
    )
    needle = commands.add_parser("needle", help="one needle, depth x length")
    _add_run_options(needle, "2k,4k,8k", 3)
    needle.add_argument(
        "--depths", default="11", help="a count of evenly spaced ones (11), or percents: 0,50,100"
    )
    needle.add_argument("--haystack", choices=("essay", "noise"), default="essay")
    again = commands.add_parser("report", help="write report and pictures again, without a server")
    again.add_argument("--out", required=True, help="the folder of a run")
    prompts = commands.add_parser(
        "prompts", help="write the prompts of tasks as JSON lines, for `kvahead eval --prompts`"
    )
    prompts.add_argument("--tasks", default="niah_single_1", help="names, or all (niah_single_1)")
    prompts.add_argument("--lengths", default="4k", help="tokens, e.g. 4096,8k (4k)")
    prompts.add_argument("--samples", type=_whole(1, 100_000), default=4, help="per cell (4)")
    prompts.add_argument("--seed", type=_whole(0, 2**63 - 1), default=1)
    prompts.add_argument("--tokenizer", required=True, help="a tokenizer.json, or estimate")
    commands.add_parser("tasks", help="list the tasks")
    return parser


def _plan(args: argparse.Namespace) -> tuple[Plan, dict[str, float] | None]:
    """Turn arguments into a plan; the second value maps needle tasks to their depths."""
    depths: dict[str, float] | None = None
    tasks: dict[str, Task]
    if args.command == "needle":
        grid = [NeedleGridTask(d, args.haystack) for d in parse_depths(args.depths)]
        tasks = {task.name: task for task in grid}
        depths = {task.name: task.depth for task in grid}
    else:
        tasks = {name: TASKS[name] for name in parse_tasks(args.tasks)}
    overhead = args.overhead
    if overhead is None:
        overhead = CHAT_OVERHEAD_TOKENS if args.api == "chat" else 0
    return (
        Plan(
            tasks=tasks,
            lengths=parse_lengths(args.lengths),
            policies=parse_policies(args.policies),
            samples=args.samples,
            seed=args.seed,
            overhead=overhead,
            questions=args.questions,
            stop_at_answer=args.stop_at_answer,
            answer_tokens=args.answer_tokens,
        ),
        depths,
    )


def _check_lengths(plan: Plan, facts: ServerFacts) -> None:
    for length in plan.lengths:
        if facts.length_max is not None and length > facts.length_max:
            raise UsageError(
                f"--lengths: {length} tokens is above the limit of model {facts.model!r}, "
                f"{facts.length_max} tokens"
            )


def _check_requests(client: Client, plan: Plan, facts: ServerFacts) -> None:
    """Ask one token under each policy: a refused policy or model is known before the run."""
    for policy in plan.policies:
        try:
            client.generate("The grass is", "", 1, policy.kv)
        except RequestFailed as error:
            if policy.kv is not None:
                what = f"--policies: {policy.label!r} does not work here: {error}"
            else:
                what = f"a first request with model {facts.model!r} fails: {error}"
            if facts.models and facts.model not in facts.models:
                what += f" (--model: {facts.model!r} is not among {', '.join(facts.models[:8])})"
            raise UsageError(what) from None


def _counter(args: argparse.Namespace, client: Client, console: Console) -> TokenCounter:
    if args.tokenizer == "estimate":
        return estimated()
    if args.tokenizer not in ("auto", "server"):
        return from_file(args.tokenizer)
    counter = client.token_counter()
    if counter is not None:
        return counter
    if args.tokenizer == "server":
        raise UsageError(f"--tokenizer server: {client.root_url} has no usable /tokenize route")
    console.print(
        "warning: the server has no /tokenize route; lengths are only estimated "
        "(give --tokenizer path/to/tokenizer.json for exact ones)",
        style="yellow",
        markup=False,
    )
    return estimated()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _command_line(argv: Sequence[str]) -> str:
    """Write the command without its API key."""
    shown: list[str] = []
    hide = False
    for word in argv:
        if hide:
            shown.append("...")
        elif word.startswith("--api-key="):
            shown.append("--api-key=...")
        else:
            shown.append(word)
        hide = word == "--api-key"
    return shlex.join(["kvahead-quality", *shown])


def _describe(
    args: argparse.Namespace,
    argv: Sequence[str],
    plan: Plan,
    client: Client,
    facts: ServerFacts,
    counter: TokenCounter,
) -> dict[str, Any]:
    """Everything that a reader needs to repeat the run (run.json)."""
    shown = {name: value for name, value in vars(args).items() if name != "api_key"}
    identity: dict[str, object] = {
        "kind": args.command,
        "model": facts.model,
        "api": args.api,
        "answer_prefix": not args.no_answer_prefix,
        "overhead": plan.overhead,
        "tokenizer": counter.source,
        "tokenizer_exact": counter.exact,
        "generator_version": GENERATOR_VERSION,
        "questions": args.questions,
        "answer_tokens": args.answer_tokens,
    }
    if args.command == "needle":
        identity["haystack"] = args.haystack
    return {
        "identity": identity,
        "args": shown,
        "command": _command_line(argv),
        "server": {"base_url": client.base_url, **asdict(facts)},
        "policies": [asdict(policy) for policy in plan.policies],
        "versions": report.versions(),
        "started": _now(),
        "finished": None,
    }


def _run(args: argparse.Namespace, argv: Sequence[str], console: Console) -> int:
    plan, depths = _plan(args)
    client = Client(
        ServerParams(
            base_url=args.base_url,
            api_key=args.api_key or os.environ.get("OPENAI_API_KEY") or "none",
            model=args.model,
            api=args.api,
            answer_prefix=not args.no_answer_prefix,
            timeout_s=args.timeout,
            retries=args.retries,
        )
    )
    facts = client.discover()
    _check_lengths(plan, facts)
    counter = _counter(args, client, console)
    _check_requests(client, plan, facts)
    folder = Path(args.out or f"kvahead-quality-{args.command}")
    folder.mkdir(parents=True, exist_ok=True)
    run = _describe(args, argv, plan, client, facts, counter)
    check_identity(folder / "run.json", run["identity"])
    records = RecordFile(folder / "samples.jsonl")
    write_json(folder / "run.json", run)
    keys = plan.wanted()
    resumed = sum(records.is_settled(key) for key in keys)
    if resumed:
        console.print(f"{folder}: {resumed} of {len(keys)} samples are there already", markup=False)
    try:
        with RunProgress(len(keys), resumed, console) as progress:
            runner = Runner(
                client,
                counter,
                plan,
                records,
                concurrency=args.concurrency,
                together=args.together,
                failures_max=args.max_failures,
                on_record=progress.on_record,
            )
            outcome = runner.run()
    finally:
        records.close()
    run["finished"] = _now()
    run["outcome"] = asdict(outcome)
    write_json(folder / "run.json", run)
    summary, text = _report(plan, run, folder, records, depths)
    _say(console, text, folder, outcome, summary)
    return EXIT_INTERRUPTED if outcome.interrupted else _exit_code(summary)


def _exit_code(summary: Summary) -> int:
    """What is not possible is not missing; but a run of nothing else has no result."""
    measured = any(cell.estimate.count for cell in summary.cells)
    return EXIT_OK if measured and not summary.missing else EXIT_MISSING


def _report(
    plan: Plan,
    run: dict[str, Any],
    folder: Path,
    records: RecordFile,
    depths: dict[str, float] | None,
) -> tuple[Summary, str]:
    summary = summarise(
        tasks=list(plan.tasks),
        lengths=plan.lengths,
        policies=[policy.label for policy in plan.policies],
        samples=plan.samples,
        questions={task: plan.asked(task) for task in plan.tasks},
        seed=plan.seed,
        answer_tokens={name: task.max_tokens for name, task in plan.tasks.items()},
        finished=records.finished,
        failed=records.failed,
        impossible=records.impossible,
    )
    return summary, report.write(summary, run, folder, depths)


def _say(console: Console, text: str, folder: Path, outcome: Outcome, summary: Summary) -> None:
    """Show the tables, where the files are, and what is missing."""
    tables = "\n".join(line for line in text.split("\n") if not line.startswith("!["))
    Console().print(Markdown(tables.split("## Prompt lengths")[0]))
    console.print(f"results: {folder / 'report.md'}", markup=False, soft_wrap=True)
    for cell in summary.impossible:
        console.print(
            f"{cell.count} samples are not possible: {cell.task} at {cell.length} tokens: "
            f"{cell.reason}",
            markup=False,
            soft_wrap=True,
        )
    if outcome.interrupted:
        console.print("interrupted: run the same command again to continue", markup=False)
    elif outcome.gave_up:
        console.print(
            f"stopped after {outcome.failed} failed samples, {outcome.missing} are missing; last: "
            f"{outcome.last_error}; run the same command again to continue",
            markup=False,
            soft_wrap=True,
        )
    elif outcome.missing:
        console.print(
            f"{outcome.missing} samples could not be obtained; last: {outcome.last_error}",
            markup=False,
            soft_wrap=True,
        )


def _report_again(args: argparse.Namespace, console: Console) -> int:
    folder = Path(args.out)
    path = folder / "run.json"
    try:
        run = json.loads(path.read_text("utf-8"))
        saved = argparse.Namespace(**run["args"])
        plan, depths = _plan(saved)
    except OSError as error:
        raise UsageError(f"--out: cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"--out: {path} is not a run description") from None
    run["finished"] = run["finished"] or "unfinished"
    records = RecordFile(folder / "samples.jsonl")
    summary, _ = _report(plan, run, folder, records, depths)
    console.print(f"results: {folder / 'report.md'}", markup=False, soft_wrap=True)
    return _exit_code(summary)


def _list_tasks() -> int:
    for name, task in TASKS.items():
        note = "" if name in DEFAULT_TASKS else "  (not in the default set)"
        print(f"{name:18} answer budget {task.max_tokens:3} tokens{note}")
    return EXIT_OK


def _prompts(args: argparse.Namespace) -> int:
    """Write one object per line: the prompt with the answer's first words, and where it is from."""
    counter = estimated() if args.tokenizer == "estimate" else from_file(args.tokenizer)
    for name in parse_tasks(args.tasks):
        for length in parse_lengths(args.lengths):
            for index in range(args.samples):
                try:
                    sample = fit(TASKS[name], length, args.seed, index, counter.count).sample
                except TaskError as error:
                    raise UsageError(f"--lengths: {error}") from None
                line = {
                    "prompt": sample.text,
                    "references": sample.references,
                    "task": name,
                    "length": length,
                    "seed": args.seed,
                    "index": index,
                }
                print(json.dumps(line, ensure_ascii=False))
    return EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every foreseen fault is one line on stderr."""
    words = list(sys.argv[1:] if argv is None else argv)
    console = Console(stderr=True)
    try:
        args = build_parser().parse_args(words)
        if args.command == "tasks":
            return _list_tasks()
        if args.command == "prompts":
            return _prompts(args)
        if args.command == "report":
            return _report_again(args, console)
        return _run(args, words, console)
    except UsageError as error:
        print(f"kvahead-quality: {one_line(error, 1000)}", file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"kvahead-quality: {one_line(error, 1000)}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("kvahead-quality: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def entry() -> None:
    """Console script."""
    sys.exit(main())
