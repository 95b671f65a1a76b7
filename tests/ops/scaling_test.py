#!/usr/bin/env python3
"""Tests of ops/scaling-curve: the model of its prediction, the checks of figures, plan_mixers' plans, and the script from end to end.
usage: scaling_test.py FENWICK_PROGRAM PLAN_MIXERS_PROGRAM"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "ops"))
from scaling.measure import benchmarks, rank_counts
from scaling.model import Curve, faults, merged

PROGRAMS = []

STAND_INS = {
    "nvidia-smi": "#!/bin/sh\nfor gpu in 1 2 3 4; do echo H200; done\n",
    "mpirun": '#!/bin/sh\nexport RANKS=$4\nshift 4\nexec "$@"\n',  # --allow-run-as-root --oversubscribe -np N
    "fenwick": "#!/bin/sh\nexit 1\n",
    "bench_train": "#!/bin/sh\nexit 1\n",
    # Arguments: mixers --tokens T ... --json FILE. Four ranks of $OTHER tokens have other bytes.
    "bench_ranks": f"""#!{sys.executable}
import json, os, sys
tokens, ranks = int(sys.argv[3]), int(os.environ["RANKS"])
with open(sys.argv[-1], "a") as file:
    for p in (1, ranks):
        other = p == 4 and os.environ["OTHER"] == str(tokens)
        print(json.dumps({{"part": "mixer", "what": "w", "tokens": tokens, "ranks": p, "ms": [8], "checksum": int(other)}}), file=file)
""",
}


def figure(ranks, ms, tokens=1000, part="prefill", **more):
    return {"part": part, "what": "w", "tokens": tokens, "ranks": ranks, "ms": ms, **more}


def plan(efficiency=1.0, exchange_ms=0.0, passes=lambda tokens, ranks: 1):
    """Work is the number of tokens; the exchange takes `exchange_ms` a round."""

    def of(tokens, ranks):
        rounds = (ranks - 1).bit_length()
        return {"work": tokens, "efficiency": efficiency if ranks > 1 else 1.0, "exchange_ms": rounds * exchange_ms,
                "rounds": rounds, "passes": passes(tokens, ranks)}

    return of


def curve(figures, how=None, tokens=1000, part="prefill"):
    return Curve(merged(figures), part, "w", tokens, how or plan())


class Model(unittest.TestCase):
    def near(self, found, **want):
        for key, value in want.items():
            self.assertAlmostEqual(found[key], value, places=9, msg=key)

    def test_perfect_ranks_stay_perfect(self):
        self.near(curve([figure(1, 80), figure(2, 40)]).predict(8), ms=10, ms_least=10, ms_most=10, speed_up=8, speed_up_least=8)

    def test_two_ranks_are_met(self):
        # Whatever is exposed and however the rest grows: 55 is what was measured.
        for two in (55, 38):
            at_two = curve([figure(1, 80), figure(2, two)], plan(0.98, 2.0)).predict(2)
            self.near(at_two, ms=two, ms_least=two, ms_most=two)

    def test_fixed_part(self):
        # 60 = 100 / 2 + 10: the 10 stay, grow to 30 in three rounds, or are work that eight ranks share.
        self.near(curve([figure(1, 100), figure(2, 60)]).predict(8), ms=12.5 + 10, ms_most=12.5 + 30, ms_least=15)

    def test_fixed_part_of_a_pass(self):
        # Eight passes of two ranks are two of eight.
        found = curve([figure(1, 100), figure(2, 60)], plan(passes=lambda t, p: 16 // p)).predict(8)
        self.near(found, ms=12.5 + 2.5)

    def test_unequal_shards_and_exchange(self):
        # 2: 100 / (2 * 0.5) = 100, one exchange exposed as measured, nothing else. 8: 25 and three rounds, or none exposed.
        figures = [figure(1, 100), figure(2, 101, pass_exposed_ms=1.0)]
        found = curve(figures, plan(0.5, 1.0)).predict(8)
        self.near(found, ms=25 + 3)
        self.assertLessEqual(found["ms_least"], 25.25 + 1e-9)  # hidden: the 1 is work that is shared
        hidden = curve([figures[0], figures[1] | {"pass_exposed_ms": 0.0}], plan(0.5, 1.0)).predict(8)
        self.near(hidden, ms=25 + 1)

    def test_spread_of_runs(self):
        # Least: 48 / 2 of work. Most: 96 / 4 of work, and 52 - 96 / 2 = 4 that grow to 8 in two rounds.
        found = curve([figure(1, [96, 100, 104]), figure(2, [48, 50, 52])]).predict(4)
        self.near(found, ms=25, ms_least=24, ms_most=24 + 8)

    def test_length_that_was_not_measured(self):
        found = curve([figure(1, 80), figure(2, 45)], tokens=8000).predict(8)
        self.near(found, ms=80 + 5, speed_up=640 / 85, scaled_from=1000)

    def test_step_of_a_mixer(self):
        # The step's 10 more are shared: the curve; or stay whole: the most.
        figures = [figure(1, 100, part="mixer", step_ms=110), figure(2, 55, part="mixer", exposed_ms=0.0)]
        self.near(curve(figures, part="mixer").predict(4), ms=27.5, ms_least=27.5, ms_most=25 + 5, speed_up=100 / 27.5)

    def test_training_starts_from_ranks_that_keep_all_inputs(self):
        kept, some = {"inputs_kept": 21, "layers": 21}, {"inputs_kept": 4, "layers": 21}
        figures = [figure(1, 10, 125, "training", **kept), figure(1, 100, 1000, "training", **some), figure(2, 40, 1000, "training", **kept)]
        self.near(curve(figures, part="training").predict(4), ms=20, speed_up=4, scaled_from=125)
        # 1,000 rows a rank: as slow as one rank with so many. More have not been seen.
        longer = curve(figures, tokens=8000, part="training")
        self.near(longer.predict(8), ms=100, speed_up=8)
        self.assertIsNone(longer.predict(4))

    def test_training_exchanges_there_and_back(self):
        found = curve([figure(1, 100, part="training"), figure(2, 52, part="training")], plan(exchange_ms=1.0), part="training").predict(8)
        self.near(found, ms=100 / 8 + 2 * 3)

    def test_too_few_figures(self):
        for figures in ([figure(1, 1)], [figure(2, 1)], []):
            with self.assertRaises(LookupError):
                curve(figures)


class Figures(unittest.TestCase):
    def test_runs_of_the_same_are_put_together(self):
        found, = merged([figure(1, [1, 2], step_ms=[3]), figure(1, 4, step_ms=5)]).values()
        self.assertEqual((found["ms"], found["step_ms"]), ([1, 2, 4], [3, 5]))

    def test_faults(self):
        good = [figure(1, 1, checksum="a"), figure(4, 1, checksum="a", as_scheduled=True), figure(1, 1, 2000, checksum="b")]
        self.assertEqual(faults(good), [])
        self.assertIn("bytes of 8 ranks", faults([*good, figure(8, 1, checksum="b")])[0])
        self.assertIn("messages", faults([figure(4, 1, as_scheduled=False)])[0])

    def test_what_is_measured(self):
        self.assertEqual([rank_counts(n) for n in (2, 3, 4, 6, 8)], [[2], [2, 3], [2, 4], [2, 4, 6], [2, 4, 8]])
        options = type("Options", (), {"tokens": [1048576, 8388608], "only": ["mixers", "prefill", "training"]})
        lengths = {ranks: [words[-1] for name, words in benchmarks(options, "m", ranks) if "training" in name] for ranks in (2, 8)}
        self.assertEqual(lengths, {2: [1048576, 131072], 8: [1048576, 8388608]})


class Programs(unittest.TestCase):
    def plan_mixers(self, *words):
        done = subprocess.run([PROGRAMS[1], *map(str, words)], capture_output=True, text=True)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    def test_plan_mixers(self):
        code, one = self.plan_mixers(1048576, 1)
        self.assertEqual((code, {line["messages"] for line in one}), (0, {0}))
        # 256 blocks; log2(256) / 2 = 4 states enter one on average, each 0.1 of a block's work.
        works = {line["name"]: line["work"] for line in one}
        self.assertAlmostEqual(works["log-linear Mamba-2, 48 heads 128x64"], 256 * 1.4)
        _, eight = self.plan_mixers(1048576, 8, "10:1")
        linear = next(line for line in eight if line["name"] == "Mamba-2, 12 heads 128x128")
        summary = 12 * (1 + 128 * 128) * 4
        self.assertEqual([linear[key] for key in ("efficiency", "messages", "bytes", "rounds")], [1.0, 3, 3 * summary, 3])
        self.assertAlmostEqual(linear["exchange_ms"], 3 * (0.010 + summary / 1e6), places=6)
        for wrong in ((), (0, 2), (4096, 2, "string"), ("4096x", 2)):
            self.assertEqual(self.plan_mixers(*wrong)[0], 2, wrong)

    def curve(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            for program in PROGRAMS:
                Path(folder, program.name).symlink_to(program)
            done = subprocess.run([ROOT / "ops/scaling-curve", "--build", folder, *map(str, words)], capture_output=True, text=True)
            return done.returncode, done.stdout, done.stderr

    def test_prediction_from_end_to_end(self):
        with tempfile.TemporaryDirectory() as folder:
            model, file = Path(folder, "model"), Path(folder, "figures.json")
            subprocess.run([PROGRAMS[0], "init", "--family", "log_linear_mamba2", "--output", model, "--hidden", "32", "--layers", "1",
                            "--heads", "2", "--head-dim", "16", "--state", "16"], check=True, capture_output=True)
            name = "Mamba-2, 12 heads 128x128"
            mixer = [{"part": "mixer", "what": name, "tokens": 1048576, "ranks": p, "ms": ms, "exposed_ms": 0.0} for p, ms in ((1, 80), (2, 40))]
            prefill = [figure(1, 80, 1048576, pass_tokens_per_rank=65536), figure(2, 45, 1048576, pass_tokens_per_rank=65536)]
            file.write_text(json.dumps({"device": "none", "figures": mixer + prefill}))
            words = "--predict", file, "--model", model, "--tokens", 1048576
            code, out, err = self.curve(*words)
            self.assertEqual(code, 0, err)
            self.assertRegex(out, r"\| Mamba-2, 12 heads 128x128 \| 1,048,576 .*\| 20 \(4\.00x; .*\| 10 \(8\.00x; .*")
            self.assertRegex(out, r"\| w, prefill \| 1,048,576 \|")
            file.write_text(json.dumps({"figures": mixer[:1]}))
            self.assertEqual(self.curve(*words)[0], 65)
            file.write_text('{"figures": [{"part": "mixer"}]}')
            self.assertEqual(self.curve(*words)[0], 65)

    def test_measuring_from_end_to_end(self):
        """With stand-ins for four GPUs, mpirun and the benchmarks: what is started, what is written, what makes it fail."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in STAND_INS.items():
                Path(folder, name).write_text(text)
                Path(folder, name).chmod(0o755)
            file = Path(folder, "figures.json")
            words = [ROOT / "ops/scaling-curve", "--build", folder, "--tokens", "4096", "8192", "--output", file, "--only", "mixers"]
            path = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
            for other, code in (("none", 0), ("8192", 1)):
                done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env={**path, "OTHER": other})
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertEqual("FAILED  w, mixer, T 8,192: the bytes of 4 ranks are not those of 1" in done.stdout, code == 1)
            found = json.loads(file.read_text())
            self.assertEqual(found["device"], "4 x H200")
            self.assertEqual([(f["tokens"], f["ranks"]) for f in found["figures"]],
                             [(t, p) for ranks in (2, 4) for t in (4096, 8192) for p in (1, ranks)])
            more = [*words[:-1], "training", "--model", folder]
            done = subprocess.run(list(map(str, more)), capture_output=True, text=True, env=path)
            self.assertEqual((done.returncode, "FAILED  training on 131072 tokens on 2 GPUs" in done.stdout), (1, True), done.stdout)
            fewer = subprocess.run(list(map(str, [*words, "--ranks", 5])), capture_output=True, text=True, env=path)
            self.assertEqual(fewer.returncode, 69)


if __name__ == "__main__":
    PROGRAMS = [Path(program).resolve() for program in sys.argv[1:3]]
    unittest.main(argv=sys.argv[:1], verbosity=2)
