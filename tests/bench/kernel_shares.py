#!/usr/bin/env python3
"""What share of the GPU's limits each kernel of a program reaches: memory bandwidth and matrix units, by Nsight Compute's
counters, and what its warps wait for. A kernel's floor is what takes longer of the two, so the larger share is how near
to its floor it is. "waits for" has the two largest shares of what a warp waits for between two instructions.

usage: kernel_shares.py [--skip N] [--at-least MICROSECONDS] PROGRAM [ARGUMENTS...]

Needs a GPU and ncu. The program runs many times slower under it: give it one run of one shape. Kernels of one name are
put together: sums of times, shares weighted with time."""
import argparse
import csv
import subprocess
import sys

TIME = "gpu__time_duration.sum"
MEMORY = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
MATRIX = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
OTHER = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
STALLS = {
    "barrier": "barriers",
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory",
    "lg_throttle": "room for global accesses",
    "mio_throttle": "room for shared accesses",
    "math_pipe_throttle": "arithmetic units",
    "wait": "fixed latencies",
    "gmma": "warpgroup products",
    "not_selected": "other warps' turns",
    "dispatch_stall": "dispatch",
    "membar": "fences",
}


def stall_metric(name):
    return f"smsp__average_warps_issue_stalled_{name}_per_issue_active.ratio"


def short_name(name):
    """Without namespaces, types and arguments: `matrix::prepare<128, 0>`."""
    for noise in ("(anonymous namespace)::", "<unnamed>::", "(int)", "(bool)", "fenwick::cuda::"):
        name = name.replace(noise, "")
    return name.split("(", 1)[0].removeprefix("void ").strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", type=int, default=0, help="kernels at the start that are left out (inputs, warm-up)")
    parser.add_argument("--at-least", type=float, default=0.0, help="leave out kernels that take less in all")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.program:
        parser.error("which program?")
    wanted = [TIME, MEMORY, MATRIX, OTHER, *map(stall_metric, STALLS)]
    try:
        run = subprocess.run(["ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--launch-skip",
                              str(options.skip), "--metrics", ",".join(wanted), *options.program], stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        sys.exit("no ncu (Nsight Compute) in PATH: install the CUDA toolkit's, or add its folder to PATH")
    lines = run.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        sys.exit("ncu measured no kernel:\n" + "\n".join(lines[-5:]))
    launches = {}
    for row in csv.DictReader(lines[start:]):
        name, values = launches.setdefault(row["ID"], (short_name(row["Kernel Name"]), {}))
        values[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    missing = sorted({metric for _, values in launches.values() for metric in wanted if metric not in values})
    if missing:
        sys.exit(f"ncu does not have {', '.join(missing)} on this GPU: `ncu --query-metrics` lists what it has")
    sums = {}
    for name, values in launches.values():
        if name.startswith("bench::"):
            continue
        of = sums.setdefault(name, dict.fromkeys(("launches", *wanted), 0.0))
        microseconds = values[TIME] / 1000
        of["launches"] += 1
        of[TIME] += microseconds
        for metric in wanted[1:]:
            of[metric] += microseconds * values[metric]
    print("| kernel | launches | us | memory | matrix units | busiest unit of a multiprocessor | waits for |\n" + "| --- " * 7 + "|")
    for name, of in sorted(sums.items(), key=lambda item: -item[1][TIME]):
        us = of[TIME]
        if us < options.at_least:
            continue
        whole = sum(of[stall_metric(stall)] for stall in STALLS) or 1.0
        most = sorted(STALLS, key=lambda stall: -of[stall_metric(stall)])[:2]
        waits = ", ".join(f"{STALLS[stall]} {100 * of[stall_metric(stall)] / whole:.0f} %" for stall in most)
        shares = " | ".join(f"{of[metric] / us:.0f} %" for metric in (MEMORY, MATRIX, OTHER))
        print(f"| {name} | {of['launches']:.0f} | {us:.1f} | {shares} | {waits} |")


if __name__ == "__main__":
    main()
