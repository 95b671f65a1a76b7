#!/usr/bin/env python3
"""train.sbatch on a real Slurm: a run of two ranks is preempted, told to stop while its ranks still start, told by hand, cut off
by its time limit, cancelled and submitted again, and loses its node. Each time the metrics' rows and the bytes of the exported
model are those of `fenwick train --ranks 2`, and no process is left behind.
usage: slurm_train.py FENWICK [--only preemption|start|nodes|signal|cancel|limit|lost]... [--short] [--folder DIR]
Needs root and the packages slurm-wlm and munge; exits with 77 where they are not there."""

import argparse
import random
import subprocess
import time
from pathlib import Path

from slurm_cluster import SCRIPTS, Slurm, kill_slurmd, require_none_left, require_slurm, wait_for
from trial import Trial, fail, main, rows_of, say, scratch

OVER = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"]
STEPS = 400          # some seconds on any machine: a notice comes before the end
LONG_SECONDS = 100   # of an undisturbed run: longer than the minute that is Slurm's least time limit
SAVE_STEPS = 20


class Runs:
    """Training runs in the trial's folder: configurations, jobs, what became of them."""

    def __init__(self, trial):
        self.trial, self.slurm, self.want, self.long_steps = trial, None, {}, None
        chooser = random.Random(5)
        documents = [trial.folder / f"document{i}.txt" for i in range(20)]
        for document in documents:
            document.write_text("".join(chooser.choice("etaoin shrdlu\n") for _ in range(chooser.randrange(2000))))
        self.tokens = trial.folder / "train.tokens"
        trial.run("tokenize", "--output", self.tokens, *documents)

    def config(self, name, steps):
        path = self.trial.folder / f"{name}.toml"
        path.write_text(f"""
[model]
folder = "{self.trial.model}"
[data]
files = ["{self.tokens}"]
sequence_tokens = 512
batch_tokens = 1024
micro_batches = 2
[optimizer]
lr = 1e-3
[schedule]
steps = {steps}
[checkpoint]
folder = "{name}/checkpoints"
every_steps = {SAVE_STEPS}
[log]
folder = "{name}/log"
""")
        return path

    def wanted(self, steps):
        """The undisturbed run of so many steps, on two threads."""
        if steps not in self.want:
            begun = time.time()
            name = f"want{steps}"
            self.trial.run("train", "--config", self.config(name, steps), "--ranks", 2, "--peak-tflops", "0.1")
            self.want[steps] = self.result(name)
            seconds = time.time() - begun
            self.long_steps = self.long_steps or int(steps * LONG_SECONDS / seconds)
            say(f"undisturbed, {steps} steps on two threads: {seconds:.1f} s")
        return self.want[steps]

    def result(self, name):
        """The rows without what depends on the clock, and the exported model's bytes."""
        run = self.trial.folder / name
        rows = [{key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second", "mfu")}
                for row in rows_of(run / "log/metrics.jsonl")]
        self.trial.run("checkpoint", "export", run / "checkpoints", "--output", run / "model")
        return rows, (run / "model/model.safetensors").read_bytes()

    def submit(self, name, steps=STEPS, options=("--nodes=1", "--nodelist=n1")):
        config = self.config(name, steps)
        job = self.slurm.sbatch("--ntasks=2", *options, "--output", self.log(name), SCRIPTS / "train.sbatch", config,
                                "--peak-tflops", "0.1")
        self.slurm.wait_state(job, ["RUNNING"])
        return job

    def log(self, name):
        return self.trial.folder / f"{name}.log"

    def saved(self, name):
        return sorted((self.trial.folder / name / "checkpoints").glob("step-*"))

    def wait_saved(self, name):
        wait_for("a checkpoint", lambda: self.saved(name))

    def require_end(self, job, name, restarts, steps=STEPS):
        """Ended in order, resumed from a checkpoint each time, with the undisturbed run's numbers."""
        state = self.slurm.wait_state(job, OVER, 900)
        found = int(self.slurm.field(job, "Restarts"))
        if (state, self.slurm.field(job, "ExitCode")) != ("COMPLETED", "0:0") or found not in restarts:
            fail(f"{name} ended as {state}, {self.slurm.field(job, 'ExitCode')}, restarts {found}; see {self.log(name)}")
        self.require_same(name, steps)

    def require_same(self, name, steps=STEPS):
        rows, model = self.result(name)
        want_rows, want_model = self.wanted(steps)
        if len(rows) != steps or rows != want_rows:
            fail(f"{name}: {len(rows)} rows, and not those of an undisturbed run")
        if model != want_model:
            fail(f"{name}: the exported model differs from an undisturbed run's")
        require_none_left(self.trial)

    def require_line(self, name, text, count=1):
        found = self.log(name).read_text().count(text)
        if found < count:
            fail(f"{self.log(name)}: '{text}' {found} times, expected {count}")


def trial_preemption(runs, short):
    job = runs.submit("preempted")
    for _ in range(1 if short else 2):
        before = runs.saved("preempted")
        runs.slurm.preempt(job, lambda: wait_for("a checkpoint", lambda: runs.saved("preempted") != before))
    runs.require_end(job, "preempted", [1 if short else 2])
    runs.require_line("preempted", "fenwick train ended with 75", 1 if short else 2)
    runs.require_line("preempted", "goes on after step", 1 if short else 2)


def trial_start(runs):
    """Told while the ranks still load the program: they hear of it as soon as they listen."""
    program = runs.trial.folder / "slow-fenwick"
    program.write_text(f"#!/usr/bin/env bash\ntouch {runs.trial.folder}/loading\nsleep 5\nexec {runs.trial.fenwick} \"$@\"\n")
    program.chmod(0o755)
    quick, runs.slurm.env["FENWICK"] = runs.slurm.env["FENWICK"], str(program)
    job = runs.submit("start")
    runs.slurm.env["FENWICK"] = quick
    wait_for("ranks that load", (runs.trial.folder / "loading").exists)
    runs.slurm.call("scancel", "--batch", "--signal=USR2", job)
    wait_for("the end of the told ranks", lambda: "fenwick train ended with" in runs.log("start").read_text(), 60)
    runs.require_line("start", "fenwick train ended with 75")
    wait_for("a requeue", lambda: runs.slurm.field(job, "Restarts") == "1")
    runs.require_end(job, "start", [1])


def trial_nodes(runs):
    job = runs.submit("nodes", options=("--nodes=2", "--nodelist=n1,n2"))
    runs.require_end(job, "nodes", [0])


def trial_signal(runs):
    """By hand, to the ranks alone and to the script and the ranks at once."""
    job = runs.submit("signal")
    for count, option in enumerate([[], ["--full"]], 1):
        before = runs.saved("signal")
        wait_for("a checkpoint", lambda: runs.saved("signal") != before)
        runs.slurm.call("scancel", *option, "--signal=USR2", job)
        wait_for("a requeue", lambda: runs.slurm.field(job, "Restarts") == str(count))
        runs.slurm.wait_state(job, ["RUNNING"])
    runs.require_end(job, "signal", [2])
    runs.require_line("signal", "goes on after step", 2)


def trial_cancel(runs):
    """Saved, and not requeued; the same command goes on."""
    job = runs.submit("cancelled")
    runs.wait_saved("cancelled")
    runs.slurm.call("scancel", job)
    runs.slurm.wait_state(job, ["CANCELLED"])
    require_none_left(runs.trial)
    time.sleep(3)
    if runs.slurm.field(job, "JobState") != "CANCELLED":
        fail("a cancelled job came back")
    runs.require_end(runs.submit("cancelled"), "cancelled", [0])
    runs.require_line("cancelled", "goes on after step")


def trial_limit(runs):
    """A run of more than its time limit goes back to the queue as often as it needs to."""
    job = runs.submit("limited", runs.long_steps, ("--nodes=1", "--nodelist=n1", "--time=1", "--signal=B:USR2@40"))
    runs.require_end(job, "limited", range(1, 50), runs.long_steps)
    runs.require_line("limited", "told to stop: the ranks save")


def trial_lost(runs):
    """Slurm takes the job back from a node that it lost, whose ranks still run, and starts it anew."""
    job = runs.submit("lost", runs.long_steps)
    runs.wait_saved("lost")
    kill_slurmd(runs.slurm, "n1")
    wait_for("a requeue", lambda: runs.slurm.field(job, "Restarts") == "1")
    subprocess.run(["slurmd", "-N", "n1"], env=runs.slurm.env, check=True)
    runs.require_end(job, "lost", [1], runs.long_steps)


def body():
    parts = {"preemption": trial_preemption, "start": trial_start, "nodes": trial_nodes, "signal": trial_signal,
             "cancel": trial_cancel, "limit": trial_limit, "lost": trial_lost}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fenwick")
    parser.add_argument("--only", choices=list(parts), action="append")
    parser.add_argument("--short", action="store_true", help="preempted once, and told while it starts")
    parser.add_argument("--folder")
    options = parser.parse_args()
    require_slurm()
    folder, clean = scratch(options.folder)
    runs = Runs(Trial(Path(options.fenwick).resolve(), folder))
    runs.wanted(STEPS)
    runs.slurm = Slurm(folder / "slurm", runs.trial.fenwick)
    try:
        for name in options.only or (["preemption", "start"] if options.short else parts):
            begun = time.time()
            parts[name](*([runs, options.short] if name == "preemption" else [runs]))
            say(f"{name}: the rows and the bytes of an undisturbed run; {time.time() - begun:.1f} s")
    finally:
        runs.slurm.down()
    clean()


main(body)
