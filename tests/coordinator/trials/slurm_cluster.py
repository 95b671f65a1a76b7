"""What the trials on a real Slurm share: the cluster of make-believe nodes on this host, and what its jobs are doing."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from trial import command_line, end, environment, fail, say

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parents[2] / "ops" / "slurm"
SKIPPED = 77


def require_slurm():
    """Ends the trial as one that cannot run where there is no Slurm."""
    if os.geteuid() != 0 or not all(shutil.which(name) for name in ("slurmctld", "slurmd", "munged", "srun")):
        say("left out: this trial needs root and the packages slurm-wlm and munge")
        raise SystemExit(SKIPPED)


class Slurm:
    def __init__(self, folder, fenwick):
        self.folder = folder
        self.env = dict(environment(), FENWICK=str(fenwick), FENWICK_SLURM_FOLDER=str(SCRIPTS),
                        OMPI_MCA_btl_tcp_if_include="lo")
        done = subprocess.run([HERE / "slurm_up.sh", folder], capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"slurm_up.sh: {done.stdout}{done.stderr}")
        self.env["SLURM_CONF"] = done.stdout.split()[-1]

    def down(self):
        subprocess.run([HERE / "slurm_down.sh", self.folder], env=self.env, check=False, capture_output=True)

    def call(self, *command):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=self.env)
        if done.returncode != 0:
            fail(f"{command}: {done.stderr}")
        return done.stdout.strip()

    def sbatch(self, *arguments):
        return self.call("sbatch", "--parsable", "--chdir", self.folder, *arguments).split(";")[0]

    def field(self, job, name):
        text = self.call("scontrol", "show", "job", job)
        return next((word.split("=", 1)[1] for word in text.split() if word.startswith(name + "=")), "")

    def wait_state(self, job, states, seconds=180):
        deadline = time.time() + seconds
        pending = None
        while time.time() < deadline:
            state = self.field(job, "JobState")
            if state in states:
                return state
            if state != "PENDING":
                pending = None
            elif pending is None:
                pending = time.time()
            elif time.time() - pending > 2:
                # A requeued job waits two minutes otherwise. In the second that it was requeued in it would fail: slurmd takes
                # its new credential for the one that was revoked.
                subprocess.run(["scontrol", "update", f"jobid={job}", "StartTime=now"], env=self.env, capture_output=True)
            time.sleep(0.3)
        fail(f"job {job} is {state}, expected {states}")

    def preempt(self, job, when):
        """A job of higher priority takes the nodes of this one; it comes back when they are free."""
        self.wait_state(job, ["RUNNING"])
        when()
        restarts = int(self.field(job, "Restarts"))
        nodes = self.field(job, "NumNodes").split("-")[0]
        other = self.sbatch("--partition=high", "--nodes", nodes, "--exclusive", f"--nodelist={self.field(job, 'NodeList')}",
                            "--output", self.folder / "high.log", "--wrap", "sleep 2")
        self.wait_state(other, ["COMPLETED"], 240)
        self.wait_state(job, ["RUNNING"], 240)
        if int(self.field(job, "Restarts")) != restarts + 1:
            fail(f"job {job} was not requeued once: {restarts}, now {self.field(job, 'Restarts')}")
        say(f"  job {job} was preempted, requeued and runs again")


def wait_for(what, condition, seconds=120):
    deadline = time.time() + seconds
    while not condition():
        if time.time() > deadline:
            fail(f"{what}: not within {seconds} s")
        time.sleep(0.2)


def require_none_left(trial):
    """Nothing of this trial's folder or coordinator runs any more; other tests may."""
    def left():
        lines = {entry.name: command_line(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
        return [f"{pid} {line}" for pid, line in lines.items() if line.startswith(trial.fenwick + " ")
                and (f"{trial.folder}/" in line or f"127.0.0.1:{trial.control} " in line)]
    deadline = time.time() + 30
    while left() and time.time() < deadline:
        time.sleep(0.5)
    if left():
        fail(f"processes are left: {left()}")


def kill_slurmd(slurm, node):
    pid = int((slurm.folder / "run" / f"slurmd-{node}.pid").read_text())
    end(pid, signal.SIGKILL)
