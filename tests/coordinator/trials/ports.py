#!/usr/bin/env python3
"""Ports for servers of a trial. usage: ports.py COUNT   prints the first of COUNT in a row that nothing on this host uses."""

import random
import socket
import sys
from pathlib import Path

FIRST = 10000


def usable(port):
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_ports(count):
    """The first of `count` free ports in a row. They lie below those that the system hands to outgoing connections, where it
    leaves any: one of those could take a port between this look and the server's start, and the server would not come up."""
    end = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    if end < 2 * FIRST:
        end = 32768
    for _ in range(1000):
        first = random.randrange(FIRST, end - count)
        if all(usable(port) for port in range(first, first + count)):
            return first
    raise SystemExit(f"ports.py: no {count} free ports in a row between {FIRST} and {end}")


if __name__ == "__main__":
    print(free_ports(int(sys.argv[1])))
