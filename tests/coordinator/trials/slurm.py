#!/usr/bin/env python3
"""Real Slurm: the sbatch scripts of ops/slurm, but for training's (slurm_train.py); preemption and requeue twice; scancel; a
killed slurmd. The outputs are those of an undisturbed run, and no process is left behind.
usage: slurm.py FENWICK [--only score|gang|service] [--short] [--documents 110] [--folder DIR]
Needs root and the packages slurm-wlm and munge; exits with 77 where they are not there."""

import argparse
import shutil
import subprocess
import time
from pathlib import Path

from slurm_cluster import SCRIPTS, Slurm, kill_slurmd, require_none_left, require_slurm, wait_for
from trial import Trial, fail, main, require_same, say, scratch, write_documents


def trial_score(trial, slurm, path, count, bad, short):
    """One-shot scoring: preempted twice; its node's slurmd killed; cancelled."""
    def submit(name):
        output = trial.folder / name
        job = slurm.sbatch("--ntasks=2", "--nodes=1", "--nodelist=n1", "--output", trial.folder / f"{name}.log",
                           SCRIPTS / "score.sbatch", trial.model, output, path, "--", "--save-seconds", "0.5",
                           "--pass-tokens", "8192")
        slurm.wait_state(job, ["RUNNING"])
        return job, output

    def progressed(output):
        wait_for("progress", lambda: any((output / "work").glob("*.safetensors")))

    def require_end(job, output):
        state = slurm.wait_state(job, ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"], 900)
        # Some documents are bad: fenwick ends with 3, which Slurm calls FAILED.
        if slurm.field(job, "ExitCode") != "3:0":
            fail(f"score.sbatch ended as {state}, {slurm.field(job, 'ExitCode')}; see {output}.log")
        require_same(trial.folder / "want", output, count, bad)
        require_none_left(trial)

    job, output = submit("score")
    for _ in range(1 if short else 2):
        slurm.preempt(job, lambda: progressed(output))
    require_end(job, output)
    say("score.sbatch, preempted: the bytes of an undisturbed run")
    if not short:
        lose_node(trial, slurm, submit, progressed, require_end)

    # scancel: saved, and not requeued.
    job, output = submit("cancelled")
    progressed(output)
    slurm.call("scancel", job)
    slurm.wait_state(job, ["CANCELLED"])
    require_none_left(trial)
    time.sleep(3)
    if slurm.field(job, "JobState") != "CANCELLED":
        fail("a cancelled job came back")
    say("scancel: ended, not requeued, nothing left")


def lose_node(trial, slurm, submit, progressed, require_end):
    """Slurm starts a second copy while the first still runs."""
    job, output = submit("lost-node")
    progressed(output)
    kill_slurmd(slurm, "n1")
    wait_for("a requeue", lambda: slurm.field(job, "Restarts") == "1", 120)
    say("  after its slurmd was killed the job was taken back by slurmctld")
    time.sleep(5)  # the first copy goes on meanwhile, and keeps the second from its output
    subprocess.run(["slurmd", "-N", "n1"], env=slurm.env, check=True)
    require_end(job, output)
    say("score.sbatch, its slurmd killed: the bytes of an undisturbed run")


def trial_gang(trial, slurm, path, count, bad):
    """Gangs for a coordinator outside: preempted twice, cancelled, their node's slurmd killed."""
    trial.start_coordinator()
    job = trial.submit(path)
    gangs = [slurm.sbatch(f"--ntasks={ranks}", "--nodes=1", f"--nodelist={node}", "--output", trial.folder / f"{node}.log",
                          SCRIPTS / "gang.sbatch", f"127.0.0.1:{trial.control}", "--pass-tokens", "8192",
                          "--exit-when-idle", "20", "--reconnect-seconds", "30")
             for ranks, node in ((2, "n1"), (2, "n2"), (1, "n3"))]

    def at_work():
        wait_for("a gang at work", lambda: any(w["name"] == f"slurm-{gangs[0]}" and w["state"] == "busy"
                                               for w in trial.ask("workers")))

    for _ in range(2):
        slurm.preempt(gangs[0], at_work)
    slurm.wait_state(gangs[2], ["RUNNING"])
    slurm.call("scancel", gangs[2])
    slurm.wait_state(gangs[2], ["CANCELLED"])
    say("  one gang was cancelled")
    kill_slurmd(slurm, "n2")
    wait_for("a requeue", lambda: slurm.field(gangs[1], "Restarts") == "1", 120)
    say("  after its slurmd was killed a gang was taken back by slurmctld")
    subprocess.run(["slurmd", "-N", "n2"], env=slurm.env, check=True)
    state = trial.wait(job, 900)
    if state["state"] != "completed":
        fail(f"the job is {state['state']}")
    trial.fetch(job, trial.folder / "gangs")
    require_same(trial.folder / "want", trial.folder / "gangs", count, bad)
    for gang in gangs[:2]:
        slurm.wait_state(gang, ["COMPLETED", "RUNNING"], 120)
        slurm.wait_state(gang, ["COMPLETED"], 180)
    if slurm.field(gangs[2], "JobState") != "CANCELLED":
        fail("a cancelled gang came back")
    trial.stop_coordinator()
    require_none_left(trial)
    say("gang.sbatch: the bytes of an undisturbed run")


def trial_service(trial, slurm, path, count, bad):
    """Coordinator and gangs in one allocation, preempted twice."""
    output = trial.folder / "service"
    log = trial.folder / "service.log"
    slurm.env["FENWICK_WORKER_OPTIONS"] = "--pass-tokens 8192"
    job = slurm.sbatch("--nodes=2", "--ntasks-per-node=2", "--output", log, SCRIPTS / "service.sbatch", trial.config, "small",
                       output, path)

    def at_work():
        def running():
            try:
                return any(w["state"] == "busy" for w in trial.ask("workers", "--retry-seconds", "0"))
            except SystemExit:
                return False
        wait_for("a gang at work", running)
        time.sleep(2)

    for _ in range(2):
        slurm.preempt(job, at_work)
    state = slurm.wait_state(job, ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"], 900)
    if slurm.field(job, "ExitCode") != "3:0":
        fail(f"service.sbatch ended as {state}, {slurm.field(job, 'ExitCode')}; see {log}")
    require_same(trial.folder / "want", output, count, bad)
    require_none_left(trial)
    say("service.sbatch: the bytes of an undisturbed run")


def body():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fenwick")
    parser.add_argument("--only", choices=["score", "gang", "service"])
    parser.add_argument("--documents", type=int, default=110)
    parser.add_argument("--longest", type=int, default=600_000)
    parser.add_argument("--short", action="store_true", help="score.sbatch alone: preempted once, and cancelled")
    parser.add_argument("--folder")
    options = parser.parse_args()
    require_slurm()
    folder, clean = scratch(options.folder)
    trial = Trial(Path(options.fenwick).resolve(), folder, save_seconds=0.5, stretch_tokens=1 << 18, hidden=64, layers=2)
    path, bad = write_documents(folder, options.documents, options.longest, seed=2)
    begun = time.time()
    trial.embedded(folder / "want", path)
    say(f"embedded: {time.time() - begun:.1f} s")
    slurm = Slurm(folder / "slurm", trial.fenwick)
    try:
        only = "score" if options.short else options.only
        for name, part in (("score", lambda *a: trial_score(*a, options.short)), ("gang", trial_gang),
                           ("service", trial_service)):
            if only in (None, name):
                shutil.rmtree(trial.data, ignore_errors=True)
                part(trial, slurm, path, options.documents, bad)
    finally:
        trial.stop()
        slurm.down()
    clean()


main(body)
