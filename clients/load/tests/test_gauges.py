"""A server's own figures: names, labels, and what is made of samples."""

from __future__ import annotations

import asyncio

import pytest
from scripted import Scripted

from kvahead_load.gauges import Sampler, parse, summarise

KVAHEAD = """# HELP kvahead_requests_running Choices.
kvahead_requests_running{model="a b"} 3
kvahead_requests_waiting{model="a b",reason="batch_full"} 4
kvahead_requests_waiting{model="a b",reason="prefill"} 5
kvahead_kv_usage_ratio{model="a b",tier="device"} 0.25
kvahead_kv_usage_ratio{model="a b",tier="host"} 0.5
kvahead_steps_total{model="a b"} 10
kvahead_step_rows_total{model="a b"} 70
kvahead_step_seconds_sum{model="a b"} 2.5
kvahead_step_seconds_bucket{model="a b",le="+Inf"} 10
kvahead_scheduler_prompt_tokens_total{model="a b",source="computed"} 100
kvahead_scheduler_prompt_tokens_total{model="a b",source="cached"} 30
"""


def test_gauges__names_and_labels():
    figures = parse(KVAHEAD)
    assert figures == {
        "running": 3, "waiting": 9, "kv_device": 0.25, "kv_host": 0.5, "steps": 10,
        "step_rows": 70, "step_seconds": 2.5, "prompt_tokens_computed": 100,
        "prompt_tokens_cached": 30,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        ('vllm:num_requests_running{engine="0"} 2.0\nvllm:kv_cache_usage_perc 0.5', (2.0, 0.5)),
        ("sglang:num_running_reqs 7\nsglang:token_usage 0.1", (7.0, 0.1)),
        ("llamacpp:requests_processing 1", (1.0, None)),
    ],
)
def test_gauges__other_servers(text, figures):
    found = parse(text)
    assert (found["running"], found.get("kv_device")) == figures


def test_gauges__what_is_no_metric_is_passed_over():
    assert parse("<html>not found</html>\n\n# kvahead_requests_running 3\n") == {}


def test_gauges__what_is_no_finite_number_is_passed_over():
    assert parse("kvahead_steps_total NaN\nkvahead_requests_running +Inf\n") == {}
    assert parse("kvahead_steps_total soon\nkvahead_step_rows_total 3\n") == {"step_rows": 3}


def test_gauges__means_while_requests_are_under_way_and_growth_over_all():
    samples = [
        (0.0, {"running": 0.0, "steps": 100.0, "step_rows": 500.0, "step_seconds": 1.0}),
        (1.0, {"running": 8.0, "steps": 120.0, "step_rows": 700.0, "step_seconds": 2.0}),
        (2.0, {"running": 4.0, "steps": 130.0, "step_rows": 800.0, "step_seconds": 3.0}),
        (9.0, {"running": 0.0, "steps": 140.0, "step_rows": 820.0, "step_seconds": 5.0}),
    ]
    figures = summarise(samples, 0.5, 2.5)
    assert figures["running"] == {"mean": 6.0, "max": 8.0}
    assert figures["steps"] == 40
    assert figures["rows_per_step"] == 8.0
    assert figures["step_s"] == pytest.approx(0.1)
    assert "kv_host" not in figures
    assert summarise(samples[:1], 0.0, 9.0) == summarise([], 0.0, 9.0) == {}
    # Of a load between two readings nothing is known but what grew.
    for between in (summarise(samples, 2.5, 8.0), summarise(samples, None, 9.0)):
        assert "running" not in between
        assert between["steps"] == 40


@pytest.mark.parametrize("there", [True, False])
def test_gauges__sampler_reads_until_it_is_stopped(there):
    async def run() -> int:
        scripted = Scripted(metrics=(lambda server: KVAHEAD) if there else None)
        async with scripted, scripted.client() as client:
            sampler = Sampler(client, interval_s=0.001)
            await sampler.start()
            while there and len(sampler.samples) < 5:
                await asyncio.sleep(0.001)
            await sampler.stop()
            count = len(sampler.samples)
            await asyncio.sleep(0.01)
            assert len(sampler.samples) == count
            return count

    count = asyncio.run(run())
    assert count >= 6 if there else count == 0
