"""Machines of their own for nodes, as far as the network goes: namespaces, each with one wire to this one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.parts import need

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PORT = "5432"


class Host:
    """A namespace; `address` is its own, `gateway` ours on the wire to it."""

    def __init__(self, number: int) -> None:
        own = os.getpid()  # others may run these tests on this machine, too
        net = f"10.{100 + own // 50 % 100}.{own % 50 * 5 + number}"
        self.name = f"roost-{os.getpid()}-{number}"
        self.gateway, self.address = f"{net}.1", f"{net}.2"
        self._wire = f"rw{os.getpid()}n{number}"
        self.prefix = ("nsenter", f"--net=/var/run/netns/{self.name}")

    def make(self) -> None:
        _run("ip", "netns", "add", self.name)
        peer = ("peer", "name", "eth0", "netns", self.name)
        _run("ip", "link", "add", self._wire, "type", "veth", *peer)
        _run("ip", "addr", "add", f"{self.gateway}/24", "dev", self._wire)
        _run("ip", "link", "set", self._wire, "up")
        for line in (f"addr add {self.address}/24 dev eth0", "link set eth0 up", "link set lo up"):
            _run(*self.prefix, "ip", *line.split())

    def part(self) -> None:
        """Nothing gets from here to the database or back, and nobody is told so."""
        for chain, port in (("OUTPUT", "--dport"), ("INPUT", "--sport")):
            _run(*self.prefix, "iptables", "-A", chain, "-p", "tcp", port, _PORT, "-j", "DROP")

    def heal(self) -> None:
        _run(*self.prefix, "iptables", "-F")

    def remove(self) -> None:
        _run("ip", "netns", "del", self.name)


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """So many of them, as long as the context lasts."""
    missing = [name for name in ("ip", "iptables", "nsenter") if not shutil.which(name, path=_PATH)]
    get_it = "scripts/install-test-parts ip iptables (as root on Debian)"
    need("network namespaces", not missing and os.geteuid() == 0 and _may(), get_it)
    with ExitStack() as stack:
        made = []
        for number in range(1, count + 1):
            host = Host(number)
            host.make()
            stack.callback(host.remove)
            made.append(host)
        yield made


def _may() -> bool:
    """Whether this process has the right to make them (CAP_SYS_ADMIN and CAP_NET_ADMIN)."""
    name = f"roost-may-{os.getpid()}"
    try:
        _run("ip", "netns", "add", name)
    except subprocess.CalledProcessError:
        return False
    _run("ip", "netns", "del", name)
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env={"PATH": _PATH}, capture_output=True)
