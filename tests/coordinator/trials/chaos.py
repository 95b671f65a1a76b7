#!/usr/bin/env python3
"""Random faults while gangs of 1, 2 and 3 ranks work: SIGKILL and SIGSTOP of ranks, whole gangs and the coordinator, dropped
connections, a full disk. All documents complete with an undisturbed run's bytes; nothing is computed past its last save more
than once for a fault; a rank that dies or stops is named within 10 s; requests are answered within 10 s all the while.
usage: chaos.py FENWICK [--faults 20] [--kinds KIND...] [--documents 110] [--longest 1000000] [--seed 1] [--folder DIR]
Needs root for the full disk (a tmpfs); without, it says so and leaves that fault out."""

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import threading
import time

from trial import (Proxy, Trial, end, fail, main, require_no_process_left, require_same, say, scratch, write_documents)

ANSWER_WITHIN = 10
SECONDS_A_FAULT = 7  # of an undisturbed run's time: a fault and the rest after it take less
NAMED_WITHIN = 10


class Probe(threading.Thread):
    """A client that asks again and again; remembers the slowest answer, and how long nobody answered at all."""

    def __init__(self, trial, job):
        super().__init__(daemon=True)
        self.trial, self.job, self.slowest, self.down = trial, job, 0.0, False
        self.going = True

    def run(self):
        while self.going:
            if not self.down:
                begun = time.time()
                done = subprocess.run([self.trial.fenwick, "status", self.job, "--json", "--retry-seconds", "0", "--server",
                                       f"127.0.0.1:{self.trial.api}"], capture_output=True, text=True)
                if done.returncode == 0 and not self.down:
                    self.slowest = max(self.slowest, time.time() - begun)
            time.sleep(0.5)


class Chaos:
    def __init__(self, trial, proxy, job, probe, seed, filler):
        self.trial, self.proxy, self.job, self.probe, self.filler = trial, proxy, job, probe, filler
        self.random = random.Random(seed)
        self.times = []
        self.named = []

    def faults(self):
        names = ["kill_rank", "stop_rank", "kill_gang", "kill_coordinator", "stop_coordinator", "drop_connection",
                 "drop_all_connections"]
        return names + (["fill_disk"] if self.filler else [])

    def run(self, count, kinds):
        kinds = [kind for kind in kinds or self.faults() if kind in self.faults()]
        count = count or len(kinds)
        order = (kinds * (count // len(kinds) + 1))[:count]
        self.random.shuffle(order)
        for i, name in enumerate(order):
            while self.trial.ask("status", self.job)["state"] == "validating":
                time.sleep(0.2)
            if self.trial.ask("status", self.job)["state"] != "in_progress":
                fail(f"the job was over after {i} faults: give it more documents")
            say(f"fault {i + 1} of {count}: {name}")
            self.times.append(int(time.time() * 1000))
            getattr(self, name)()
            time.sleep(self.random.uniform(1, 4))

    # ---- ranks and gangs

    def busy_rank(self):
        """A rank of a gang that works now: (gang, pid, rank)."""
        for _ in range(200):
            workers = [w for w in self.trial.ask("workers") if w["state"] == "busy"]
            if workers:
                worker = self.random.choice(workers)
                rank = self.random.choice(worker["ranks"])
                gang = next(g for g in self.trial.gangs if g.name == worker["name"])
                if rank["pid"] in gang.rank_pids():
                    return worker, gang, rank
            time.sleep(0.1)
        fail("no gang is at work")

    def await_name(self, gang, rank, begun):
        """The rank's name in the list of gangs and in the job's log; False: the log has none, for the gang gave back its
        work between our look at it and the fault, and had nothing of the job."""
        text = f"rank {rank['rank']} of gang {gang.name}"
        in_list_since = None
        while time.time() - begun < NAMED_WITHIN:
            in_log = any(text in entry["text"] and entry["time"] >= begun * 1000 - 50 for entry in self.trial.logs(self.job))
            if any(r["pid"] == rank["pid"] and r["state"] in ("disconnected", "stalled", "lost")
                   for w in self.trial.ask("workers", "--all") for r in w["ranks"]):
                in_list_since = in_list_since or time.time()
            if in_log and in_list_since:
                self.named.append(time.time() - begun)
                return True
            if in_list_since and time.time() - in_list_since > 2:
                return False
            time.sleep(0.1)
        fail(f"{text} was not named within {NAMED_WITHIN} s")

    def hit_rank(self, number):
        """The signal to a rank at work, until one was hit that had work of the job; (gang, rank)."""
        for _ in range(4):
            _, gang, rank = self.busy_rank()
            begun = time.time()
            end(rank["pid"], number)
            if self.await_name(gang, rank, begun):
                return gang, rank
            end(rank["pid"], signal.SIGKILL)
        fail("of four ranks at work that were hit none was named in the job's log")

    def kill_rank(self):
        self.hit_rank(signal.SIGKILL)

    def stop_rank(self):
        gang, rank = self.hit_rank(signal.SIGSTOP)
        # Nobody wakes it: the gang is given up, and mpirun or the supervisor has to get rid of it.
        if gang.ranks == 1:
            time.sleep(8)
            end(rank["pid"], signal.SIGKILL)

    def kill_gang(self):
        _, gang, _ = self.busy_rank()
        gang.kill()

    # ---- coordinator

    def kill_coordinator(self):
        self.probe.down = True
        self.trial.kill_coordinator()
        time.sleep(self.random.uniform(0, 2))
        seconds = self.trial.start_coordinator()
        self.probe.down = False
        say(f"  serves again after {seconds:.2f} s")

    def stop_coordinator(self):
        self.probe.down = True
        self.trial.coordinator.send_signal(signal.SIGSTOP)
        time.sleep(self.random.uniform(2, 9))
        self.trial.coordinator.send_signal(signal.SIGCONT)
        self.probe.down = False

    # ---- connections and disk

    def drop_connection(self):
        self.proxy.drop(self.random)

    def drop_all_connections(self):
        self.proxy.drop(self.random, all_of_them=True)

    def fill_disk(self):
        blocks = os.statvfs(self.trial.data)
        with open(self.filler, "wb") as filler:
            try:
                while True:
                    filler.write(b"\0" * (1 << 20))
                    filler.flush()
            except OSError:
                pass
        left = os.statvfs(self.trial.data)
        say(f"  {blocks.f_bavail * blocks.f_bsize >> 20} MiB were free, now {left.f_bavail * left.f_bsize} bytes")
        time.sleep(4)
        os.remove(self.filler)


def require_once_per_fault(trial, job, times):
    """A lease that a fault ended computes from its save point again: no document more than once for one fault."""
    seen = {}
    for entry in trial.logs(job):
        if "queued again" not in entry["text"]:
            continue
        fault = sum(t <= entry["time"] + 100 for t in times)
        key = (entry["custom_id"], fault)
        seen.setdefault(key, []).append(entry["text"])
    for (document, fault), texts in seen.items():
        # The last effect of one fault can come after the next one has begun, never twice.
        if len(texts) > 2 or (len(texts) == 2 and seen.get((document, fault - 1))):
            fail(f"{document} was begun again {len(texts)} times for fault {fault}: {texts}")
    return sum(len(texts) for texts in seen.values())


def enough_documents(trial, folder, options):
    """--documents of them, or as many more as keep this machine at work for SECONDS_A_FAULT for each fault; with what an
    undisturbed run makes of them in folder/want."""
    wanted = SECONDS_A_FAULT * (options.faults or len(options.kinds))
    documents = options.documents
    while True:
        path, bad = write_documents(folder, documents, options.longest, seed=options.seed)
        shutil.rmtree(folder / "want", ignore_errors=True)
        begun = time.time()
        trial.embedded(folder / "want", path)
        seconds = time.time() - begun
        say(f"embedded: {documents} documents, {seconds:.1f} s")
        if seconds >= wanted:
            return documents, path, bad
        documents = math.ceil(1.2 * documents * wanted / seconds)


def body():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fenwick")
    parser.add_argument("--faults", type=int, default=None, help="default 20, or one of each of --kinds")
    parser.add_argument("--kinds", nargs="+", help="only these")
    parser.add_argument("--documents", type=int, default=110)
    parser.add_argument("--longest", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.faults is None and not options.kinds:
        options.faults = 20
    folder, clean = scratch(options.folder)
    disk = folder / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(disk)], capture_output=True).returncode == 0
    if not mounted:
        say("no tmpfs can be mounted here: the full disk is left out")
    trial = Trial(options.fenwick, folder, save_seconds=0.5, stretch_tokens=1 << 18, data=disk / "data", hidden=64, layers=2)
    try:
        documents, path, bad = enough_documents(trial, folder, options)
        trial.start_coordinator()
        proxy = Proxy(trial.control)
        for ranks in (1, 2, 3):
            trial.add_gang(f"gang{ranks}", ranks, port=proxy.port)
        job = trial.submit(path)
        probe = Probe(trial, job)
        probe.start()
        chaos = Chaos(trial, proxy, job, probe, options.seed, disk / "filler" if mounted else None)
        chaos.run(options.faults, options.kinds)
        state = trial.wait(job, seconds=3600)
        probe.going = False
        if state["state"] != "completed":
            fail(f"the job is {state['state']}")
        trial.fetch(job, folder / "got")
        require_same(folder / "want", folder / "got", documents, bad)
        again = require_once_per_fault(trial, job, chaos.times)
        usage = state["usage"]
        say(f"{len(chaos.times)} faults: leases ended {again} times, {usage['computed_tokens'] - usage['scored_tokens']} tokens of "
            f"{usage['scored_tokens']} computed again; slowest answer {probe.slowest:.2f} s; ranks named within "
            f"{max(chaos.named, default=0):.1f} s")
        if probe.slowest > ANSWER_WITHIN:
            fail(f"an answer took {probe.slowest:.1f} s")
    finally:
        trial.stop()
        if mounted:
            subprocess.run(["umount", "-l", str(disk)], check=False)
    require_no_process_left(trial)
    say("the bytes of an undisturbed run")
    clean()


main(body)
