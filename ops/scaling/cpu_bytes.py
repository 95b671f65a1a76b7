"""Losses of processes on the CPU beside those of one rank."""

import os
import subprocess
from random import Random

from scaling.programs import MPIRUN, leave, texts

FAMILIES = ["log_linear_mamba2", "mamba2", "h_gated_deltanet", "gated_deltanet"]
SIZES = "--hidden 64 --layers 2 --heads 4 --head-dim 16 --state 16 --seed 3".split()
# 18 blocks, the last one short, and 32: two blocks a rank and more.
LENGTHS = [70001, 131072]


def bytes_on_cpu(options, work):
    documents = []
    for tokens in LENGTHS:
        documents.append(work / f"d{tokens}.txt")
        documents[-1].write_bytes(bytes(32 + byte % 95 for byte in Random(tokens).randbytes(tokens)))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    failed = 0
    with open(work / "log", "w") as log:

        def run(*words):
            return subprocess.run(texts(words), env=environment, stdout=log, stderr=log, timeout=900).returncode

        def losses(folder):
            return [(work / folder / "nll" / f"{document.stem}.npy").read_bytes() for document in documents]

        for family in FAMILIES:
            score = [options.build / "fenwick", "score", "--model", work / family, "--device", "cpu", "--overwrite", "--json"]
            made = run(options.build / "fenwick", "init", "--family", family, "--output", work / family, *SIZES) == 0
            if not made or run(*score, "--output", work / "one", *documents) != 0:
                leave(1, f"{family}, one rank: {(work / 'log').read_text()}")
            want = losses("one")
            for ranks in range(3, 9):
                for passes in ("unlimited", 8192 * ranks):
                    code = run(*MPIRUN, ranks, *score, "--output", work / "many", "--pass-tokens", passes, *documents)
                    same = code == 0 and losses("many") == want
                    failed += not same
                    print(f"{'same   ' if same else 'FAILED '} {family}, {ranks} processes, passes of {passes} (exit code {code})", flush=True)
    print(f"ops/scaling-curve: {f'{failed} failed' if failed else 'all losses are the bytes of one rank'}")
    return 1 if failed else 0
