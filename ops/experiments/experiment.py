"""What the experiments share: running `fenwick`, training runs that are taken up again, tables and plots."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

# Families by the names that the tables use. "one level" is the log-linear model with a single level: one state, read
# with a weight of its own, so the linear form with the same layers and, but for lambda, the same parameters.
FAMILIES = {
    "Mamba-2": ("log_linear_mamba2", ["--levels", "1"]),
    "log-linear Mamba-2": ("log_linear_mamba2", []),
    "Gated DeltaNet": ("h_gated_deltanet", ["--levels", "1"]),
    "log-linear Gated DeltaNet": ("h_gated_deltanet", []),
}

# What L starts with (lambda = softplus(L dl)). From the published 1 on, a step of the optimiser moves lambda a lot, each level
# by itself: models then learn to recall later than their linear forms do, or forget it again at high rates.
LEVEL_SCALE = 0.1


def add_options(parser):
    parser.add_argument("--fenwick", default="fenwick", help="the program (default: the one in PATH)")
    parser.add_argument("--output", type=Path, required=True, help="folder for data, models, runs, table and plot; a "
                        "run that is there is taken up where it was")
    parser.add_argument("--device", default="cpu", help="where to train: cpu or cuda")
    parser.add_argument("--dtype", default="fp32", help="fp32, or bf16 on cuda")
    parser.add_argument("--seed", type=int, default=1, help="of data and weights")
    parser.add_argument("--jobs", type=int, default=1, help="training runs at a time, each with its share of the cores; "
                        "what they print goes to train.log in their folders")


def say(text):
    print(text, file=sys.stderr, flush=True)


def run(options, *arguments, log=None):
    """Runs fenwick; ends the experiment with its message and exit code if it fails. Where several runs go on at a time
    what it says is appended to the file `log`."""
    command = [options.fenwick, *map(str, arguments)]
    if log is None or options.jobs == 1:
        code = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    else:
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, os.cpu_count() // options.jobs)))
        with open(log, "ab") as file:
            code = subprocess.run(command, stdout=file, stderr=file, env=os.environ | {"OMP_NUM_THREADS": threads}).returncode
        if code != 0:
            say(f"{' '.join(command)}: exit code {code}; {log} has what it said")
    if code != 0:
        raise SystemExit(code)


def at_a_time(options, work, items):
    """work(item) for each of the items, --jobs of them at a time: a list of results in the items' order."""
    with ThreadPoolExecutor(options.jobs) as pool:
        return list(pool.map(work, items))


def tokenize(options, output, *inputs, vocab=None):
    if not output.exists():
        run(options, "tokenize", "--output", output, *(["--vocab", vocab] if vocab else []), *inputs)
    return output


def init(options, folder, family, **sizes):
    """A random model of one of FAMILIES; `sizes` are options of `fenwick init`, a tuple's numbers one behind the other."""
    if folder.exists():
        return folder
    model_type, more = FAMILIES[family]
    arguments = [part for name, value in sizes.items()
                 for part in (f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else (value,)))]
    run(options, "init", "--family", model_type, "--output", folder, "--seed", options.seed, *arguments, *more)
    return folder


def toml(value):
    if isinstance(value, Path):
        value = str(value.resolve())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def train(options, folder, model, settings):
    """Trains `model` as `settings` (section -> key -> value) say; returns the rows of metrics.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = {**settings,
                "model": {"folder": model, "device": options.device, "dtype": options.dtype, **settings.get("model", {})},
                "checkpoint": {"folder": folder / "checkpoints", "keep": 1, **settings.get("checkpoint", {})},
                "log": {"folder": folder / "log", **settings.get("log", {})}}
    lines = [f"[{section}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in keys.items())
             for section, keys in sections.items()]
    config = folder / "train.toml"
    config.write_text("\n".join(lines))
    steps = settings["schedule"]["steps"]
    metrics = folder / "log" / "metrics.jsonl"
    if not metrics.exists() or rows_of(metrics)[-1]["step"] < steps:
        begun = any((folder / "checkpoints").glob("step-*"))
        run(options, "train", "--config", config, *(["--resume"] if begun else []), log=folder / "train.log")
    return rows_of(metrics)


def rows_of(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return rows or [{"step": 0}]


def export(options, run_folder, output):
    """The trained model of a run, in the Hugging Face layout."""
    if not output.exists():
        run(options, "checkpoint", "export", run_folder / "checkpoints", "--output", output)
    return output


def write_table(path, title, head, rows, notes):
    """A Markdown table with what it was made with below it."""
    lines = [f"# {title}", "", "| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    lines += ["", *notes, f"{date.today()}, command: {' '.join(sys.argv)}", ""]
    path.write_text("\n".join(lines))
    say(path.read_text())


def plot(path, curves, x_label, y_label, title):
    """curves: name -> (x values, y values); the x axis is logarithmic. Written as SVG."""
    try:
        import matplotlib
    except ImportError:
        raise SystemExit("plots need matplotlib: apt-get install python3-matplotlib, then run this again "
                         "(what was trained is kept)")
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, (x, y) in curves.items():
        axes.plot(x, y, marker="o", markersize=3, label=name, linestyle="-" if "log-linear" in name else "--")
    axes.set_xscale("log", base=2)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)
    say(f"plot: {path}")
