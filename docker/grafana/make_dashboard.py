"""Writes dashboards/kvahead.json: python3 docker/grafana/make_dashboard.py

One place names the panels; the JSON that Grafana wants is long and all alike.
"""

import json
import pathlib


def quantiles(metric):
    rate = f"sum by (le) (rate(kvahead_{metric}_bucket[$__rate_interval]))"
    return [(f"histogram_quantile({q}, {rate})", f"p{int(q * 100)}") for q in (0.5, 0.95, 0.99)]


# (title, unit, [(expression, legend)])
PANELS = [
    ("Requests", "short", [("kvahead_requests_running", "running"),
                           ("sum(kvahead_requests_waiting)", "waiting"),
                           ("kvahead_requests_suspended", "suspended")]),
    ("Tokens per second", "short", [("rate(kvahead_generation_tokens_total[$__rate_interval])", "generated"),
                                    ("rate(kvahead_prompt_tokens_total[$__rate_interval])", "prompt")]),
    ("Time to first token", "s", quantiles("time_to_first_token_seconds")),
    ("Inter-token latency", "s", quantiles("inter_token_latency_seconds")),
    ("KV bytes by tier", "bytes", [("kvahead_kv_bytes", "{{tier}} used"),
                                   ("kvahead_kv_cached_bytes", "{{tier}} prefix cache"),
                                   ("kvahead_kv_budget_bytes", "{{tier}} budget")]),
    ("Moved between tiers", "Bps", [("rate(kvahead_fetched_bytes_total[$__rate_interval])", "host to device"),
                                    ("rate(kvahead_offloaded_bytes_total[$__rate_interval])", "device to host")]),
    ("Prefix cache hit rate", "percentunit",
     [("rate(kvahead_prefix_hit_tokens_total[$__rate_interval]) / rate(kvahead_prefix_lookup_tokens_total[$__rate_interval])",
       "hit tokens")]),
    ("Preemptions and refusals", "short",
     [("rate(kvahead_preemptions_total[$__rate_interval])", "preemptions"),
      ("sum by (reason) (rate(kvahead_requests_rejected_total[$__rate_interval]))", "refused: {{reason}}")]),
    ("Finished", "short", [("sum by (reason) (rate(kvahead_requests_finished_total[$__rate_interval]))", "{{reason}}")]),
    ("Rows per step", "short",
     [("rate(kvahead_step_rows_total[$__rate_interval]) / rate(kvahead_steps_total[$__rate_interval])", "rows")]),
    ("Queue time", "s", quantiles("request_queue_time_seconds")),
    ("Prefill time", "s", quantiles("request_prefill_time_seconds")),
    # Servers of a cluster only.
    ("Cluster: members, links", "short", [("kvahead_cluster_members", "{{instance}} members"),
                                          ("kvahead_cluster_links", "{{instance}} links"),
                                          ("kvahead_cluster_leads", "{{instance}} leads")]),
    ("Cluster: lent memory", "bytes", [("kvahead_cluster_loan_bytes", "{{instance}} as {{role}}")]),
    ("Cluster: moved and asked", "Bps",
     [("rate(kvahead_cluster_moved_bytes_total[$__rate_interval])", "{{instance}} pages {{direction}}"),
      ("rate(kvahead_cluster_attention_bytes_total[$__rate_interval])", "{{instance}} attention {{direction}}")]),
    ("Cluster: share of time spent waiting", "percentunit",
     [("rate(kvahead_cluster_wait_seconds_total[$__rate_interval])", "{{instance}} waits"),
      ("rate(kvahead_cluster_answer_seconds_total[$__rate_interval])", "{{instance}} attends for others")]),
    ("Cluster: loans", "short", [("rate(kvahead_cluster_loans_total[$__rate_interval])", "{{instance}} {{event}}"),
                                 ("rate(kvahead_restarts_total[$__rate_interval])", "{{instance}} computed again")]),
    ("Cluster: tokens per second by the plan", "short",
     [("kvahead_cluster_plan_tokens_per_second", "{{plan}} it"),
      ("sum(rate(kvahead_generation_tokens_total[$__rate_interval]))", "measured")]),
    ("Cluster: steps by what plans expect", "short", [("kvahead_cluster_pace", "{{loans}} loans")]),
]


def panel(index, title, unit, targets):
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (index % 2), "y": 8 * (index // 2)},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": chr(65 + i), "expr": expression, "legendFormat": legend}
                    for i, (expression, legend) in enumerate(targets)],
    }


def main():
    dashboard = {
        "uid": "kvahead",
        "title": "kvahead",
        "schemaVersion": 38,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": [panel(i, *spec) for i, spec in enumerate(PANELS)],
    }
    path = pathlib.Path(__file__).parent / "dashboards" / "kvahead.json"
    path.write_text(json.dumps(dashboard, indent=1) + "\n")


if __name__ == "__main__":
    main()
