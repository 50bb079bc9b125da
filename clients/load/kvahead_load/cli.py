"""The command line: `kvahead-load`.

Exit codes: 0 every request was answered (or left as it was told to); 1 some failed; 2 bad input or
an unusable server; 130 interrupted (what was measured until then is written). With --rate auto
refusals are a result, not a failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from . import __version__, gauges, metrics, plots, report, workload
from .client import Client, Record, ServerParams, one_line
from .errors import Interrupted, UsageError
from .numbers import parse_distribution, parse_share
from .plan import Plan, limits_of
from .runner import Outcome, Point, Runner
from .walk import KEPT_SHARE, Walk

Result = TypeVar("Result")

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _number(low: float, high: float, whole: bool) -> Any:
    def parse(text: str) -> float:
        try:
            value: float = int(text) if whole else float(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            what = "a whole number" if whole else "a number"
            raise argparse.ArgumentTypeError(f"{text!r} is not {what} in {low:g}..{high:g}")
        return value

    return parse


def _seconds(text: str) -> float:
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return _number(0.01, 864000, False)(text[:-1] if unit else text) * (unit or 1)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = _Parser(prog="kvahead-load", description=__doc__.split("\n")[0])
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    server = parser.add_argument_group("server")
    add = server.add_argument
    add("--base-url", required=True, help="the server, e.g. http://127.0.0.1:8000/v1")
    add("--model", default="", help="model id (default: the first that the server lists)")
    add("--api-key", help="API key (default: OPENAI_API_KEY, else none)")
    add("--api", choices=("completions", "chat"), default="completions")
    add(
        "--extra", default="{}", help='fields of every body, e.g. \'{"kv": {"policy": "offload"}}\''
    )
    add("--ignore-eos", action="store_true",
        help="let outputs be as long as asked (kvahead, vLLM)")  # fmt: skip
    add("--timeout", type=_number(0.001, 86400, False), default=600.0, help="seconds (600)")
    load = parser.add_argument_group("load (one of --concurrency, --rate, --trace)")
    add = load.add_argument
    add("--concurrency", help="requests at a time; several, 1,4,16, are a sweep")
    add("--rate", help="requests per second, whatever becomes of the earlier ones; a sweep too; "
        "auto or auto:FIRST: rising until under 90%% of the requests are good")  # fmt: skip
    add("--trace", type=Path, help="file of arrivals and lengths: JSON lines, or Azure's CSV")
    add("--arrivals", default="poisson", help="with --rate: poisson, constant, gamma:CV (poisson)")
    add("--speed", type=_number(0.001, 1000, False), default=1.0, help="of a trace's time (1)")
    add("--requests", type=_number(1, 10_000_000, True), help="per load (100; a trace: all)")
    add("--duration", type=_seconds, help="to send for, per load: seconds, or with s, m, h; "
        "of --rate and --trace what is planned within it")  # fmt: skip
    add("--warm-up", type=_number(0, 100_000, True), default=0,
        help="first requests of each load that do not count (0)")  # fmt: skip
    add("--in-flight-max", type=_number(1, 1_000_000, True), default=4096,
        help="of --rate and --trace: above it requests fail here (4096)")  # fmt: skip
    asked = parser.add_argument_group("requests")
    add = asked.add_argument
    add("--prompt-tokens", default="512", help="N, LOW-HIGH or lognormal:MEDIAN:SIGMA (512)")
    add("--output-tokens", default="128", help="the same (128)")
    add("--prefix-tokens", type=_number(0, 2**24, True), default=0,
        help="of each prompt: its beginning, shared with others (0)")  # fmt: skip
    add("--prefix-groups", type=_number(1, 1_000_000, True), default=1,
        help="different such beginnings (1)")  # fmt: skip
    add("--token-ids", type=_number(100, 2**24, True), metavar="VOCAB",
        help="send prompts as token ids of a vocabulary of this size (completions)")  # fmt: skip
    add("--cancel", default="0", help="share of clients that leave midway, e.g. 0.1 or 10%% (0)")
    add("--seed", type=_number(0, 2**63 - 1, True), default=1)
    good = parser.add_argument_group("goodput: limits in ms that a good request keeps")
    for name, what in (("ttft", "time to first token"), ("tpot", "time per output token"),
                       ("itl", "99th percentile of its gaps"),
                       ("e2e", "time of the whole request")):  # fmt: skip
        good.add_argument(f"--limit-{name}", type=_number(0.001, 1e9, False), help=what)
    out = parser.add_argument_group("results")
    out.add_argument("--out", type=Path, help="folder for results.json, requests.jsonl, pictures")
    out.add_argument("--json", action="store_true", help="print results.json to standard output")
    out.add_argument("--no-plots", action="store_true", help="write no pictures")
    return parser


# ---- from arguments to what is run ---------------------------------------------------------------


def _extra(args: argparse.Namespace) -> dict[str, Any]:
    try:
        extra = json.loads(args.extra)
    except ValueError as error:
        raise UsageError(f"--extra: {error}") from None
    if not isinstance(extra, dict):
        raise UsageError("--extra: not a JSON object")
    return extra | ({"ignore_eos": True} if args.ignore_eos else {})


def _shape(args: argparse.Namespace) -> workload.Shape:
    if args.token_ids and args.api == "chat":
        raise UsageError("--token-ids: chat takes text only")
    return workload.Shape(
        prompt_tokens=parse_distribution(args.prompt_tokens, "--prompt-tokens"),
        output_tokens=parse_distribution(args.output_tokens, "--output-tokens"),
        prefixes=workload.Prefixes(args.prefix_tokens, args.prefix_groups),
        cancel_share=parse_share(args.cancel, "--cancel"),
        vocab=args.token_ids,
        seed=args.seed,
    )


async def _calibrate(client: Client, shape: workload.Shape) -> workload.Shape:
    """Ask the server how many tokens the words make, where it can tell."""
    if shape.vocab:
        return shape
    words = 2000
    text = workload.Texts(
        workload.Shape(shape.prompt_tokens, shape.output_tokens, tokens_per_word=1.0, seed=0)
    ).make("calibration", words)
    assert isinstance(text, str)
    count = await client.count_tokens(text)
    if count is None:
        return shape
    return workload.Shape(**(vars(shape) | {"tokens_per_word": count / words}))


# ---- running -------------------------------------------------------------------------------------


def _source(
    args: argparse.Namespace, shape: workload.Shape, rows: list[workload.TraceRow], number: int
) -> Iterator[workload.Request]:
    # Each load of a sweep asks for something else, or servers would find the prompts of the one
    # before in their prefix caches.
    if number:
        shape = replace(shape, seed=f"{shape.seed}/{number}")
    return workload.from_trace(rows, shape, args.speed) if rows else workload.synthetic(shape)


def _total(point: Point, rows: list[workload.TraceRow], speed: float) -> int | None:
    """How many requests there will be, or about so many; None: that depends on the server."""
    counts = [] if point.requests is None else [point.requests + point.warm_up]
    if rows:
        within_s = math.inf if point.duration_s is None else point.duration_s * speed
        counts.append(sum(row.at_s <= within_s for row in rows))
    elif point.duration_s is not None and point.rate is not None:
        counts.append(round(point.rate * point.duration_s))
    return min(counts, default=None)


async def _run_point(
    args: argparse.Namespace,
    client: Client,
    source: Iterator[workload.Request],
    point: Point,
    on_record: Any,
    stop: asyncio.Event,
) -> Outcome:
    sampler = gauges.Sampler(client)
    await sampler.start()
    outcome = await Runner(client, source, point, on_record, stop).run()
    await sampler.stop()
    outcome.server = gauges.summarise(sampler.samples, outcome.counted_s, outcome.ended_s)
    return outcome


@dataclass
class _Sweep:
    """What was run; `shape` with what was found out about the server's tokens."""

    outcomes: list[Outcome]
    walk: Walk | None
    facts: dict[str, Any]
    shape: workload.Shape
    interrupted: bool


async def _prepare(
    client: Client, plan: Plan, shape: workload.Shape
) -> tuple[dict[str, Any], workload.Shape]:
    """Find out what must be known before the first load."""
    facts = await client.discover()
    shape = await _calibrate(client, shape)
    first = await client.send(workload.Request(-1, _hello(shape), 1))
    if first.error:
        raise UsageError(f"a first request fails: {first.error}")
    await plan.prepare(client, shape)
    return facts, shape


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` gives. Fails with Interrupted, and ends it, if `stop` comes first."""
    task, stopper = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopper}, return_when=asyncio.FIRST_COMPLETED)
    stopper.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    raise Interrupted


async def _run_all(
    args: argparse.Namespace,
    console: Console,
    stop: asyncio.Event,
    file: report.RecordFile | None,
) -> _Sweep:
    plan, shape = Plan(args), _shape(args)
    rows = workload.load_trace(args.trace) if args.trace else []
    params = ServerParams(
        base_url=args.base_url,
        api_key=args.api_key or os.environ.get("OPENAI_API_KEY"),
        model=args.model,
        api=args.api,
        timeout_s=args.timeout,
        extra=_extra(args),
    )
    outcomes: list[Outcome] = []
    interrupted = False
    async with Client(params) as client:
        facts, shape = await _unless(stop, _prepare(client, plan, shape))
        with _progress(console) as progress:
            while point := plan.next():
                # Also between two loads: what was to come is missing.
                interrupted = interrupted or stop.is_set()
                if interrupted:
                    break
                bar = progress.add_task(point.label, total=_total(point, rows, args.speed))

                def tell(record: Record, bar: Any = bar, label: str = point.label) -> None:
                    progress.advance(bar)
                    if file:
                        file.add(label, record)

                source = _source(args, shape, rows, len(outcomes))
                outcome = await _run_point(args, client, source, point, tell, stop)
                outcomes.append(outcome)
                interrupted = outcome.interrupted
                sent = len(outcome.records)
                words = point.label + plan.tell(outcome)
                progress.update(bar, description=words, total=sent, completed=sent)
    if interrupted and not any(outcome.records for outcome in outcomes):
        raise Interrupted
    if plan.walk:
        outcomes.sort(key=lambda outcome: outcome.point.rate or 0.0)
    return _Sweep(outcomes, plan.walk, facts, shape, interrupted)


def _hello(shape: workload.Shape) -> str | list[int]:
    return workload.Texts(shape).make("hello", 4)


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _saturation(walk: Walk, points: list[dict[str, Any]]) -> dict[str, Any]:
    best = max(points, key=lambda point: point["goodput_per_s"] or 0.0, default=None)
    return {
        "kept_share": KEPT_SHARE,
        "rate_kept": walk.kept,
        "rate_lost": walk.lost,
        "goodput_per_s_max": best and best["goodput_per_s"],
        "goodput_max_at": best and best["rate"],
    }


def _document(args: argparse.Namespace, sweep: _Sweep) -> dict[str, Any]:
    limits = limits_of(args)
    points = []
    for outcome in sweep.outcomes:
        point = outcome.point
        points.append(
            {
                "load": point.label,
                "level": point.concurrency or point.rate,
                "concurrency": point.concurrency,
                "rate": point.rate,
            }
            | metrics.summarise(outcome.records, limits, outcome.seconds)
            | {"server": outcome.server}
        )
    shown = {name: value for name, value in vars(args).items() if name != "api_key"}
    return {
        "versions": report.versions(),
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "interrupted": sweep.interrupted,
        "server": sweep.facts,
        "args": {name: str(v) if isinstance(v, Path) else v for name, v in shown.items()},
        "tokens_per_word": sweep.shape.tokens_per_word,
        "limits": asdict(limits),
        "saturation": _saturation(sweep.walk, points) if sweep.walk else None,
        "points": points,
    }


async def _main(args: argparse.Namespace, console: Console) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    file = report.RecordFile(args.out) if args.out else None
    try:
        sweep = await _run_all(args, console, stop, file)
        outcomes, document = sweep.outcomes, _document(args, sweep)
        if args.out:
            report.write_json(args.out / "results.json", document)
        if file:
            file.finish()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    points = document["points"]
    if args.out:
        if not args.no_plots:
            runs = [(outcome.point.label, outcome.records) for outcome in outcomes]
            plots.draw(args.out, points, runs, document["limits"])
        console.print(f"results: {args.out / 'results.json'}", markup=False, soft_wrap=True)
    if args.json:
        print(json.dumps(document, indent=1))
    else:
        out = Console(width=None if sys.stdout.isatty() else 200)
        out.print(report.latencies(points), report.rates(points))
        if document["saturation"]:
            out.print(report.saturation(document), markup=False, soft_wrap=True, highlight=False)
    for point, outcome in zip(points, outcomes, strict=True):
        if not point["requests"]:
            why = ": all were warm-up" if outcome.records else ""
            console.print(f"{point['load']}: no request counts{why}", markup=False, soft_wrap=True)
        for error, count in point["errors"].items():
            console.print(f"{point['load']}: {count} x {error}", markup=False, soft_wrap=True)
    if document["interrupted"]:
        return EXIT_INTERRUPTED
    # A server that is driven beyond what it can do may refuse.
    failed = not document["saturation"] and any(point["failed"] for point in points)
    return EXIT_FAILED if failed else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; every foreseen fault is one line on stderr."""
    try:
        args = build_parser().parse_args(list(sys.argv[1:] if argv is None else argv))
        return asyncio.run(_main(args, Console(stderr=True)))
    except (UsageError, OSError) as error:
        print(f"kvahead-load: {one_line(error, 1000)}", file=sys.stderr)
        return EXIT_USAGE
    except (KeyboardInterrupt, Interrupted):
        print("kvahead-load: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def entry() -> None:
    """Console script."""
    sys.exit(main())
