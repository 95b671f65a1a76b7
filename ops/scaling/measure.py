"""What several GPUs take, and whether their bytes are those of one."""

import json
import subprocess
from collections import Counter
from datetime import date
from statistics import median

from scaling.model import faults, merged, runs_of
from scaling.programs import MPIRUN, ROOT, leave, model_of, print_table, texts

# Rows of a rank that are known to fit when the 0.8 B model is trained on one H200.
TRAINING_ROWS = 1048576
# One GPU keeps all layers' inputs at this length, which it does not at a million tokens: what training's curve starts from.
KEPT_TOKENS = 131072
SECONDS = 1800  # for one command


def gpus():
    """Their names."""
    try:
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return [line for line in subprocess.run(query, capture_output=True, text=True).stdout.splitlines() if line]
    except FileNotFoundError:
        return []


def rank_counts(most):
    """2, 4, ... and `most`. 1 is in every run: rank 0 is measured alone first."""
    return sorted({2 ** i for i in range(1, most.bit_length()) if 2 ** i <= most} | {most})


def succeeds(words):
    """Runs a command; what it prints goes where ours goes."""
    print("+", *words, flush=True)
    try:
        return subprocess.run(texts(words), timeout=SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def benchmarks(options, model, ranks):
    """(what it is, command) for each that `ranks` GPUs run."""
    for tokens in options.tokens:
        if "mixers" in options.only:
            yield f"mixers of {tokens} tokens", ["bench_ranks", "mixers", "--tokens", tokens, "--runs", 7]
        if "prefill" in options.only:
            yield f"prefill of {tokens} tokens", ["bench_ranks", "model", "--model", model, "--tokens", tokens, "--runs", 3]
        if "training" in options.only and tokens <= TRAINING_ROWS * ranks:
            yield f"training on {tokens} tokens", ["bench_train", "--model", model, tokens]
    if "training" in options.only and ranks == 2 and KEPT_TOKENS not in options.tokens:
        yield f"training on {KEPT_TOKENS} tokens", ["bench_train", "--model", model, KEPT_TOKENS]


def measure(options, work):
    names = gpus()
    most = len(names) if options.ranks is None else options.ranks
    if most < 2 or len(names) < most:
        leave(69, f"{most} ranks need as many GPUs and at least 2, found {len(names)}; --predict needs none")
    if not (options.build / "bench_ranks").exists():
        leave(69, f"{options.build} has no bench_ranks: a CUDA build with NCCL is needed")
    failed, lines = [], work / "figures.jsonl"
    lines.touch()
    model = model_of(options, work) if {"prefill", "training"} & set(options.only) else None
    for ranks in rank_counts(most):
        for what, (program, *words) in benchmarks(options, model, ranks):
            if not succeeds([*MPIRUN, ranks, options.build / program, *words, "--json", lines]):
                failed.append(f"{what} on {ranks} GPUs")
    if "bytes" in options.only:
        for ranks in range(2, most + 1):
            if not succeeds([ROOT / "ops/gpu-ranks-check", "--build", options.build, "--only", "bytes", "--ranks", ranks]):
                failed.append(f"bytes of losses on {ranks} GPUs")
    figures = [json.loads(line) for line in lines.read_text().splitlines()]
    failed += faults(figures)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    device = ", ".join(f"{count} x {name}" for name, count in Counter(names[:most]).items())
    found = {"device": device, "commit": commit, "date": str(date.today()), "figures": figures}
    options.output.write_text(json.dumps(found, indent=1) + "\n")
    print()
    print_measured(figures)
    print(f"\nfigures: {options.output}")
    for each in failed:
        print(f"FAILED  {each}")
    return 1 if failed else 0


def print_measured(figures):
    table, rows = merged(figures), []
    for (part, what, tokens, ranks), each in sorted(table.items()):
        times = runs_of(each["ms"])
        one = table.get((part, what, tokens, 1))
        exposed = each.get("exposed_ms", each.get("pass_exposed_ms"))
        rows.append([what if part == "mixer" else f"{what}, {part}", f"{tokens:,}", ranks, f"{median(times):.3f}",
                     f"{min(times):.3f} to {max(times):.3f}" if len(times) > 1 else "",
                     f"{median(runs_of(one['ms'])) / median(times):.2f}x" if one else "", "" if exposed is None else f"{exposed:.3f}",
                     f"{each['messages']}; {each['bytes']:,}; {each['rounds']}" if "messages" in each else ""])
    print_table(["measured", "T", "GPUs", "ms", "least to most", "speed-up", "exposed ms (of prefill: a pass)", "messages; bytes; rounds"], rows)
