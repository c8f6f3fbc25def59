"""The network, and other ways to reach processes elsewhere."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterable

from roost.testing.probes.inside.kit import LIBC, Facts, call, probe, understood

_INET = (2, 10)
_RAW = ((3, 1), (3, 255), (10, 768), (5, 132))
_EXOTIC = (40, *range(3, 10), *range(11, 16), *range(17, 50))  # VSOCK first


@probe("net.raw_sockets")
def _raw_sockets(facts: Facts) -> object:
    kinds = [(family, *kind) for family in _INET for kind in _RAW]
    return _sockets([*kinds, (17, 3, 768), (17, 2, 768)])


@probe("net.families")
def _families(facts: Facts) -> object:
    return _sockets((family, kind, 0) for family in _EXOTIC for kind in (1, 2, 3, 5))


@probe("net.netlink")
def _netlink(facts: Facts) -> object:
    return _sockets((16, 3, protocol) for protocol in range(1, 24))


@probe("net.server_on_loopback")
def _server_on_loopback(facts: Facts) -> object:
    hosts = ("127.0.0.1", "localhost", facts["address"])
    return _reached([(host, facts["port"]) for host in hosts])


@probe("net.metadata_service")
def _metadata_service(facts: Facts) -> object:
    return _reached([(facts["metadata"], facts["metadata_port"])])


@probe("net.routes")
def _routes(facts: Facts) -> object:
    return _routed(["192.0.2.1", "10.0.0.1", "169.254.169.254"])


@probe("net.names")
def _names(facts: Facts) -> object:
    return [found[4][0] for found in socket.getaddrinfo(facts["name"], 80)]


@probe("net.interfaces")
def _interfaces(facts: Facts) -> object:
    return [name for _, name in socket.if_nameindex() if name != "lo"]


@probe("ipc.abstract_socket")
def _abstract_socket(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(f"\0{facts['abstract']}")
    return "reached"


@probe("ipc.socket_file")
def _socket_file(facts: Facts) -> object:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(facts["socket"])
    return "reached"


@probe("ipc.shared_memory")
def _shared_memory(facts: Facts) -> object:
    return LIBC.shmget(facts["shared_memory"], 0, 0) >= 0


@probe("ipc.keyrings")
def _keyrings(facts: Facts) -> object:
    kind, name = ctypes.c_char_p(b"user"), ctypes.c_char_p(b"probe")
    added = call("add_key", kind, name, kind, 4, 0xFFFFFFFD)  # to the process's own keyring
    return understood("keyctl", "request_key") + ["add_key"] * (added > 0)


def _sockets(kinds: Iterable[tuple[int, int, int]]) -> list[str]:
    """Those kinds of sockets that can be made."""
    made = []
    for kind in kinds:
        try:
            socket.socket(*kind).close()
        except OSError:
            continue
        made.append(str(kind))
    return made


def _reached(addresses: Iterable[tuple[str, int]]) -> list[str]:
    """Those addresses that answer."""
    found = []
    for address in addresses:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            continue
        found.append(str(address))
    return found


def _routed(addresses: Iterable[str]) -> list[str]:
    """Those addresses there is a way to; nothing is sent."""
    found = []
    for address in addresses:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            if datagrams.connect_ex((address, 9)) == 0:
                found.append(address)
    return found
