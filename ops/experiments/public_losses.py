#!/usr/bin/env python3
"""Loads a model that `fenwick checkpoint export` wrote with the public flash-linear-attention implementation, and sets its
losses beside those of `fenwick score` for the same documents. Needs a GPU, torch, Triton, transformers and the packages
fla-core and flash-linear-attention. The public log-linear Mamba-2 takes models of 15 levels and up to 16,384 tokens;
its log-linear Gated DeltaNet is not in the packages.

usage: ops/experiments/public_losses.py --model DIR [--fenwick PROGRAM] [--device cuda] [--tokens N] FILE...

Exit code 1 where the means differ by more than --mean or a single loss by more than --single."""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path


def public_losses(folder, documents):
    """For each document (bytes) the losses of its bytes from the second one on, fp32."""
    import torch
    import fla  # noqa: F401  (registers the families with transformers)
    from transformers import AutoModelForCausalLM

    torch.backends.cuda.matmul.allow_tf32 = False
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()
    losses = []
    with torch.no_grad():
        for document in documents:
            ids = torch.tensor(list(document), device="cuda")[None]
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            losses.append(torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none").cpu().numpy())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="documents, read as bytes")
    parser.add_argument("--model", type=Path, required=True, help="an exported byte-level model, fp32")
    parser.add_argument("--fenwick", default="fenwick", help="the program (default: the one in PATH)")
    parser.add_argument("--device", default="cuda", help="where fenwick computes, in fp32")
    parser.add_argument("--tokens", type=int, default=16384, help="of each document, from its start")
    parser.add_argument("--mean", type=float, default=1e-4, help="largest difference of a document's mean loss, nats")
    parser.add_argument("--single", type=float, default=1e-2, help="largest difference of one token's loss, nats")
    options = parser.parse_args()
    try:
        import numpy
    except ImportError:
        sys.exit("numpy is needed: apt-get install python3-numpy")

    documents = [path.read_bytes()[:options.tokens] for path in options.files]
    with tempfile.TemporaryDirectory() as work:
        files = []
        for number, document in enumerate(documents):
            files.append(Path(work) / f"{number}.txt")
            files[-1].write_bytes(document)
        subprocess.run([options.fenwick, "score", "--model", options.model, "--device", options.device, "--dtype", "fp32",
                        "--output", f"{work}/scores", *files], check=True)
        ours = [numpy.load(f"{work}/scores/nll/{number}.npy") for number in range(len(documents))]
    theirs = public_losses(options.model, documents)
    failed = False
    print(f"{'document':32} {'tokens':>8} {'fenwick':>10} {'public':>10} {'difference':>11} {'largest':>9}")
    for path, own, public in zip(options.files, ours, theirs):
        difference = numpy.abs(own - public)
        mean = abs(own.mean(dtype=float) - public.mean(dtype=float))
        failed |= bool(mean > options.mean or difference.max() > options.single)
        print(f"{path.name:32} {len(own) + 1:8} {own.mean(dtype=float):10.6f} {public.mean(dtype=float):10.6f} "
              f"{mean:11.2e} {difference.max():9.2e}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
