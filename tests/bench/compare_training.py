#!/usr/bin/env python3
"""Training speed of a whole model: ours beside the public flash-linear-attention's, forward and backward of one document on
one GPU, in one run.

usage: compare_training.py --ours PATH/bench_train --model DIR [--tokens N] [--runs N]

DIR is a model as `fenwick init` writes it; both sides take its config.json. The public log-linear Mamba-2 has 15 levels and
takes up to 16,384 tokens. Needs torch, Triton, transformers and the packages fla-core and flash-linear-attention. The public
side runs with bf16 weights, its own fused loss and, unless it fits without, activation checkpointing. Medians."""
import argparse
import datetime
import importlib.metadata
import subprocess
import time
import warnings


def public_seconds(folder, tokens, runs, checkpointing):
    import torch
    import fla  # noqa: F401  (registers the families with transformers)
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).cuda().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids = torch.randint(0, model.config.vocab_size, (1, tokens), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(runs + 2):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
        model.zero_grad(set_to_none=True)
    peak = torch.cuda.max_memory_allocated() / 2**30
    return sorted(times[2:])[runs // 2], peak


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the program bench_train")
    parser.add_argument("--model", required=True, help="folder of a model: its config.json is what counts")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "triton", "fla-core", "transformers"))
    print(f"{datetime.date.today()}; {versions}; {options.tokens} tokens, medians of {options.runs}", flush=True)
    subprocess.run([options.ours, "--model", options.model, "--runs", str(options.runs), str(options.tokens)], check=True)
    import torch
    for checkpointing in (False, True):
        try:
            seconds, peak = public_seconds(options.model, options.tokens, options.runs, checkpointing)
        except torch.cuda.OutOfMemoryError:
            print("public: does not fit without activation checkpointing" if not checkpointing else "public: does not fit")
            torch.cuda.empty_cache()
            continue
        print(f"public{', activation checkpointing' if checkpointing else ''}: {options.tokens} tokens: {seconds:.3f} s, "
              f"{options.tokens / seconds:,.0f} tokens/s, {peak:.1f} GiB of GPU memory", flush=True)
        break


if __name__ == "__main__":
    main()
