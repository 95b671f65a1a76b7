"""Running Fenwick's programs, and how a script ends that cannot go on."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np"]
# 0.8 B parameters.
MODEL = "--family log_linear_mamba2 --hidden 1536 --layers 21 --heads 48 --head-dim 64 --state 128 --vocab 32000 --seed 1".split()


def leave(code, text):
    print(f"ops/scaling-curve: {text}", file=sys.stderr)
    raise SystemExit(code)


def texts(words):
    return [str(word) for word in words]


def model_of(options, work):
    """The folder of the whole model: the user's, or a random one."""
    if options.model:
        return options.model
    done = subprocess.run(texts([options.build / "fenwick", "init", "--output", work / "model", *MODEL]), capture_output=True, text=True)
    if done.returncode != 0:
        leave(69, f"a random model could not be written: {done.stderr}")
    return work / "model"


def print_table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    print("\n".join("| " + " | ".join(texts(row)) + " |" for row in rows), flush=True)
