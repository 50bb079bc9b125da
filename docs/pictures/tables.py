#!/usr/bin/env python3
"""tables.py - what docs/pictures/make.sh has measured, as the tables of docs/results/quality.md.

    python3 docs/pictures/tables.py FOLDER [--svg FILE] [--budget-svg FILE] [--beside-svg FILE]
        [--relative-svg FILE]

FOLDER is a model's: its kl-*.json are of `kvahead eval`, its other folders of `kvahead-quality`.
Tables go to standard output. --svg: a picture of divergence against KV bytes, of kl-prose.json.
--budget-svg: the same of kl-kept-budget.json, a line a policy. --beside-svg: of kl-beside.json,
against bytes moved in a step, too. --relative-svg: how often the next token is full's, and
divergence, against the share of tokens that attend, of kl-relative.json.

Intervals are 95%: of a KL a bootstrap over steps, of an agreement Wilson's, of a score's difference
to `full` a paired bootstrap over contexts (clients/quality/README.md).
"""

import argparse
import json
import math
import pathlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from kvahead_quality.plots import COLOURS, MARKERS, STYLE
from kvahead_quality.records import RecordFile
from kvahead_quality.specs import length_label
from kvahead_quality.stats import RESAMPLES, wilson
from kvahead_quality.summary import summarise
from kvahead_quality.tasks import TASKS

LAYERS_A_COLUMN = 5


def table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("|---|" + "---:|" * (len(header) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def kl_interval(policy):
    """Of the mean of the steps' KL. Its tail is heavy, so the upper end may still be too low."""
    steps = np.array(policy["kl"])
    picks = np.random.default_rng(0).integers(0, len(steps), size=(RESAMPLES, len(steps)))
    return np.percentile(steps[picks].mean(axis=1), [2.5, 97.5])


def percent(part, whole):
    return f"{100 * part / whole:.0f}" if whole else "-"


def mean(matrix, first=0, last=None):
    """Of [layer][head] in layers first..last-1; None where nothing was looked at."""
    values = [value for row in matrix[first:last] for value in row if value is not None]
    return sum(values) / len(values) if values else None


def shown(value):
    return "-" if value is None else f"{100 * value:.0f}"


def divergence(path):
    """One file of `kvahead eval --json`: a row a policy."""
    run = json.loads(path.read_text())
    windows, steps = len(run["prompt_tokens"]), run["steps"]
    print(f"{path.stem}: {windows} x {run['prompt_tokens'][0]} tokens, {steps} steps; ", end="")
    print(
        f"weights {run['arguments']['weights']}; text sha256 {run['input']['sha256'][:8]}; ", end=""
    )
    print(f"perplexity of full {run['policies'][0]['perplexity_full']:.2f}\n")
    header = ["policy", "KL", "p99", "top-1", "perplexity", "hit", "mass", "waits"]
    rows = []
    for p in run["policies"]:
        low, high = kl_interval(p)
        right, n = p["top1_agreement"], p["steps"]
        worst, best = wilson(right * n, n)
        looked = "hit_rate" in p
        rows.append(
            [
                f"`{p['policy']}`",
                f"{p['kl_mean']:.4f} [{low:.4f}, {high:.4f}]",
                f"{p['kl_p99']:.3f}",
                f"{100 * right:.0f} [{100 * worst:.0f}, {100 * best:.0f}]",
                f"{p['perplexity']:.2f}",
                *(
                    shown(mean(p[name])) if looked else "-"
                    for name in ("hit_rate", "mass_covered", "waited")
                ),
                percent(p["spec_tokens_as_full"], p["spec_tokens"]),
                percent(p["spec_tokens_as_followed"], p["spec_tokens"]),
                f"{100 * p['device_bytes'] / p['device_bytes_full']:.1f}",
            ]
        )
    table([*header, "T' = `full`'s", "T' = what follows", "device"], rows)
    layers(run)


def layers(run):
    """Hit and mass, layers in groups."""
    count = run["model"]["layers"]
    firsts = range(0, count, LAYERS_A_COLUMN)
    header = [f"{first}-{min(first + LAYERS_A_COLUMN, count) - 1}" for first in firsts]
    rows = []
    for p in run["policies"]:
        for title, name in (("mass", "mass_covered"), ("hit", "hit_rate")):
            means = [mean(p[name], f, f + LAYERS_A_COLUMN) for f in firsts] if name in p else []
            if any(value is not None and value < 1 for value in means):
                rows.append([f"`{p['policy']}`: {title}", *map(shown, means)])
    if rows:
        table(["layers", *header], rows)


def scores(folder):
    """One folder of `kvahead-quality ruler`: by length a table, and one of differences to `full`."""
    records = RecordFile(folder / "samples.jsonl")
    found = list(records.finished.values())
    questions = json.loads((folder / "run.json").read_text())["identity"]["questions"]
    asked = {task: min(questions, TASKS[task].questions_max) for task in TASKS}
    cells = sorted({(r.length, r.task) for r in found})
    lengths = sorted({length for length, _ in cells})
    by_length = {}
    for length in lengths:
        here = [r for r in found if r.length == length]
        policies = in_order({r.policy for r in here})
        tasks = [task for task in TASKS if (length, task) in cells]
        columns = {t: column((length, t), here, policies, asked, records) for t in tasks}
        rows = [["contexts x questions", *(columns[task][1] for task in tasks), ""]]
        by_length[length] = {p: [d for t in tasks for d in columns[t][2][p]] for p in policies}
        for policy in policies:
            row = [columns[task][0][policy] for task in tasks]
            rows.append([f"`{policy}`", *row, to_full(policy, by_length[length][policy])])
        print(f"{folder.name}, {length_label(length)}:\n")
        table(["policy", *tasks, "to `full`"], rows)
    if len(lengths) > 1:
        print(f"{folder.name}, to `full`:\n")
        rows = []
        for policy in in_order({p for policies in by_length.values() for p in policies}):
            parts = [by_length[length].get(policy, []) for length in lengths]
            whole = [pair for part in parts for pair in part] if all(parts) else []
            rows.append([f"`{policy}`", *(to_full(policy, part) for part in [*parts, whole])])
        table(["policy", *map(length_label, lengths), "all"], rows[1:])


def in_order(policies):
    """`full` first, then by name."""
    return sorted(policies, key=lambda policy: (policy != "full", policy.split(":")[0], policy))


def to_full(policy, contexts):
    """The contexts' mean difference, where each of them was answered under both policies."""
    return difference(contexts) if policy != "full" and contexts and all(contexts) else ""


def column(cell, found, policies, asked, records):
    """Of one task at one length: scores, sample sizes, and per policy the contexts' differences."""
    length, task = cell
    here = [r for r in found if (r.length, r.task) == cell]
    contexts = {r.group for r in here}
    summary = summarise(
        tasks=[task],
        lengths=[length],
        policies=policies,
        samples=max(contexts) + 1,
        seed=here[0].seed,
        answer_tokens={task: TASKS[task].max_tokens},
        finished=records.finished,
        failed={},
        questions=asked,
    )
    means = {policy: summary.cell(task, length, policy).estimate.mean for policy in policies}
    shown_scores = {
        p: "-" if math.isnan(mean) else f"{100 * mean:.0f}" for p, mean in means.items()
    }
    base = {r.index: r.score for r in here if r.policy == "full"}
    pairs = {
        policy: [
            [
                r.score - base[r.index]
                for r in here
                if (r.policy, r.group) == (policy, context) and r.index in base
            ]
            for context in contexts
        ]
        for policy in policies
    }
    return shown_scores, f"{len(contexts)} x {asked[task]}", pairs


def difference(contexts):
    """The mean over contexts of their mean difference to `full`, in points, with its interval."""
    means = 100 * np.array([sum(values) / len(values) for values in contexts])
    if len(set(means)) == 1:  # resampling would show no spread at all
        return f"{means[0]:+.1f} (each of {len(means)})"
    picks = np.random.default_rng(0).integers(0, len(means), size=(RESAMPLES, len(means)))
    low, high = np.percentile(means[picks].mean(axis=1), [2.5, 97.5])
    return f"{means.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def picture(folder, path):
    """KL against KV bytes, both logarithmic, a mark a policy."""
    run = json.loads((folder / "kl-prose.json").read_text())
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
        for number, p in enumerate(run["policies"]):
            low, high = kl_interval(p)
            ax.errorbar(
                100 * p["device_bytes"] / p["device_bytes_full"],
                p["kl_mean"],
                yerr=[[p["kl_mean"] - low], [high - p["kl_mean"]]],
                fmt=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                fillstyle="full" if number < len(COLOURS) else "none",
                label=p["policy"],
                capsize=3,
            )
        ax.set(yscale="log", xlabel="KV bytes on the device, percent of full", ylabel="KL, nats")
        ax.set_title(f"{run['model']['name']}: {run['prompt_tokens'][0]} tokens of prose")
        ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


def family(spec):
    """The policy, with its bits where they set lines apart."""
    name, *settings = spec.split(":")
    return f"{name}:{settings[0]}" if name in ("q-hitter", "specache") else name


def budget_picture(folder, path):
    """KL against KV bytes, a line through the amounts of each policy."""
    run = json.loads((folder / "kl-kept-budget.json").read_text())
    lines = {}
    for p in run["policies"]:
        share = 100 * p["device_bytes"] / p["device_bytes_full"]
        lines.setdefault(family(p["policy"]), []).append((share, p["kl_mean"], kl_interval(p)))
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
        for number, (name, points) in enumerate(lines.items()):
            points.sort()
            shares, means = [x for x, _, _ in points], [y for _, y, _ in points]
            ax.errorbar(
                shares,
                means,
                yerr=np.transpose([(y - low, high - y) for _, y, (low, high) in points]),
                marker=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                label=name,
                capsize=2,
                linewidth=1.2,
            )
        ax.set(yscale="log", xlabel="KV bytes on the device, percent of full", ylabel="KL, nats")
        ax.set_title(f"{run['model']['name']}: {run['prompt_tokens'][0]} tokens of prose")
        ax.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


def beside_picture(folder, path):
    """KL against KV bytes on the device, and against bytes moved in a step; a colour a family."""
    run = json.loads((folder / "kl-beside.json").read_text())
    families = {}
    for p in run["policies"]:
        families.setdefault(p["policy"].split(":")[0], []).append(p)
    sides = {
        "KV bytes on the device, percent of full": lambda p: p["device_bytes"],
        "KV bytes moved in a step, percent of full": lambda p: p["fetched_bytes"] / p["steps"],
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True, layout="constrained")
        for ax, (label, bytes_of) in zip(axes, sides.items(), strict=True):
            for number, (name, policies) in enumerate(families.items()):
                shown_here = [p for p in policies if bytes_of(p) > 0]
                if not shown_here:
                    continue
                low, high = np.transpose([kl_interval(p) for p in shown_here])
                means = np.array([p["kl_mean"] for p in shown_here])
                ax.errorbar(
                    [100 * bytes_of(p) / p["device_bytes_full"] for p in shown_here],
                    means,
                    yerr=[means - low, high - means],
                    fmt=MARKERS[number % len(MARKERS)],
                    color=COLOURS[number % len(COLOURS)],
                    label=name,
                    capsize=2,
                )
            ax.set(yscale="log", xlabel=label)
        axes[0].set_ylabel("KL, nats")
        axes[1].set_xscale("log")
        axes[0].legend(fontsize=8)
        figure.suptitle(f"{run['model']['name']}: {run['prompt_tokens'][0]} tokens of WikiText-2")
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


def relative_line(p):
    """The line a policy is on, and what share of the tokens it was given, in percent."""
    settings = p["settings"]
    if settings["policy"] == "h2o":
        return "h2o, as many tokens kept", float(settings["heavy"][:-1]) + float(settings["recent"][:-1])
    skewed = "with a skew" if settings["skew"] == "after" else "columns with most energy"
    return f"infinigen, {skewed}", float(settings["cap"][:-1])


def relative_picture(folder, path):
    """Agreement and KL against the share of the tokens that attend beside sinks and window."""
    run = json.loads((folder / "kl-relative.json").read_text())
    lines = {}
    for p in run["policies"]:
        name, share = relative_line(p)
        lines.setdefault(name, []).append((share, p))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
        for number, (name, points) in enumerate(lines.items()):
            points.sort(key=lambda point: point[0])
            how = {
                "marker": MARKERS[number % len(MARKERS)],
                "color": COLOURS[number % len(COLOURS)],
                "label": name,
                "capsize": 2,
                "linewidth": 1.2,
            }
            shares = [share for share, _ in points]
            agreed = np.array([p["top1_agreement"] for _, p in points])
            low, high = np.transpose([wilson(round(p["top1_agreement"] * p["steps"]), p["steps"]) for _, p in points])
            axes[0].errorbar(shares, 100 * agreed, yerr=100 * np.array([agreed - low, high - agreed]), **how)
            means = np.array([p["kl_mean"] for _, p in points])
            low, high = np.transpose([kl_interval(p) for _, p in points])
            axes[1].errorbar(shares, means, yerr=[means - low, high - means], **how)
        axes[0].set(xlabel="tokens that attend, percent", ylabel="steps with full's next token, percent")
        axes[1].set(xlabel="tokens that attend, percent", ylabel="KL, nats", yscale="log")
        axes[0].legend(fontsize=8)
        figure.suptitle(f"{run['model']['name']}: {run['prompt_tokens'][0]} tokens of WikiText-2")
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--budget-svg", type=pathlib.Path)
    parser.add_argument("--beside-svg", type=pathlib.Path)
    parser.add_argument("--relative-svg", type=pathlib.Path)
    args = parser.parse_args()
    for path in sorted(args.folder.glob("kl-*.json")):
        divergence(path)
    for path in sorted(args.folder.glob("*/samples.jsonl")):
        if path.parent.name != "grid":  # a needle's: its report is its table
            scores(path.parent)
    if args.svg:
        picture(args.folder, args.svg)
    if args.budget_svg:
        budget_picture(args.folder, args.budget_svg)
    if args.beside_svg:
        beside_picture(args.folder, args.beside_svg)
    if args.relative_svg:
        relative_picture(args.folder, args.relative_svg)


if __name__ == "__main__":
    main()
