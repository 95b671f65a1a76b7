#!/usr/bin/env python3
"""Our mixers beside the public flash-linear-attention and FlashQLA on one GPU, in one run.

usage: compare_fla.py --ours PATH/bench_gpu_mixers [--backward] [--runs N] [--tokens N] [NAME-PART]

Needs torch, Triton, and the peers as published: the packages fla-core and flash-linear-attention; flash-qla with tilelang
for its column. Ours runs as the benchmark program. Times are medians of CUDA-event times in milliseconds, inputs bf16,
no final state; forward only, or with --backward forward and backward together, with gradients of all inputs; all sides get
the same shapes, kind of decays, warm-up and number of runs. Prints a table, with
device, date and versions first; `ratio` is the fastest peer's time over ours. `attention` is causal softmax attention by
cuDNN for a layer of the same width (24 heads of 64): it says from which length ours is faster.
"""
import argparse
import datetime
import importlib.metadata
import json
import math
import subprocess
import sys
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


def with_gradients(call, inputs):
    """A run of `call` on inputs that want gradients, and of its backward."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    first = lambda out: out[0] if isinstance(out, tuple) else out
    with torch.no_grad():
        d_out = torch.randn_like(first(call(*leaves)))
    return lambda: torch.autograd.grad(first(call(*leaves)), leaves, d_out)


def work_of(call, inputs, backward):
    return with_gradients(call, inputs) if backward else lambda: call(*inputs)


def log_linear_mamba2(tokens, backward):
    from fla.ops.log_linear_attn import chunk_log_linear_attn
    heads, key_dim, value_dim = 48, 128, 64
    q, k = bf16(1, tokens, 1, key_dim), bf16(1, tokens, 1, key_dim, scale=0.3)
    dt = F.softplus(torch.randn(1, tokens, heads, device="cuda") - 4)
    v = (torch.randn(1, tokens, heads, value_dim, device="cuda") * dt.unsqueeze(-1)).bfloat16()
    g = -torch.exp(torch.rand(heads, device="cuda")) * dt
    scales = F.softplus(torch.randn(1, tokens, heads, int(math.log2(tokens)) + 1, device="cuda")).bfloat16()
    return work_of(chunk_log_linear_attn, (q, k, v, g, scales), backward)


def simple_gla(tokens, backward):
    from fla.ops.simple_gla import chunk_simple_gla
    q, k, v = (bf16(1, tokens, 12, 128) for _ in range(3))
    g = -F.softplus(torch.randn(1, tokens, 12, device="cuda") - 4)
    return work_of(chunk_simple_gla, (q, k, v, g), backward)


def gla(tokens, backward):
    from fla.ops.gla import chunk_gla
    q, k, v = (bf16(1, tokens, 12, 128) for _ in range(3))
    g = -F.softplus(torch.randn(1, tokens, 12, 128, device="cuda") - 4)
    return work_of(chunk_gla, (q, k, v, g), backward)


def gated_delta_inputs(tokens, key_heads, heads, decay):
    q = bf16(1, tokens, key_heads, 128)
    k = F.normalize(torch.randn(1, tokens, key_heads, 128, device="cuda"), dim=-1).bfloat16()
    v = bf16(1, tokens, heads, 128)
    g = -decay * torch.rand(1, tokens, heads, device="cuda")
    beta = torch.rand(1, tokens, heads, device="cuda")
    return q, k, v, g, beta


def gated_delta(key_heads, heads, decay=0.05):
    def fla(tokens, backward):
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
        q, k, v, g, beta = gated_delta_inputs(tokens, key_heads, heads, decay)
        beta = beta.bfloat16()
        return work_of(chunk_gated_delta_rule, (q, k, v, g, beta), backward)

    def flash_qla(tokens, backward):
        from flash_qla import chunk_gated_delta_rule
        q, k, v, g, beta = gated_delta_inputs(tokens, key_heads, heads, decay)
        call = lambda *x: chunk_gated_delta_rule(**dict(zip("q k v g beta".split(), x)), scale=128**-0.5, output_final_state=False)
        return work_of(call, (q, k, v, g, beta), backward)

    return {"fla": fla, "flash-qla": flash_qla}


def attention(tokens, backward):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    if tokens > 131072:
        raise OverflowError("takes seconds")
    q, k, v = (bf16(1, 24, tokens, 64) for _ in range(3))

    def call(*inputs):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(*inputs, is_causal=True)

    return work_of(call, (q, k, v), backward)


PEERS = {
    "log-linear Mamba-2, 48 heads 128x64": {"fla": log_linear_mamba2, "attention": attention},
    "Mamba-2, 12 heads 128x128": {"fla": simple_gla},
    "Gated DeltaNet, 12 heads 128x128": gated_delta(12, 12),
    "Gated DeltaNet, 12 heads 128x128, slow decay": gated_delta(12, 12, 0.002),
    "Gated DeltaNet, 16 key and 64 value heads": gated_delta(16, 64),
    "Gated DeltaNet, 16 key and 16 value heads": gated_delta(16, 16),
    "Gated DeltaNet, 16 key and 32 value heads": gated_delta(16, 32),
    "GLA, 12 heads 128x128": {"fla": gla},
}
COLUMNS = ("fla", "attention", "flash-qla")


def peer_ms(name, peer, tokens, runs, backward):
    """Milliseconds, or why there is no figure."""
    work = PEERS.get(name, {}).get(peer)
    if work is None:
        return "-"
    try:
        with torch.set_grad_enabled(backward):
            return median_ms(work(tokens, backward), runs)
    except ModuleNotFoundError as error:
        return f"no {error.name}"
    except Exception as error:  # whatever stops the peer is the result
        print(f"  {peer}, {tokens}: {type(error).__name__}: {str(error).strip()[:200]}")
        return "refuses"
    finally:
        torch.cuda.empty_cache()


def version(package):
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"no {package}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ours", required=True, help="the program bench_gpu_mixers")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--backward", action="store_true", help="time forward and backward together")
    parser.add_argument("--tokens", type=int, help="only this length: peers may take minutes to compile or to run")
    parser.add_argument("part", nargs="?", help="only works whose name has this in it")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peer's advice on versions, once a shape
    torch.manual_seed(0)
    versions = ", ".join(version(p) for p in ("torch", "triton", "fla-core", "flash-qla", "tilelang"))
    print(f"{torch.cuda.get_device_name()}; {datetime.date.today()}; {versions}; medians of {arguments.runs}, ms")
    command = [arguments.ours, "--json", "--runs", str(arguments.runs)]
    command += ["--backward"] * arguments.backward + (["--tokens", str(arguments.tokens)] if arguments.tokens else [])
    command += [arguments.part] if arguments.part else []
    ours_ms = "both_ms" if arguments.backward else "median_ms"
    ours = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(line) for line in ours.stdout.splitlines()]
    sys.modules["flash_qla"] = None  # the fla packages would hand their work to it
    for column in COLUMNS:
        if column == "flash-qla":
            del sys.modules["flash_qla"]
        for row in rows:
            row[column] = peer_ms(row["work"], column, row["tokens"], arguments.runs, arguments.backward)
            print(f"  {row['work']}, {row['tokens']}: {column} {row[column]}", file=sys.stderr, flush=True)
    title = "mixer, forward and backward, bf16" if arguments.backward else "mixer, forward, bf16"
    print(f"{title:46} {'tokens':>9} {'ours':>9} " + " ".join(f"{c:>9}" for c in COLUMNS) + f" {'ratio':>7}")
    for row in rows:
        times = [row[c] for c in ("fla", "flash-qla") if isinstance(row[c], float)]
        ratio = f"{min(times) / row[ours_ms]:6.2f}x" if times else ""
        shown = " ".join(f"{row[c]:9.3f}" if isinstance(row[c], float) else f"{row[c]:>9}" for c in COLUMNS)
        print(f"{row['work']:46} {row['tokens']:9} {row[ours_ms]:9.3f} {shown} {ratio:>7}")


if __name__ == "__main__":
    main()
