"""Tables and a plot of what other numbers of GPUs should take: model.py's curves with the plans of fenwick and plan_mixers."""

import json
import subprocess
from functools import lru_cache

from scaling.measure import print_measured
from scaling.model import Curve, merged, runs_of
from scaling.programs import leave, model_of, print_table, texts

RANKS = range(3, 9)


def planner(options, model, figures):
    """plan(part, what, tokens, ranks), as Curve wants it."""

    def lines(*words):
        done = subprocess.run(texts(words), capture_output=True, text=True)
        if done.returncode != 0:
            leave(69, f"{words[0]} failed: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    @lru_cache(maxsize=None)
    def mixers(tokens, ranks):
        return {line["name"]: line | {"passes": 1} for line in lines(options.build / "plan_mixers", tokens, ranks, "nvlink")}

    @lru_cache(maxsize=None)
    def whole(tokens, ranks, pass_tokens):
        # The rate has no effect on what is read of the plan; without one there is no prediction in it.
        plan, = lines(options.build / "fenwick", "plan", "--json", "--model", model, "--tokens", tokens, "--ranks", ranks,
                      "--pass-tokens", pass_tokens, "--link", "nvlink", "--rank-tflops", 100)
        return {"work": plan["flops"], "efficiency": plan["prediction"]["efficiency_exchange_hidden"], "passes": plan["passes"],
                "exchange_ms": 1e3 * plan["prediction"]["exchange_seconds"], "rounds": plan["exchange"]["rounds"],
                "bytes": max(layer["tree_exchange"]["bytes_sent_by_a_rank"] for layer in plan["layers"])}

    def plan(part, what, tokens, ranks):
        if part == "mixer":
            if what not in mixers(tokens, ranks):
                raise LookupError("plan_mixers knows no such mixer")
            return mixers(tokens, ranks)[what]
        if part == "training":
            return whole(tokens, ranks, "unlimited")
        share = {f.get("pass_tokens_per_rank", 262144) for f in figures if f["part"] == part and f["what"] == what}
        # A short document has shorter passes: the longest are what a rank's memory takes.
        return whole(tokens, ranks, max(share) * ranks)

    return plan


def read(path):
    try:
        found = json.loads(path.read_text())
        for each in found["figures"]:
            if each["part"] not in ("mixer", "prefill", "training"):
                raise ValueError(f"part {each['part']}")
            if each["tokens"] < 1 or each["ranks"] < 1 or min(runs_of(each["ms"])) <= 0 or not each["what"]:
                raise ValueError(f"not a figure: {each}")
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        leave(65, f"{path}: {type(error).__name__}: {error} (--help has the format)")


def predict(options, work):
    found = read(options.predict)
    figures = found["figures"]
    plan = planner(options, model_of(options, work), figures)
    table, curves, notes = merged(figures), [], {}
    for part, what in dict.fromkeys(key[:2] for key in table):
        for tokens in options.tokens:
            try:
                curves.append(Curve(table, part, what, tokens, lambda t, p, part=part, what=what: plan(part, what, t, p)))
            except LookupError as error:
                notes.setdefault(f"no prediction: {error.args[0]}", []).append(f"{what}, {part}, T {tokens:,}")
    if not curves:
        leave(65, f"{options.predict}: nothing can be predicted: {notes}")
    predictions = {curve: {p: curve.predict(p) for p in [2, *RANKS]} for curve in curves}
    print(f"Measured: {found.get('device', '?')}, {found.get('date', '?')}, commit {found.get('commit', '?')}.\n")
    print_measured(figures)
    print("\nPredicted, not measured, from these: milliseconds (speed-up over one GPU; its least to its most).\n")
    print_table(["predicted", "T", *texts(RANKS)], [[*title(c), *(time_cell(predictions[c][p]) for p in RANKS)] for c in curves])
    print("\nOne layer's exchange of a pass, of the rank that sends most: rounds; MiB sent; then ms of all layers and passes by the link's model.\n")
    print_table(["planned", "T", *texts([2, *RANKS])], [[*title(c), *(exchange_cell(c, p) for p in [2, *RANKS])] for c in curves])
    for curve in curves:
        remarks(curve, predictions[curve], notes)
    print("\n" + "\n".join(f"- {note}: {'; '.join(dict.fromkeys(names))}." for note, names in notes.items()))
    if options.svg:
        draw(options.svg, curves, predictions, found)
    return 0


def remarks(curve, predictions, notes):
    name = ", T ".join(title(curve))
    for length in sorted({p["scaled_from"] for p in predictions.values() if p and p["scaled_from"]}):
        notes.setdefault(f"one GPU is that of T {length:,}, scaled by useful operations", []).append(name)
    if curve.fitted != curve.tokens:
        notes.setdefault(f"the fixed part is that of T {curve.fitted:,}", []).append(name)
    if len(runs_of(curve.two["ms"])) == 1:
        notes.setdefault("a single figure of two GPUs, so that no spread of runs is in the error bars", []).append(title(curve)[0])
    if not all(predictions.values()):
        notes.setdefault("-: one GPU has no figure with as many rows", []).append(name)


def title(curve):
    return [curve.what if curve.part == "mixer" else f"{curve.what}, {curve.part}", f"{curve.tokens:,}"]


def time_cell(found):
    if found is None:
        return "-"
    ms = f"{found['ms']:,.0f}" if found["ms"] >= 1000 else f"{found['ms']:.4g}"
    return f"{ms} ({found['speed_up']:.2f}x; {found['speed_up_least']:.2f} to {found['speed_up_most']:.2f})"


def exchange_cell(curve, ranks):
    plan, (_, exchange, _, _) = curve.plan(curve.tokens, ranks), curve.parts(curve.tokens, ranks)
    return f"{plan['rounds']}; {plan['bytes'] / 2 ** 20:.2f}; {exchange:.3g}"


def draw(path, curves, predictions, found):
    try:
        import matplotlib
    except ImportError:
        leave(69, "the plot needs matplotlib: apt-get install python3-matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scaling"  # the same file from the same figures
    import matplotlib.pyplot as plt
    lengths = sorted({curve.tokens for curve in curves})
    names = list(dict.fromkeys(title(curve)[0] for curve in curves))
    figure, panels = plt.subplots(1, len(lengths), figsize=(6 * len(lengths), 5.4), squeeze=False, sharey=True)
    for axes, tokens in zip(panels[0], lengths):
        for curve in (curve for curve in curves if curve.tokens == tokens):
            place = names.index(title(curve)[0])
            aside = 0.08 * (place - (len(names) - 1) / 2)  # error bars beside each other
            points = {p: each for p, each in predictions[curve].items() if each and p not in curve.measured}
            share = {key: [100 * each[key] / p for p, each in points.items()] for key in ("speed_up", "speed_up_least", "speed_up_most")}
            bars = [[s - low for s, low in zip(share["speed_up"], share["speed_up_least"])],
                    [high - s for s, high in zip(share["speed_up"], share["speed_up_most"])]]
            axes.errorbar([p + aside for p in points], share["speed_up"], yerr=bars, color=f"C{place}", linestyle="--", linewidth=0.8,
                          elinewidth=0.8, capsize=2, marker="o", markersize=4, markerfacecolor="white")
            seen = {p: 100 * s / p for p in sorted(curve.measured) if (s := curve.measured_speed_up(p))}
            axes.plot([p + aside for p in seen], list(seen.values()), color=f"C{place}", linestyle="none", marker="o", markersize=6)
        axes.axhline(100, color="black", linewidth=0.8, linestyle=":")
        axes.set(title=f"T {tokens:,}", xlabel="GPUs", xticks=range(1, 9))
        axes.grid(alpha=0.3)
    panels[0][0].set_ylabel("speed-up over one GPU / GPUs, %")
    handles = [plt.Line2D([], [], color=f"C{place}", linewidth=2, label=name) for place, name in enumerate(names)]
    figure.legend(handles=handles, loc="lower center", ncols=2 if len(names) < 5 else 3, fontsize=8)
    figure.suptitle(f"Filled: measured ({found.get('device', '?')}). Hollow, with error bars: predicted, not measured", fontsize=10)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    print(f"\nplot: {path}")
