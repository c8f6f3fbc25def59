"""The program that runs inside: ports that lead to sockets."""

from __future__ import annotations

import ast
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

import roost.guest.forward
from roost.ports.egress import Networking
from tests.egress.both_sides import EgressSetup, answer

PROGRAM = Path(roost.guest.forward.__file__)
COMMAND = [sys.executable, "-I", "-S", str(PROGRAM)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def whole(stream: socket.socket) -> bytes:
    received = b""
    while data := stream.recv(65536):
        received += data
    return received


@contextmanager
def served(talk: Callable[[socket.socket], None]) -> Generator[str, None, None]:
    """A unix socket at which each connection is given to `talk`, in a thread of its own."""
    with tempfile.TemporaryDirectory(prefix="forward-") as directory:
        path = f"{directory}/s"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(128)

        def one(stream: socket.socket) -> None:
            with stream, suppress(OSError):
                talk(stream)

        def accept() -> None:
            while True:
                try:
                    stream, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=one, args=(stream,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()


@contextmanager
def forwarding(path: str) -> Generator[int, None, None]:
    """The program in the foreground, with one port."""
    port = free_port()
    process = subprocess.Popen([*COMMAND, f"{port}={path}"])
    try:
        deadline = time.monotonic() + 60
        while not is_open(port):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield port
    finally:
        process.kill()
        process.wait()


def is_open(port: int) -> bool:
    """Asked of the kernel: to connect would make a connection that the test did not ask for."""
    return f"0100007F:{port:04X} 00000000:0000 0A" in Path("/proc/net/tcp").read_text()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=300)


def shout(stream: socket.socket) -> None:
    while data := stream.recv(65536):
        stream.sendall(data.upper())


def test_it_imports_nothing_of_roost_nor_of_anybody_else():
    for node in ast.walk(ast.parse(PROGRAM.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in getattr(node, "names", []) if not names]
            for name in names:
                assert str(name).split(".")[0] in sys.stdlib_module_names


def test_bytes_pass_both_ways():
    with served(shout) as path, forwarding(path) as port, connect(port) as stream:
        stream.sendall(b"hello")
        assert stream.recv(100) == b"HELLO"


def test_a_side_may_end_before_the_other():
    def talk(stream: socket.socket) -> None:
        asked = whole(stream)
        stream.sendall(b"you said " + asked)

    with served(talk) as path, forwarding(path) as port, connect(port) as stream:
        stream.sendall(b"this")
        stream.shutdown(socket.SHUT_WR)
        assert whole(stream) == b"you said this"


def test_much_passes_both_ways_at_once_although_nobody_reads_at_first():
    data = bytes(range(256)) * 40_000
    received: list[bytes] = []
    done = threading.Event()

    def talk(stream: socket.socket) -> None:
        sender = threading.Thread(target=lambda: (stream.sendall(data), stream.shutdown(1)))
        sender.start()
        time.sleep(0.2)
        received.append(whole(stream))
        sender.join()
        done.set()

    with served(talk) as path, forwarding(path) as port, connect(port) as stream:
        sender = threading.Thread(target=lambda: (stream.sendall(data), stream.shutdown(1)))
        sender.start()
        time.sleep(0.2)
        assert whole(stream) == data
        sender.join()
        assert done.wait(60)
    assert received == [data]


def test_a_connection_that_is_reset_does_not_disturb_the_others():
    with served(shout) as path, forwarding(path) as port, connect(port) as calm:
        for _ in range(20):
            wild = connect(port)
            wild.sendall(b"x" * 100_000)
            wild.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            wild.close()
        calm.sendall(b"still here")
        assert calm.recv(100) == b"STILL HERE"


def test_a_socket_that_is_not_there_closes_the_connection():
    with forwarding("/nowhere/at/all") as port, connect(port) as stream:
        assert stream.recv(1) == b""


def test_fifty_connections_at_once():
    with served(shout) as path, forwarding(path) as port:
        streams = [connect(port) for _ in range(50)]
        for number, stream in enumerate(streams):
            stream.sendall(f"n{number}".encode())
        for number, stream in enumerate(streams):
            assert stream.recv(100) == f"N{number}".encode()
            stream.close()


def test_the_command_has_its_ports_from_its_first_moment_and_ends_by_itself():
    """Its output must end when it does, although the forwarding goes on beside it."""
    port = free_port()
    script = (
        "import os,socket,sys\n"
        f"s = socket.create_connection(('127.0.0.1', {port}))\n"
        "s.sendall(sys.stdin.buffer.read()); print(s.recv(9).decode())\n"
        "try:\n    os.waitpid(-1, os.WNOHANG)\n"
        "except ChildProcessError:\n    print('no child')\n"
        "sys.exit(7)"
    )
    command = [*COMMAND, f"{port}=PATH", "--", sys.executable, "-c", script]
    with served(shout) as path:
        command[len(COMMAND)] = f"{port}={path}"
        ran = subprocess.run(command, input=b"abc", capture_output=True, timeout=300)
    assert (ran.stdout, ran.returncode) == (b"ABC\nno child\n", 7)
    end_forwarding(port)


def end_forwarding(port: int) -> None:
    """Outside a sandbox nothing ends the process beside the command; its port names it."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(PROGRAM).encode() in words and any(w.startswith(b"%d=" % port) for w in words):
            subprocess.run(["kill", status.parent.name], check=False)


@pytest.mark.parametrize("command", [["/no/such/program"], ["no-such-program"]])
def test_a_command_that_cannot_be_found_exits_as_in_a_shell(command: list[str]):
    ran = subprocess.run([*COMMAND, "--", *command], capture_output=True, timeout=300)
    assert ran.returncode == 127
    assert b"No such file" in ran.stderr


async def test_a_program_reaches_an_allowed_host_by_way_of_its_port(egress_setup: EgressSetup):
    egress_setup.far.reply = answer(b"from outside", content_type="text/plain")
    script = "import urllib.request as u; print(u.urlopen(%r).read().decode())"
    networking = Networking(kind="limited", allowed_hosts=["a.example"])

    async def names(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with egress_setup.opened({"resolve": names}, networking=networking) as inside:
        port = free_port()
        for host, status in (("a.example", 0), ("b.example", 1)):
            url = f"http://{host}:{egress_setup.far.port}/"
            ran = await anyio.run_process(
                [
                    *COMMAND,
                    f"{port}={inside.path('proxy.sock')}",
                    "--",
                    *(sys.executable, "-c", script % url),
                ],
                env={"http_proxy": f"http://127.0.0.1:{port}"},
                check=False,
            )
            end_forwarding(port)
            assert ran.returncode == status, ran.stderr
            port = free_port()
    assert [seen.header("host") for seen in egress_setup.far.seen] == [
        f"a.example:{egress_setup.far.port}"
    ]
    assert [refused.host for refused in egress_setup.refusals] == ["b.example"]
