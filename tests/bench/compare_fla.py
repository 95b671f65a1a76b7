#!/usr/bin/env python3
"""Our mixers beside the public flash-linear-attention on one GPU, in one run.

usage: compare_fla.py --ours PATH/bench_gpu_mixers [--runs N]

Needs torch, Triton, and the packages fla-core and flash-linear-attention (the peer, as published). Ours runs as the
benchmark program. Times are medians of CUDA-event times in milliseconds, inputs bf16, forward only; both sides get the
same shapes, warm-up and number of runs. Prints a table, with device, date and versions first.
"""
import argparse
import datetime
import importlib.metadata
import json
import math
import subprocess
import warnings

import torch
import torch.nn.functional as F


def median_ms(work, runs):
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def bf16(*shape, scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).bfloat16()


def log_linear_mamba2(tokens):
    from fla.ops.log_linear_attn import chunk_log_linear_attn
    heads, key_dim, value_dim = 48, 128, 64
    q, k = bf16(1, tokens, 1, key_dim), bf16(1, tokens, 1, key_dim, scale=0.3)
    dt = F.softplus(torch.randn(1, tokens, heads, device="cuda") - 4)
    v = (torch.randn(1, tokens, heads, value_dim, device="cuda") * dt.unsqueeze(-1)).bfloat16()
    g = -torch.exp(torch.rand(heads, device="cuda")) * dt
    scales = F.softplus(torch.randn(1, tokens, heads, int(math.log2(tokens)) + 1, device="cuda")).bfloat16()
    return lambda: chunk_log_linear_attn(q, k, v, g, scales)


def simple_gla(tokens):
    from fla.ops.simple_gla import chunk_simple_gla
    q, k, v = (bf16(1, tokens, 12, 128) for _ in range(3))
    g = -F.softplus(torch.randn(1, tokens, 12, device="cuda") - 4)
    return lambda: chunk_simple_gla(q, k, v, g)


def gla(tokens):
    from fla.ops.gla import chunk_gla
    q, k, v = (bf16(1, tokens, 12, 128) for _ in range(3))
    g = -F.softplus(torch.randn(1, tokens, 12, 128, device="cuda") - 4)
    return lambda: chunk_gla(q, k, v, g)


def gated_delta(tokens, key_heads, heads):
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    q = bf16(1, tokens, key_heads, 128)
    k = F.normalize(torch.randn(1, tokens, key_heads, 128, device="cuda"), dim=-1).bfloat16()
    v = bf16(1, tokens, heads, 128)
    beta = torch.rand(1, tokens, heads, device="cuda").bfloat16()
    g = -F.softplus(torch.randn(1, tokens, heads, device="cuda") - 4)
    return lambda: chunk_gated_delta_rule(q, k, v, g, beta)


PEERS = {
    "log-linear Mamba-2, 48 heads 128x64": log_linear_mamba2,
    "Mamba-2, 12 heads 128x128": simple_gla,
    "Gated DeltaNet, 12 heads 128x128": lambda t: gated_delta(t, 12, 12),
    "Gated DeltaNet, 16 key and 64 value heads": lambda t: gated_delta(t, 16, 64),
    "GLA, 12 heads 128x128": gla,
    "Gated DeltaNet, 16 key and 16 value heads": lambda t: gated_delta(t, 16, 16),
}


def peer_ms(name, tokens, runs):
    """Milliseconds, or why there is no figure."""
    if name not in PEERS:
        return "no peer"
    try:
        with torch.no_grad():
            return median_ms(PEERS[name](tokens), runs)
    except Exception as error:  # whatever stops the peer is the result
        return f"refuses: {type(error).__name__}: {str(error).strip().splitlines()[0][:60] if str(error) else ''}"
    finally:
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the program bench_gpu_mixers")
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peer's advice on versions, once a shape
    torch.manual_seed(0)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "triton", "fla-core"))
    print(f"{torch.cuda.get_device_name()}; {datetime.date.today()}; {versions}; medians of {arguments.runs}, ms")
    print(f"{'mixer, forward, bf16':46} {'tokens':>9} {'ours':>9} {'peer':>9} {'ratio':>7}")
    ours = subprocess.run([arguments.ours, "--json", "--runs", str(arguments.runs)], check=True,
                          stdout=subprocess.PIPE, text=True)
    for line in ours.stdout.splitlines():
        row = json.loads(line)
        peer = peer_ms(row["work"], row["tokens"], arguments.runs)
        ratio = f"{peer / row['median_ms']:6.2f}x" if isinstance(peer, float) else ""
        shown = f"{peer:9.3f}" if isinstance(peer, float) else peer
        print(f"{row['work']:46} {row['tokens']:9} {row['median_ms']:9.3f} {shown:>9} {ratio:>7}", flush=True)


if __name__ == "__main__":
    main()
