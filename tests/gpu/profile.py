"""Prints Nsight Compute's CSV (tests/gpu/profile) as one line a launch, or, with --sum, a kernel."""

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


def short(name):
    return re.sub(r"\(.*", "", name).replace("void ", "")[:46]


def print_sums(path):
    """By kernel and size of its grid: launches, time of one and of all; in the order of the first."""
    sums = {}
    for launch in launches(path):
        key = short(launch["name"]), launch.get("launch__grid_size", 0)
        times = sums.setdefault(key, [])
        times.append(launch.get("gpu__time_duration.sum", 0) / 1e3)
    print(f"{'kernel':46} {'grid':>7} {'launches':>8} {'us':>9} {'all, ms':>9}")
    for (name, grid), times in sums.items():
        print(f"{name:46} {grid:7.0f} {len(times):8} {sorted(times)[len(times) // 2]:9.1f} {sum(times) / 1e3:9.2f}")


def main():
    if sys.argv[1] == "--sum":
        print_sums(sys.argv[2])
        return
    print(f"{'kernel':46} {'us':>9} {'grid':>7} {'regs':>4} {'GB/s':>6} {'dram%':>6} {'sm%':>5} {'issue%':>6} "
          f"{'warps%':>6} {'elig':>5} {'inst/1e6':>9} {'confl/1e6':>9}  waits")
    for launch in launches(sys.argv[1]):
        def of(name):
            return launch.get(name, float("nan"))
        stalls = sorted(((value, match[1]) for name, value in launch.items()
                         if (match := STALL.fullmatch(name))), reverse=True)
        micros = of("gpu__time_duration.sum") / 1e3
        print(f"{short(launch['name']):46} {micros:9.1f} {of('launch__grid_size'):7.0f} {of('launch__registers_per_thread'):4.0f} "
              f"{of('dram__bytes.sum') / micros / 1e3:6.0f} {of('dram__throughput.avg.pct_of_peak_sustained_elapsed'):6.1f} "
              f"{of('sm__throughput.avg.pct_of_peak_sustained_elapsed'):5.1f} "
              f"{of('smsp__issue_active.avg.pct_of_peak_sustained_active'):6.1f} "
              f"{of('sm__warps_active.avg.pct_of_peak_sustained_active'):6.1f} "
              f"{of('smsp__warps_eligible.avg.per_cycle_active'):5.2f} {of('sm__inst_executed.sum') / 1e6:9.2f} "
              f"{of('l1tex__data_bank_conflicts_pipe_lsu.sum') / 1e6:9.2f}  "
              + ", ".join(f"{why} {value:.1f}" for value, why in stalls[:3]))


main()
