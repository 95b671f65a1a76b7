#!/usr/bin/env python3
"""Byte-level language models on long documents: linear against log-linear forms with the same layers and, but for lambda,
the same parameters, and their loss by position on documents that were held out. Writes language_model.md and
language_model.svg into the output folder.

Text is cut into documents of --document bytes; every tenth is held out. Without --text it is the dictionary of Debian's
package dict-gcide.

usage: ops/experiments/language_model.py --output DIR [--fenwick PROGRAM] [--text FILE...] [--device cuda --dtype bf16]"""

import argparse
import gzip
import struct
from array import array
from pathlib import Path

import experiment as lab

GCIDE = Path("/usr/share/dictd/gcide.dict.dz")


def text_of(path):
    if not path.exists():
        raise SystemExit(f"{path}: there is no such file" + (": apt-get install dict-gcide" if path == GCIDE else ""))
    data = gzip.decompress(path.read_bytes()) if path.suffix in (".gz", ".dz") else path.read_bytes()
    return data


def write_documents(options, folder):
    """train.u8 files and held-out documents, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = [], []
    number = 0
    for path in options.text:
        data = text_of(path)
        for first in range(0, len(data) - options.document // 2, options.document):
            held = number % 10 == 9
            if not held or len(held_out) < options.held_out:
                file = folder / f"{'held_out' if held else 'train'}-{number:05d}.txt"
                if not file.exists():
                    file.write_bytes(data[first:first + options.document])
                (held_out if held else train).append(file)
            number += 1
    return train, held_out


def losses_by_position(folder, edges):
    """Mean loss of the positions between neighbouring edges over all documents of a `fenwick score` folder."""
    sums, counts = [0.0] * (len(edges) - 1), [0] * (len(edges) - 1)
    for path in sorted((folder / "nll").glob("*.npy")):
        raw = path.read_bytes()
        header = struct.unpack("<H", raw[8:10])[0] + 10
        values = array("f", raw[header:])
        for i, (first, end) in enumerate(zip(edges, edges[1:])):
            part = values[first:end]
            sums[i] += sum(part)
            counts[i] += len(part)
    return [s / c if c else None for s, c in zip(sums, counts)]


def losses_of(options, family, data, held_out, levels, edges):
    """A family's losses by position, trained and scored where that has not been done yet."""
    name = family.lower().replace(" ", "_")
    sizes = {"hidden": options.hidden, "layers": options.layers, "vocab": 256, "level_scale": lab.LEVEL_SCALE}
    if "DeltaNet" in family:
        # d_k = head_dim, d_v twice that: as large a state as Mamba-2's with half the heads.
        sizes |= {"heads": max(1, options.heads // 2), "head_dim": options.head_dim}
    else:
        sizes |= {"heads": options.heads, "head_dim": options.head_dim, "state": options.state}
    if family.startswith("log-linear"):
        sizes["levels"] = levels
    model = lab.init(options, options.output / "models" / name, family, **sizes)
    run = options.output / "runs" / name
    lab.train(options, run, model, {
        "data": {"files": [data], "sequence_tokens": options.document,
                 "batch_tokens": options.document * options.batch, "seed": options.seed},
        "optimizer": {"lr": options.rate, "weight_decay": 0.1, "clip_norm": 1.0},
        "schedule": {"kind": "cosine", "steps": options.steps, "warmup_steps": options.steps // 20},
        "checkpoint": {"every_steps": max(1, options.steps // 20)},
        "log": {"every_steps": max(1, options.steps // 200)},
    })
    exported = lab.export(options, run, options.output / "trained" / name)
    scored = options.output / "scores" / name
    if not (scored / "manifest.json").exists():
        lab.run(options, "score", "--model", exported, "--output", scored, "--device", options.device, "--resume",
                *held_out, log=run / "score.log")
    means = losses_by_position(scored, edges)
    lab.say(f"{family}: " + ", ".join(f"{loss:.4f}" if loss else "" for loss in means))
    return means


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_options(parser)
    parser.add_argument("--text", type=Path, nargs="+", default=[GCIDE], help="text files, .gz and .dz as well")
    parser.add_argument("--document", type=int, default=65536, help="bytes of a document")
    parser.add_argument("--held-out", type=int, default=32, help="documents that are scored")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--state", type=int, default=64, help="state size of a Mamba-2 head")
    parser.add_argument("--batch", type=int, default=2, help="documents of a step")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    parser.add_argument("--families", nargs="+", default=list(lab.FAMILIES), choices=list(lab.FAMILIES))
    options = parser.parse_args()

    train_files, held_out = write_documents(options, options.output / "data")
    data = lab.tokenize(options, options.output / "data" / "train.tokens", *train_files)
    levels = (options.document - 1).bit_length() + 1
    edges = [0] + [1 << bit for bit in range(8, (options.document - 1).bit_length() + 1)]
    losses = lab.at_a_time(options, lambda family: losses_of(options, family, data, held_out, levels, edges),
                           options.families)
    curves, table = {}, []
    for family, means in zip(options.families, losses):
        curves[family] = ([end for end, loss in zip(edges[1:], means) if loss], [x for x in means if x])
        table.append([family] + [f"{loss:.4f}" if loss else "" for loss in means])
    head = ["family"] + [f"{first} to {end - 1}" for first, end in zip(edges, edges[1:])]
    lab.write_table(options.output / "language_model.md", "Loss (nats a byte) by position in the document", head, table,
                    [f"{len(train_files)} documents of {options.document} bytes, {len(held_out)} held out, {options.steps} "
                     f"steps of {options.batch} documents, seed {options.seed}."])
    lab.plot(options.output / "language_model.svg", curves, "position in the document, up to", "nats a byte",
             "Loss by position on held-out documents")


if __name__ == "__main__":
    main()
