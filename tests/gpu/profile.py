"""Prints Nsight Compute's CSV (tests/gpu/profile) as one line a launch."""

import csv
import re
import sys

STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio")


def launches(path):
    """Launches in order: name, and counters by their names."""
    with open(path, newline="", encoding="utf-8") as file:
        lines = [line for line in file if line.startswith('"')]
    found = {}
    for row in csv.DictReader(lines):
        launch = found.setdefault(row["ID"], {"name": row["Kernel Name"]})
        try:
            launch[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
        except ValueError:
            pass
    return found.values()


def main():
    print(f"{'kernel':46} {'us':>9} {'grid':>7} {'regs':>4} {'GB/s':>6} {'dram%':>6} {'sm%':>5} {'issue%':>6} "
          f"{'warps%':>6} {'elig':>5} {'inst/1e6':>9} {'confl/1e6':>9}  waits")
    for launch in launches(sys.argv[1]):
        def of(name):
            return launch.get(name, float("nan"))
        stalls = sorted(((value, match[1]) for name, value in launch.items()
                         if (match := STALL.fullmatch(name))), reverse=True)
        micros = of("gpu__time_duration.sum") / 1e3
        name = re.sub(r"\(.*", "", launch["name"]).replace("void ", "")
        print(f"{name[:46]:46} {micros:9.1f} {of('launch__grid_size'):7.0f} {of('launch__registers_per_thread'):4.0f} "
              f"{of('dram__bytes.sum') / micros / 1e3:6.0f} {of('dram__throughput.avg.pct_of_peak_sustained_elapsed'):6.1f} "
              f"{of('sm__throughput.avg.pct_of_peak_sustained_elapsed'):5.1f} "
              f"{of('smsp__issue_active.avg.pct_of_peak_sustained_active'):6.1f} "
              f"{of('sm__warps_active.avg.pct_of_peak_sustained_active'):6.1f} "
              f"{of('smsp__warps_eligible.avg.per_cycle_active'):5.2f} {of('sm__inst_executed.sum') / 1e6:9.2f} "
              f"{of('l1tex__data_bank_conflicts_pipe_lsu.sum') / 1e6:9.2f}  "
              + ", ".join(f"{why} {value:.1f}" for value, why in stalls[:3]))


main()
