#!/usr/bin/env python3
"""MQAR, multi-query associative recall (Arora et al., arXiv 2312.04927): pairs of keys and values, then every key once
more, at distances that follow a power law, and its value is to be predicted. Trained on a mixture of sizes, since the easy
ones are what starts the learning; what counts is the share of answers at the last size, the hardest, with the best of the
learning rates, as a mean over --seeds. Writes mqar.md and mqar.svg into the output folder.

usage: ops/experiments/mqar.py --output DIR [--fenwick PROGRAM] [--device cuda --dtype bf16]"""

import argparse
import json
import random
from pathlib import Path
from statistics import mean

import experiment as lab


def sequence(draw, length, pairs, vocab):
    """Tokens and the places of answers. Keys are in [1, vocab / 2), values in [vocab / 2, vocab), 0 fills up."""
    keys = draw.sample(range(1, vocab // 2), pairs)
    values = [draw.randrange(vocab // 2, vocab) for _ in keys]
    tokens = [token for pair in zip(keys, values) for token in pair]
    # A query is a key and its value on two neighbouring places. Gap g of the (length - 2 pairs) / 2 has weight
    # 1 / (g + 1): most questions come soon, some very late.
    places = list(range((length - 2 * pairs) // 2))
    chosen = []
    weights = [1.0 / (place + 1) for place in places]
    for _ in keys:
        place = draw.choices(places, weights)[0]
        weights[place] = 0.0
        chosen.append(place)
    rest = [0] * (length - 2 * pairs)
    targets = []
    for key, value, place in zip(keys, values, chosen):
        rest[2 * place] = key
        rest[2 * place + 1] = value
        targets.append(2 * pairs + 2 * place + 1)
    return tokens + rest, sorted(targets)


def write_sequences(path, count, seed, sizes, vocab):
    """`count` sequences of the (length, pairs) in `sizes`. Each size has as many answers, for the loss is a mean over answers
    and the easy sizes have few."""
    if path.exists():
        return path
    draw = random.Random(seed)
    with open(path.with_suffix(".part"), "w") as file:
        for number, (length, pairs) in enumerate(draw.choices(sizes, [1 / pairs for _, pairs in sizes], k=count)):
            tokens, targets = sequence(draw, length, pairs, vocab)
            file.write(json.dumps({"custom_id": str(number), "tokens": tokens, "targets": targets}) + "\n")
    path.with_suffix(".part").rename(path)
    return path


def name_of(family, width):
    return f"{family.lower().replace(' ', '_')}-{width}"


def model_of(options, family, width):
    head_dim = min(width, options.head_dim)
    sizes = {} if "DeltaNet" in family else {"state": options.state}
    if "log-linear" in family:
        sizes["levels"] = (max(options.lengths) - 1).bit_length() + 1
    # The usual deviation of 0.02 and dt from 0.001 to 0.1 are made for wide models with many heads. At these widths they
    # leave a state that hardly counts beside the skip, and for thousands of steps nothing is learnt from it.
    return lab.init(options, options.output / "models" / name_of(family, width), family, hidden=width,
                    layers=options.layers, heads=max(1, width // head_dim), head_dim=head_dim, vocab=options.vocab,
                    deviation=width ** -0.5, dt_range=(0.5, 1.0), a_range=(0.02, 0.1), level_scale=lab.LEVEL_SCALE,
                    **sizes)


def accuracy_of(options, family, width, rate, files):
    model = model_of(options, family, width)
    rows = lab.train(options, options.output / "runs" / f"{name_of(family, width)}-{rate:g}", model, {
        "model": {"recompute": options.device != "cpu"},
        "data": {"files": [files[0]], "sequence_tokens": max(options.lengths), "batch_tokens": options.batch_tokens,
                 "seed": options.seed},
        "optimizer": {"lr": rate, "weight_decay": 0.0, "clip_norm": 1.0},
        "schedule": {"kind": "cosine", "steps": options.steps, "warmup_steps": options.steps // 10},
        "validation": {"files": [files[1]], "every_steps": max(1, options.steps // 8), "batches": 1 << 20},
        "checkpoint": {"every_steps": max(1, options.steps // 4)},
        "log": {"every_steps": max(1, options.steps // 100)},
    })
    return max(row["validation"]["accuracy"] for row in rows if "validation" in row)


def data_of(options, sizes):
    """Token files for training and validation."""
    data = options.output / "data"
    data.mkdir(parents=True, exist_ok=True)
    return [lab.tokenize(options, data / f"{name}.tokens",
                         write_sequences(data / f"{name}.jsonl", count, options.seed + shift, of, options.vocab),
                         vocab=options.vocab)
            for name, count, shift, of in (("train", options.sequences, 0, sizes),
                                           ("validation", options.validation, 1_000_000, sizes[-1:]))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_options(parser)
    parser.add_argument("--seeds", type=int, nargs="+", help="several seeds, instead of --seed: one run tells little")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-2, 2e-2], help="learning rates")
    parser.add_argument("--pairs", type=int, nargs="+", default=[2, 4, 8, 12, 24], help="of each size, the hardest last")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 64, 96], help="tokens of each size")
    parser.add_argument("--vocab", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=16)
    parser.add_argument("--state", type=int, default=16, help="state size of a Mamba-2 head")
    parser.add_argument("--batch-tokens", type=int, default=4096, help="tokens of a step")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--sequences", type=int, default=100_000, help="of the training data")
    parser.add_argument("--validation", type=int, default=500, help="sequences of the last size that are not trained on")
    parser.add_argument("--families", nargs="+", default=list(lab.FAMILIES), choices=list(lab.FAMILIES))
    options = parser.parse_args()

    if len(options.pairs) != len(options.lengths):
        parser.error("--pairs and --lengths need as many numbers as each other")
    sizes = list(zip(options.lengths, options.pairs))
    for length, pairs in sizes:
        if length < 4 * pairs or pairs >= options.vocab // 2:
            parser.error(f"{pairs} pairs need {4 * pairs} tokens and a vocabulary of {2 * pairs + 2}")

    # A seed is of data and weights; each has a folder of its own.
    seeds = [argparse.Namespace(**vars(options) | {"seed": seed, "output": options.output / f"seed-{seed}"})
             for seed in options.seeds or [options.seed]]
    files = {of.seed: data_of(of, sizes) for of in seeds}
    runs = [(of, family, width, rate) for of in seeds for family in options.families for width in options.widths
            for rate in options.rates]
    for of, family, width, _ in runs:
        model_of(of, family, width)
    runs.sort(key=lambda run: -run[2])  # the widest take the longest and so come first
    accuracies = lab.at_a_time(options, lambda run: accuracy_of(*run, files[run[0].seed]), runs)
    by_run = {(of.seed, *run): accuracy for (of, *run), accuracy in zip(runs, accuracies)}
    best = {}  # (family, width) -> each seed's, with the best of the rates
    for family in options.families:
        for width in options.widths:
            for of in seeds:
                by_rate = {rate: by_run[of.seed, family, width, rate] for rate in options.rates}
                best.setdefault((family, width), []).append(100 * max(by_rate.values()))
                lab.say(f"{family}, width {width}, seed {of.seed}: " + ", ".join(f"{a:.1%} at {r:g}" for r, a in by_rate.items()))

    def shown(found):
        spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else ""
        return f"{mean(found):.1f} %{spread}"

    lab.write_table(options.output / "mqar.md", "MQAR: share of answers predicted",
                    ["family", *(f"width {width}" for width in options.widths)],
                    [[family, *(shown(best[family, width]) for width in options.widths)] for family in options.families],
                    [f"{options.pairs[-1]} pairs in {options.lengths[-1]} tokens; trained on {options.pairs} pairs in "
                     f"{options.lengths} tokens, vocabulary {options.vocab}, {options.layers} layers, {options.steps} steps "
                     f"of {options.batch_tokens} tokens, best of the rates {options.rates}, seeds "
                     f"{[of.seed for of in seeds]}: mean (least to most)."])
    lab.plot(options.output / "mqar.svg",
             {family: (options.widths, [mean(best[family, width]) for width in options.widths])
              for family in options.families}, "width of the model", "answers predicted, %", "MQAR")


if __name__ == "__main__":
    main()
