"""Time on P ranks, predicted from what one and two took. Pure functions; ops/scaling-curve runs programs and draws.

A curve is one kind of work at one length T: a mixer's step, a model's prefill, a model's training step. Its model:

    time(P) = W / (P e(P))  +  x H(P)  +  f n(P) g(P)

    W     of one rank. Where T was not measured on one: the longest measured length, times the ratio of useful operations
    e(P)  share of P ranks that unequal shards leave (whole blocks, cut by level costs: parallel/shard_plan)
    H(P)  the exchanges of all layers and passes by the link's model (parallel/exchange_cost, nvlink); twice in training
    x     share of H that is exposed, 0 to 1
    n(P)  passes over the document: a rank takes what fits into its memory, so more ranks need fewer passes
    f     what a pass costs beside, on however many ranks; fitted so that two ranks take what was measured of them
    g(P)  1, or the exchange's rounds ceil(log2 P)

Where two ranks take less than W / (2 e(2)) + x H(2) asks, f = 0 and W is what two ranks make of it.

The curve: medians; x as measured on two (1 where it was not); g = 1; W of the engine's step, where a mixer has one.
Its error bars, the least and the most over all of: x = 0 and x = 1; the fastest and the slowest run of one and of two ranks;
the fixed part constant (g = 1), growing with the rounds (g above), or no fixed part but work, which more ranks share (f = 0 and W what
two ranks make of it). Of mixers also W without what a step leaves for the next pass: one rank alone need not do that, so it is in f then.

It assumes one host, every pair of ranks linked as the two that were measured and all at once (NVSwitch), ranks as fast
as those two whatever their number, and that a rank's speed does not depend on its number of rows. It knows nothing of
contention for the host's processors and memory, of heat, or of hosts between which a network lies.
"""

from itertools import product
from statistics import median


def runs_of(value):
    """Times of a figure: a list, or a single number where only a median is known."""
    return list(value) if isinstance(value, (list, tuple)) else [value]


def merged(figures):
    """(part, what, tokens, ranks) -> one figure; runs of the same are put together."""
    table = {}
    for figure in figures:
        key = (figure["part"], figure["what"], figure["tokens"], figure["ranks"])
        if key in table:
            both = table[key]
            for name in ("ms", "step_ms"):
                if name in figure:
                    both[name] = runs_of(both.get(name, [])) + runs_of(figure[name])
        else:
            table[key] = dict(figure)
    return table


def faults(figures):
    """What must not be: bytes that differ between rank counts, messages that the schedule does not have."""
    found, sums = [], {}
    for f in figures:
        name = f"{f['what']}, {f['part']}, T {f['tokens']:,}"
        if f.get("as_scheduled") is False:
            found.append(f"{name}, {f['ranks']} ranks: messages are not the schedule's")
        if "checksum" in f:
            want = sums.setdefault((f["part"], f["what"], f["tokens"]), f)
            if want["checksum"] != f["checksum"]:
                found.append(f"{name}: the bytes of {f['ranks']} ranks are not those of {want['ranks']}")
    return found


class Curve:
    """`figures`: what merged() gives; `plan(tokens, ranks)` -> dict of work (any unit), efficiency, exchange_ms, rounds,
    passes. Raises LookupError, saying why, where the figures do not say enough."""

    def __init__(self, figures, part, what, tokens, plan):
        self.part, self.what, self.tokens, self.plan = part, what, tokens, plan
        mine = {key[2:]: value for key, value in figures.items() if key[:2] == (part, what)}
        self.measured = {ranks: figure for (length, ranks), figure in mine.items() if length == tokens}
        ones = {length: figure for (length, ranks), figure in mine.items() if ranks == 1}
        twos = {length: figure for (length, ranks), figure in mine.items() if ranks == 2}
        if not twos:
            raise LookupError("not measured on two ranks")
        # The longest of the lengths up to this one; a longer one only where there is nothing else.
        self.fitted = max((t for t in twos if t <= tokens), default=min(twos))
        self.two = twos[self.fitted]
        self.ones = {length: one for length, one in ones.items() if not recomputes(one)}
        self.recomputing = {length: one for length, one in ones.items() if recomputes(one)}
        self.kept_rows = max((length // ranks for (length, ranks), each in mine.items() if not recomputes(each)), default=0)
        if not self.ones:
            raise LookupError("not measured on one rank")

    def one_rank(self, tokens, ranks):
        """(figure, factor from its length to `tokens`) of one rank that works as each of `ranks` does, or None."""
        ones = self.ones
        if self.part == "training" and tokens / ranks > self.kept_rows:
            # There is no room for all layers' inputs: as slow as one rank that had as many rows to itself.
            ones = {length: one for length, one in self.recomputing.items() if length >= tokens / ranks}
            if not ones:
                return None
            length = min(ones)
        else:
            length = max((t for t in ones if t <= tokens), default=min(ones))
        return ones[length], self.plan(tokens, 1)["work"] / self.plan(length, 1)["work"]

    def parts(self, tokens, ranks):
        """W's factor apart: (1 / (P e), H in ms, passes, rounds)."""
        plan = self.plan(tokens, ranks)
        exchanges = 2 if self.part == "training" else 1
        return 1 / (ranks * plan["efficiency"]), exchanges * plan["exchange_ms"], plan["passes"], plan["rounds"]

    def exposed(self):
        """x as it was measured on two ranks."""
        _, exchange, passes, _ = self.parts(self.fitted, 2)
        if "exposed_ms" in self.two:
            waited = self.two["exposed_ms"]
        elif "pass_exposed_ms" in self.two:
            waited = self.two["pass_exposed_ms"] * passes
        else:
            return 1.0
        return min(1.0, waited / exchange) if exchange > 0 else 0.0

    def time(self, ranks, one_ms, fit_ms, two_ms, x, fixed):
        """time(P). `one_ms`: W at this length; `fit_ms`, `two_ms`: at the fitted one, W of a rank as two work, and both's time."""
        share, exchange, passes, fit_rounds = self.parts(self.fitted, 2)
        rest = two_ms - x * exchange
        scale, per_pass = 1.0, (rest - fit_ms * share) / passes
        if per_pass < 0 or fixed == "shared":
            scale, per_pass = rest / (fit_ms * share), 0.0
        share, exchange, passes, rounds = self.parts(self.tokens, ranks)
        growth = rounds / fit_rounds if fixed == "grows" else 1
        return one_ms * scale * share + x * exchange + per_pass * passes * growth

    def predict(self, ranks):
        """Milliseconds and speed-up, each with the least and the most; None where one rank's figures say nothing."""
        found, at_fit = self.one_rank(self.tokens, ranks), self.one_rank(self.fitted, 2)
        if found is None or at_fit is None:
            return None
        (one, factor), (fit, fit_factor) = found, at_fit
        work = "step_ms" if "step_ms" in one and "step_ms" in fit else "ms"

        def corner(name, pick, two_ms, x, fixed):
            one_ms = factor * pick(runs_of(one[name]))
            ms = self.time(ranks, one_ms, fit_factor * pick(runs_of(fit[name])), two_ms, x, fixed)
            return ms, factor * pick(runs_of(one["ms"])) / ms

        two = runs_of(self.two["ms"])
        ms, speed_up = corner(work, median, median(two), self.exposed(), "constant")
        kinds = [(work, "constant"), (work, "grows"), (work, "shared"), ("ms", "constant")]
        corners = [corner(name, pick, two_ms, x, fixed)
                   for (name, fixed), pick, two_ms, x in product(kinds, (min, max), (min(two), max(two)), (0.0, 1.0))]
        corners.append((ms, speed_up))
        times, speed_ups = zip(*corners)
        return {"ms": ms, "ms_least": min(times), "ms_most": max(times), "speed_up": speed_up,
                "speed_up_least": min(speed_ups), "speed_up_most": max(speed_ups),
                "scaled_from": None if factor == 1 else one["tokens"]}

    def measured_speed_up(self, ranks):
        """Over the one rank that two ranks' prediction is compared with; None where it was not measured."""
        found = self.one_rank(self.tokens, max(ranks, 2))
        if ranks not in self.measured or found is None:
            return None
        one, factor = found
        return factor * median(runs_of(one["ms"])) / median(runs_of(self.measured[ranks]["ms"]))


def recomputes(figure):
    """Training that had no room for all layers' inputs, and ran some layers forward twice."""
    return figure.get("inputs_kept", 0) < figure.get("layers", 0)
