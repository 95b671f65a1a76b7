"""What the trials of the service share: a coordinator, gangs that are started again when they end, documents, and the
comparison with embedded mode. Python's standard library alone."""

import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from ports import free_ports


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def fail(text):
    raise SystemExit(f"trial failed: {text}")


def environment():
    # One thread a rank: many ranks share few cores. The CPU's bits are compared: no GPU.
    return dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", OMPI_MCA_btl_vader_single_copy_mechanism="none")


class Trial:
    """A folder with a model, a coordinator's configuration, and what runs in it."""

    def __init__(self, fenwick, folder, *, save_seconds=1.0, stretch_tokens=65536, attempts=20, data=None,
                 hidden=16, layers=1):
        self.fenwick = str(fenwick)
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.data = Path(data) if data else self.folder / "data"
        self.api = free_ports(3)
        self.http, self.control = self.api + 1, self.api + 2
        self.model = self.folder / "model"
        self.run("init", "--family", "log_linear_mamba2", "--output", self.model, "--hidden", hidden, "--layers", layers,
                 "--heads", "2", "--head-dim", "8", "--state", "8", "--seed", "7")
        self.config = self.folder / "serve.toml"
        self.config.write_text(f"""
data = "{self.data}"
roots = ["{self.folder}"]
[models]
small = "{self.model}"
[api]
port = {self.api}
[http]
port = {self.http}
[control]
port = {self.control}
save_seconds = {save_seconds}
stretch_tokens = {stretch_tokens}
attempts = {attempts}
""")
        self.coordinator = None
        self.gangs = []

    # ---- the program

    def run(self, *arguments, codes=(0,), timeout=600):
        done = subprocess.run([self.fenwick, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, timeout=timeout, env=environment())
        if done.returncode not in codes:
            fail(f"fenwick {' '.join(map(str, arguments))}: exit code {done.returncode}, expected {codes}\n{done.stderr}")
        return done.stdout

    def ask(self, verb, *arguments, codes=(0,)):
        """A client's verb, its answer as JSON."""
        out = self.run(verb, *arguments, "--server", f"127.0.0.1:{self.api}", "--json", codes=codes)
        return json.loads(out)

    # ---- coordinator

    def start_coordinator(self):
        log = open(self.folder / "coordinator.log", "a")
        self.coordinator = subprocess.Popen([self.fenwick, "serve", "--config", str(self.config), "--json"],
                                            stdout=subprocess.PIPE, stderr=log, text=True, env=environment())
        line = self.coordinator.stdout.readline()
        if not line:
            fail(f"the coordinator did not start: see {self.folder}/coordinator.log")
        return json.loads(line)["seconds"]

    def kill_coordinator(self):
        self.coordinator.kill()
        self.coordinator.wait()

    def stop_coordinator(self):
        self.coordinator.send_signal(signal.SIGTERM)
        return self.coordinator.wait(timeout=120)

    # ---- gangs

    def add_gang(self, name, ranks, *options, port=None):
        gang = Gang(self, name, ranks, options, port or self.control)
        self.gangs.append(gang)
        return gang

    def wait_for_gangs(self, seconds=120):
        """Until every gang waits for work: on a fast machine the first one would do it all alone."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            idle = {worker["name"] for worker in self.ask("workers") if worker["state"] == "idle"}
            if idle >= {gang.name for gang in self.gangs}:
                return
            time.sleep(0.1)
        fail(f"only these gangs wait for work after {seconds} s: {idle}")

    def stop(self):
        for gang in self.gangs:
            gang.stop()
        if self.coordinator and self.coordinator.poll() is None:
            self.coordinator.send_signal(signal.SIGCONT)
            self.coordinator.kill()
            self.coordinator.wait()

    # ---- jobs

    def submit(self, *inputs, options=()):
        return self.ask("submit", "--model", "small", "--by-path", *options, *inputs)["id"]

    def wait(self, job, seconds=600, poll=0.5):
        deadline = time.time() + seconds
        while time.time() < deadline:
            state = self.ask("status", job)
            if state["state"] in ("completed", "failed", "cancelled", "expired"):
                return state
            time.sleep(poll)
        fail(f"job {job} is not over after {seconds} s: {state}")

    def logs(self, job):
        out = self.run("logs", job, "--server", f"127.0.0.1:{self.api}", "--json")
        return [json.loads(line) for line in out.splitlines() if line.strip().startswith("{")]

    def fetch(self, job, folder):
        self.run("results", job, "--output", folder, "--server", f"127.0.0.1:{self.api}", codes=(0, 3))

    def embedded(self, output, *inputs):
        self.run("score", "--model", self.model, "--output", output, "--ranks", "1", "--json", *inputs, codes=(0, 3),
                 timeout=3600)


class Gang:
    """A world of mpirun (or one process), started again whenever it ends, as a batch system or systemd would."""

    def __init__(self, trial, name, ranks, options, port):
        self.trial, self.name, self.ranks, self.options, self.port = trial, name, ranks, options, port
        self.stopping = False
        self.process = None
        self.starts = 0
        self.codes = []
        self.thread = threading.Thread(target=self._keep, daemon=True)
        self.thread.start()

    def _keep(self):
        while not self.stopping:
            command = [self.trial.fenwick, "worker", "--coordinator", f"127.0.0.1:{self.port}", "--name", self.name,
                       "--pass-tokens", "8192", *self.options]
            if self.ranks > 1:
                command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(self.ranks)] + command
            with open(self.trial.folder / f"{self.name}.log", "a") as log:
                self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(), start_new_session=True)
            self.starts += 1
            self.codes.append(self.process.wait())
            time.sleep(0.5)

    def kill(self):
        """All of it at once: mpirun and its ranks."""
        for pid in family(self.process.pid):
            end(pid, signal.SIGKILL)

    def stop(self):
        self.stopping = True
        if self.process:
            pids = family(self.process.pid)
            for pid in pids:
                end(pid, signal.SIGCONT)
                end(pid, signal.SIGKILL)
        self.thread.join(timeout=10)

    def rank_pids(self):
        return [pid for pid in family(self.process.pid) if command_line(pid).startswith(f"{self.trial.fenwick} worker ")]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip() or "?"
    except OSError:
        return "?"


def end(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def family(pid):
    """The process and all that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                pass
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


class Proxy:
    """Passes connections on, until it is told to drop them."""

    def __init__(self, target):
        self.target = target
        self.pairs = set()
        self.lock = threading.Lock()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            near, _ = self.server.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.pairs.add((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink, (near, far)), daemon=True).start()

    def _pump(self, source, sink, pair):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        self._close(pair)

    def _close(self, pair):
        with self.lock:
            self.pairs.discard(pair)
        for each in pair:
            try:
                # A reset, as from a broken network.
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                each.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            each.close()

    def drop(self, chooser, all_of_them=False):
        with self.lock:
            pairs = list(self.pairs)
        if pairs:
            for pair in pairs if all_of_them else [chooser.choice(pairs)]:
                self._close(pair)
        return len(pairs)


# ---- documents

BAD_ROWS = 6


def write_documents(folder, count, longest, seed):
    """`count` rows of a .jsonl, of 0 to `longest` tokens, some of them bad. Returns the file and the number of bad rows."""
    chooser = random.Random(seed)
    letters = "abcdefghijklmnopqrstuvwxyz .,"
    noise = "".join(chooser.choice(letters) for _ in range(longest + 4096))
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    path = folder / "documents.jsonl"
    bad = 0
    with open(path, "w") as out:
        for i in range(count):
            # Many short ones, few long ones; the very longest and the empty ones are there for certain.
            size = {0: 0, 1: 1, 2: longest}.get(i, int(longest * chooser.random() ** 6))
            start = chooser.randrange(4096)
            text = noise[start:start + size]
            row = {"custom_id": f"document {i}", "text": text}
            kind = i % 97
            if kind == 10:
                row = {"custom_id": f"document {i}"}
            elif kind == 20:
                row = {"custom_id": f"document {i}", "path": "texts/is-not-there.txt"}
            elif kind == 30:
                row = {"custom_id": f"document {i}", "tokens": [1, 2, 256]}
            elif kind == 40:
                row = {"custom_id": f"document {i - 1}", "text": "its name is taken"}
            elif kind == 50:
                row = {"custom_id": f"document {i}", "tokens": list(text[:2000].encode())}
            elif kind == 60:
                (texts / f"{i}.txt").write_text(text)
                row = {"custom_id": f"document {i}", "path": f"texts/{i}.txt"}
            elif kind == 70:
                out.write('{"custom_id": "document ' + str(i) + '", "text": \n')
                bad += 1
                continue
            bad += kind in (10, 20, 30, 40)
            out.write(json.dumps(row) + "\n")
    return path, bad


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def require_same(want, got, documents, bad):
    """Every id once, in order, the same bytes; apart from times and the number of ranks."""
    def stable(rows):
        return [{k: v for k, v in row.items() if k not in ("seconds", "tokens_per_second", "ranks")} for row in rows]

    want_rows, got_rows = rows_of(want / "results.jsonl"), rows_of(got / "results.jsonl")
    if len(got_rows) != documents - bad:
        fail(f"{len(got_rows)} results, expected {documents - bad}")
    if stable(want_rows) != stable(got_rows):
        fail(f"{got}/results.jsonl differs from {want}/results.jsonl")
    if (want / "errors.jsonl").read_bytes() != (got / "errors.jsonl").read_bytes():
        fail(f"{got}/errors.jsonl differs from {want}/errors.jsonl")
    if len(rows_of(got / "errors.jsonl")) != bad:
        fail(f"{len(rows_of(got / 'errors.jsonl'))} error rows, expected {bad}")
    for row in got_rows:
        if (want / row["nll_file"]).read_bytes() != (got / row["nll_file"]).read_bytes():
            fail(f"{row['nll_file']}: the losses differ")
    if not (got / "manifest.json").exists():
        fail(f"{got}: no manifest")


def require_no_process_left(trial):
    time.sleep(1)
    left = [entry.name for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and str(trial.config) in command_line(int(entry.name))
            or entry.name.isdigit() and f"127.0.0.1:{trial.control} " in command_line(int(entry.name)) + " "]
    if left:
        fail(f"processes are left: {left}")


def scratch(argument):
    """A folder that goes away with the trial, unless it was named."""
    if argument:
        return Path(argument), lambda: None
    import tempfile
    folder = Path(tempfile.mkdtemp(prefix="fenwick-trial-"))
    return folder, lambda: shutil.rmtree(folder, ignore_errors=True)


def main(body):
    try:
        body()
    except subprocess.TimeoutExpired as late:
        fail(f"{late.cmd}: no answer in {late.timeout} s")
    sys.exit(0)
