#!/usr/bin/env python3
"""Hostile clients against a real coordinator, with a healthy one beside them: CASES I1 and I3, and a fuzzer on both ports.

    hostile.py --fenwick build/asan/bin/fenwick --fuzzer build/cpu/bin/hostile_fuzz --seconds 600      # the long form
    hostile.py --front-host build/asan/bin/front_host --fuzzer build/cpu/bin/hostile_fuzz              # the front alone: builds sooner
    hostile.py --fenwick build/cpu/bin/fenwick --fuzzer build/cpu/bin/hostile_fuzz --short             # as CTest runs it

(FENWICK_SANITIZE=ON, the preset "asan", builds with sanitizers: cmake --build build/asan --target fenwick front_host)

It must hold: the healthy client, once every 50 ms, is always answered, in under 200 ms (--answer-ms; a second in I3); the coordinator
lives, its memory and descriptors return to where they were, and its log has no word of a sanitizer."""

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trials"))
from trial import Trial, fail, say  # noqa: E402

FRAME_SECONDS = 10  # the coordinator's default: the documented timeout of slow peers


def frame(body):
    return struct.pack(">I", len(body)) + body


def call(method, arguments=b"\0"):
    return frame(b"\x80\x01\x00\x01" + struct.pack(">I", len(method)) + method + struct.pack(">I", 7) + arguments)


HEALTH = call(b"getHealth")
PUT_CHUNK_1MIB = call(b"putChunk", b"\x0b\x00\x01" + frame(b"no such upload") + b"\x0b\x00\x03" + frame(bytes(1 << 20)) + b"\0")


def receive(sock, size):
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


def ask(sock, request):
    """Sends a frame and returns the reply's body."""
    sock.sendall(request)
    return receive(sock, struct.unpack(">I", receive(sock, 4))[0])


class Healthy(threading.Thread):
    """A client that behaves, and remembers its slowest answer."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self.port, self.stopping, self.times, self.problem = port, False, [], None
        self.start()

    def run(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=30) as sock:
                while not self.stopping:
                    begun = time.monotonic()
                    ask(sock, HEALTH)
                    self.times.append(time.monotonic() - begun)
                    time.sleep(0.05)
        except OSError as error:
            self.problem = error

    def finish(self, name, limit_ms):
        self.stopping = True
        self.join(60)
        if self.problem or not self.times:
            fail(f"{name}: the healthy client was cut off: {self.problem}")
        times = sorted(1000 * t for t in self.times)
        say(f"{name}: healthy client: {len(times)} answers, median {times[len(times) // 2]:.1f} ms, slowest {times[-1]:.1f} ms")
        if times[-1] >= limit_ms:
            fail(f"{name}: expected every answer in under {limit_ms} ms, found {times[-1]:.1f} ms")


def process(pid):
    """Resident bytes and open descriptors."""
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    return resident, len(list(Path(f"/proc/{pid}/fd").iterdir()))


def closes_within(sock, seconds):
    sock.settimeout(seconds)
    try:
        while sock.recv(65536):
            pass
        return True
    except ConnectionError:
        return True
    except OSError:
        return False


def case_i1(port, copies, max_frame):
    """Hostile lengths and containers."""
    at_once = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n",
               b"\x16\x03\x01\x00", struct.pack(">I", max_frame + 1)]
    bodies = [call(b"listJobs", b"\x0f\x00\x03\x08\x7f\xff\xff\xff"), call(b"getHealth", b"\x0f\x00\x01\x08\x7f\xff\xff\xff"),
              call(b"cancelJob", b"\x0b\x00\x01\xff\xff\xff\xff")]
    for data in at_once + bodies:
        socks = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(copies)]
        for sock in socks:
            sock.sendall(data)
        end = time.monotonic() + 1 + copies / 200
        for sock in socks:
            if not closes_within(sock, max(0.01, end - time.monotonic())):
                fail(f"I1: {data[:40]!r}: still open after a second")
            sock.close()
    halves = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(copies)]
    for sock in halves:
        sock.sendall(PUT_CHUNK_1MIB[:1000])
    time.sleep(1)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:  # a frame at the limit works
        overhead = len(call(b"putChunk", b"\x0b\x00\x03" + frame(b"") + b"\0")) - 4
        ask(sock, call(b"putChunk", b"\x0b\x00\x03" + frame(bytes(max_frame - overhead)) + b"\0"))
    for sock in halves:
        sock.close()
    say(f"I1: {len(at_once) + len(bodies) + 1} kinds of frames on {copies} connections each")


def case_i3(port, job, clients, requests, pause, patience):
    """Slow senders and clients that do not read (results of `job`), dropped within `patience` seconds; then one long-lived
    connection past 100 MiB."""
    read_256k = call(b"readResult", b"\x0b\x00\x01" + frame(job.encode()) + b"\x0b\x00\x02" + frame(b"errors.jsonl") +
                     b"\x0a\x00\x03" + bytes(8) + b"\x08\x00\x04" + struct.pack(">I", 256 << 10) + b"\0")
    senders = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(clients)]
    for sock in senders:
        sock.sendall(b"\x00")
    deaf = []
    for _ in range(clients):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.sendall(32 * read_256k)  # 8 MiB of replies: more than sockets hold
        deaf.append(sock)
    begun = time.monotonic()
    gone = set()
    while time.monotonic() - begun < patience and len(gone) < len(deaf):
        for number, sock in enumerate(deaf):
            try:
                if number not in gone:
                    sock.send(b"\0", socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except OSError:
                gone.add(number)
        time.sleep(0.5)
    if len(gone) < len(deaf):
        fail(f"I3: {len(deaf) - len(gone)} of {len(deaf)} clients that never read are still connected after {patience} s")
    for sock in senders:
        if not closes_within(sock, 0.5):
            fail(f"I3: a client with an unfinished frame is still connected after {time.monotonic() - begun:.0f} s")
    for sock in senders + deaf:
        sock.close()
    say(f"I3: {clients} slow and {clients} deaf clients were dropped within {time.monotonic() - begun:.0f} s")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        for _ in range(requests):
            ask(sock, PUT_CHUNK_1MIB)
            time.sleep(pause)
    say(f"I3: {requests} requests of 1 MiB on one connection, {pause} s apart")


class Front:
    """front_host in the place of a coordinator."""

    def __init__(self, program, folder):
        self.program, self.log = program, Path(folder) / "coordinator.log"

    def start_coordinator(self):
        self.coordinator = subprocess.Popen([self.program], stdout=subprocess.PIPE, stderr=open(self.log, "w"), text=True,
                                            env=dict(os.environ, ASAN_OPTIONS="quarantine_size_mb=8"))
        ports = json.loads(self.coordinator.stdout.readline())
        self.api, self.http = ports["api_port"], ports["http_port"]

    def job_to_read(self):
        return "any"

    def stop_coordinator(self):
        self.coordinator.terminate()
        return self.coordinator.wait(timeout=60)

    def stop(self):
        if self.coordinator.poll() is None:
            self.coordinator.kill()


class Coordinator(Trial):
    def job_to_read(self):
        """A job of bad rows, which needs no gang: its errors.jsonl is something to read."""
        rows = self.folder / "bad.jsonl"
        rows.write_text("".join(json.dumps({"custom_id": f"bad {i}", "text": 1}) + "\n" for i in range(4000)))
        job = self.submit(rows)
        self.wait(job)
        return job


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    attacked = parser.add_mutually_exclusive_group(required=True)
    attacked.add_argument("--fenwick")
    attacked.add_argument("--front-host")
    parser.add_argument("--fuzzer", required=True)
    parser.add_argument("--seconds", type=float, default=600, help="of fuzzing")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="... or so many inputs, whichever is first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--answer-ms", type=float, default=200)
    parser.add_argument("--short", action="store_true", help="a few seconds of each")
    parser.add_argument("--cases", nargs="+", choices=["I1", "I3", "fuzz"], default=["I1", "I3", "fuzz"])
    parser.add_argument("--pause", type=float, default=4.6, help="seconds between the requests of I3's long connection")
    arguments = parser.parse_args()
    copies, clients, pause = (20, 40, 0) if arguments.short else (200, 500, arguments.pause)
    seconds = 6 if arguments.short else arguments.seconds
    with tempfile.TemporaryDirectory(prefix="fenwick-hostile-") as folder:
        trial = Coordinator(arguments.fenwick, folder) if arguments.fenwick else Front(arguments.front_host, folder)
        try:
            trial.start_coordinator()
            pid = trial.coordinator.pid
            job = trial.job_to_read()
            time.sleep(1)
            base = process(pid)
            if "I1" in arguments.cases:
                healthy = Healthy(trial.api)
                case_i1(trial.api, copies, 16 << 20)
                healthy.finish("I1", arguments.answer_ms)
                peak = process(pid)[0]
                say(f"I1: memory grew by {(peak - base[0]) >> 20} MiB")
                if peak - base[0] > 256 << 20:
                    fail("I1: expected less than 256 MiB")
            if "I3" in arguments.cases:
                # The case asks for a second. Deadlines count from when the sockets between are full: a gigabyte in all, at which a
                # sanitized build, some ten times slower, takes its time.
                slow = 1 if arguments.fenwick else 10
                healthy = Healthy(trial.api)
                case_i3(trial.api, job, clients, 130, pause, (2 + slow) * FRAME_SECONDS)
                healthy.finish("I3", max(1000 * slow, arguments.answer_ms))
            if "fuzz" in arguments.cases:
                healthy = Healthy(trial.api)
                fuzz = subprocess.run([arguments.fuzzer, "--api-port", str(trial.api), "--http-port", str(trial.http), "--seconds",
                                       str(seconds), "--inputs", str(arguments.inputs), "--seed", str(arguments.seed)],
                                      stdout=subprocess.PIPE, text=True, timeout=seconds + 120)
                say(f"fuzzer: {fuzz.stdout.strip()}")
                if fuzz.returncode != 0:
                    fail(f"the fuzzer ended with {fuzz.returncode}")
                healthy.finish("fuzzer", arguments.answer_ms)
            if trial.coordinator.poll() is not None:
                fail(f"the coordinator ended with {trial.coordinator.returncode}")
            # What is half sent waits for its deadline; then all is as it was.
            end = time.monotonic() + 2 * FRAME_SECONDS
            while process(pid)[1] > base[1] and time.monotonic() < end:
                time.sleep(0.2)
            after = process(pid)
            say(f"descriptors {base[1]} before, {after[1]} after; resident {base[0] >> 20} MiB before, {after[0] >> 20} MiB after")
            if after[1] > base[1]:
                fail("descriptors did not return to their base")
            if after[0] - base[0] > 64 << 20:  # what the allocator keeps, and what Prometheus' series take
                fail("memory did not return to its base (64 MiB more at most)")
            log = (Path(folder) / "coordinator.log").read_text(errors="replace")
            for word in ("Sanitizer", "runtime error"):
                if word in log:
                    fail(f"the coordinator's log: {log[log.index(word) - 200:log.index(word) + 2000]}")
            if trial.stop_coordinator() != 0:
                fail("the coordinator did not end with 0")
            log = (Path(folder) / "coordinator.log").read_text(errors="replace")
            if "Sanitizer" in log:
                fail(f"at its end: {log[-3000:]}")
            say("hostile clients: nothing was lost")
        finally:
            trial.stop()


if __name__ == "__main__":
    main()
