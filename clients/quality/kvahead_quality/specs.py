"""What the command line's lists mean: lengths, depths, task names and KV policy specs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import UsageError
from .tasks import TASKS

LENGTH_MIN, LENGTH_MAX = 256, 16 * 1024 * 1024
SERVER_DEFAULT = "default"

_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_POLICY_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
# A setting's name; and its value: a number, true, false, a word, or topk by layer (64+256@0-1).
# Which settings a policy has and what they may be is the server's to say: each policy is tried
# before a run.
_SETTING = re.compile(r"[a-z][a-z0-9_]{0,31}")
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_TEXT = re.compile(r"[a-z0-9][a-z0-9@+%-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Policy:
    """One KV policy as given on the command line.

    `kv` is the request's extra-body field, or None when no such field is to be sent: that is the
    server's own default, and what any other OpenAI-compatible server is asked.
    """

    label: str
    kv: dict[str, object] | None


def split(text: str, what: str) -> list[str]:
    """Split a comma-separated list; empty lists, empty parts and repetitions are errors."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise UsageError(f"--{what}: empty entry in {text!r}")
    for part in parts:
        if parts.count(part) > 1:
            raise UsageError(f"--{what}: {part!r} is given twice")
    return parts


def parse_length(text: str) -> int:
    """Parse a length in tokens: 4096, 4k (4096) or 1m (1048576)."""
    match = re.fullmatch(r"([0-9]{1,9})([km]?)", text.strip().lower())
    if not match:
        raise UsageError(f"--lengths: {text!r} is not a length (examples: 4096, 8k, 1m)")
    tokens = int(match[1]) * _UNITS[match[2]]
    if not LENGTH_MIN <= tokens <= LENGTH_MAX:
        raise UsageError(
            f"--lengths: {text} is {tokens} tokens, outside {LENGTH_MIN}..{LENGTH_MAX}"
        )
    return tokens


def parse_lengths(text: str) -> list[int]:
    """Parse a list of lengths; sorted, each one once."""
    lengths = [parse_length(part) for part in split(text, "lengths")]
    if len(set(lengths)) < len(lengths):
        raise UsageError(f"--lengths: {text!r} names one length twice")
    return sorted(lengths)


def parse_tasks(text: str) -> list[str]:
    """Parse a list of RULER task names; `all` means every one."""
    if text.strip() == "all":
        return list(TASKS)
    names = split(text, "tasks")
    for name in names:
        if name not in TASKS:
            raise UsageError(f"--tasks: unknown task {name!r} (have: {', '.join(TASKS)}, or all)")
    return names


def parse_depths(text: str) -> list[float]:
    """Parse depths in percent: a list (0,50,100), or a bare count of evenly spaced ones (11)."""
    parts = split(text, "depths")
    if not all(re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", part, re.ASCII) for part in parts):
        raise UsageError(f"--depths: {text!r} is neither a count nor a list of percents")
    values = [float(part) for part in parts]
    if len(set(values)) < len(values):
        raise UsageError(f"--depths: {text!r} names one depth twice")
    if len(values) == 1:
        count = values[0]
        if count != int(count) or not 2 <= count <= 101:
            raise UsageError(f"--depths: a count must be a whole number in 2..101, not {text}")
        return [round(100 * i / (int(count) - 1), 2) for i in range(int(count))]
    for value in values:
        if value > 100:
            raise UsageError(f"--depths: {value:g} is outside 0..100 percent")
    return sorted(values)


def parse_policy(spec: str) -> Policy:
    """Parse NAME[:BITS[:TOPK]] or NAME[:key=value...], e.g. `specache:1:64`, `kivi:bits=2`.

    Whether the server knows the policy is the server's to say; a run asks it before it starts.
    """
    name, *rest = spec.split(":")
    if not _POLICY_NAME.fullmatch(name):
        raise UsageError(
            f"--policies: bad policy spec {spec!r}: expected NAME[:BITS[:TOPK]], "
            "for example full, kivi:1 or specache:1:64"
        )
    if name == SERVER_DEFAULT:
        if rest:
            raise UsageError(f"--policies: bad policy spec {spec!r}: {name!r} takes no parameters")
        return Policy(name, None)
    # `report` asks kvahead for `usage.kvahead`, where the KV bytes are.
    kv: dict[str, object] = {"policy": name, "report": True}
    positional = ["bits", "topk"]
    for part in rest:
        key, equals, value = part.partition("=")
        if not equals:
            if not positional:
                raise UsageError(f"--policies: bad policy spec {spec!r}: too many numbers")
            key, value = positional.pop(0), part
        else:
            positional = []  # no bare number after a named one: its meaning would be a guess
        if key in kv:
            raise UsageError(f"--policies: bad policy spec {spec!r}: {key!r} is given twice")
        kv[key] = _policy_value(spec, key, value)
    return Policy(spec, kv)


def _policy_value(spec: str, key: str, value: str) -> object:
    if not _SETTING.fullmatch(key):
        raise UsageError(f"--policies: bad policy spec {spec!r}: {key!r} is no name of a setting")
    if value in ("true", "false"):
        return value == "true"
    if _NUMBER.fullmatch(value):
        return int(value)
    if not _TEXT.fullmatch(value):
        raise UsageError(
            f"--policies: bad policy spec {spec!r}: {key} must be a number or a word, not {value!r}"
        )
    return value


def parse_policies(text: str | None) -> list[Policy]:
    """Parse a list of policy specs; None means one run without any `kv` field."""
    if text is None:
        return [Policy(SERVER_DEFAULT, None)]
    return [parse_policy(part) for part in split(text, "policies")]


@dataclass(frozen=True)
class TopkFamily:
    """Policies that differ in nothing but the rows fetched: topk to policy label."""

    label: str
    policies: dict[int, str]


FAMILY_MIN = 3


def topk_families(labels: list[str]) -> list[TopkFamily]:
    """Find the sweeps over topk among policy labels, of at least three values each.

    A policy of the same settings that fetches no rows (`kivi:1` beside `specache:1:...`) counts
    as topk 0.
    """
    found: dict[str, dict[int, str]] = {}
    without: dict[str, str] = {}
    for label in labels:
        kv = dict(parse_policy(label).kv or {})
        name, rows = kv.pop("policy", ""), kv.pop("topk", None)
        kv.pop("report", None)
        bits = [str(kv.pop("bits"))] if "bits" in kv else []
        rest = ":".join(bits + [f"{key}={kv[key]}" for key in sorted(kv)])
        if isinstance(rows, int):
            found.setdefault(f"{name}:{rest}" if rest else str(name), {})[rows] = label
        elif name == "kivi":
            without[rest] = label
    for family, policies in found.items():
        none = without.get(family.partition(":")[2])
        if none:
            policies.setdefault(0, none)
    return [TopkFamily(f, dict(p)) for f, p in found.items() if len(p) >= FAMILY_MIN]


def length_label(tokens: int) -> str:
    """Write a length as people do: 8192 is 8k, 3000 stays 3000."""
    if tokens % (1024 * 1024) == 0:
        return f"{tokens // (1024 * 1024)}m"
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)
