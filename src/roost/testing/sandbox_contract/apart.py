"""Two sandboxes know nothing of each other, and nothing of the machine."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path

from roost.ports.sandbox_provider import (
    Endpoint,
    Mount,
    SandboxLimits,
    SandboxProvider,
    UnixAddress,
)
from roost.testing.sandbox_contract.kit import Kit, Plans, run, shell

_LISTEN = """
import socket, sys
stream = socket.socket(); stream.bind(("127.0.0.1", 0)); stream.listen()
named = socket.socket(socket.AF_UNIX); named.bind("\\0roost-contract"); named.listen()
print(stream.getsockname()[1], flush=True)
sys.stdin.read()
"""
_CONNECT = """
import socket, sys
for kind, address in ((socket.AF_INET, ("127.0.0.1", int(sys.argv[1]))), (socket.AF_UNIX, sys.argv[2])):
    try:
        socket.socket(kind).connect(address.replace("@", "\\0") if kind == socket.AF_UNIX else address)
        print("reached")
    except OSError:
        print("refused")
"""


class ApartContract(Kit):
    """What a sandbox cannot see or reach: others' processes and files, sockets, the network."""

    async def test_two_sandboxes_do_not_see_each_others_processes(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Nor can one signal the other's."""
        async with provider.open(plan("sesn_a")) as a, provider.open(plan("sesn_b")) as b:
            await a.spawn(["sh", "-c", "exec sleep 654321"])
            seen = await shell(b, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            assert b"654321" not in seen.output

    async def test_two_sandboxes_do_not_see_each_others_files(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """They are visible under no path."""
        ours, theirs = plan("sesn_a"), plan("sesn_b")
        async with provider.open(ours) as a, provider.open(theirs) as b:
            await shell(a, "echo secret >note; echo secret >/tmp/roost-contract-note")
            looked = await shell(b, f"cat {ours.home.path}/note /tmp/roost-contract-note")
            assert b"secret" not in looked.output
            await shell(a, "rm /tmp/roost-contract-note")

    async def test_there_is_room_of_its_own_where_programs_look_for_it(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """Of a size, and beside what is mounted there."""
        (tmp_path / "fixed").mkdir()
        mounts = [Mount(tmp_path / "fixed", "/mnt/session/uploads")]
        limits = SandboxLimits(tmp_bytes=1024**2)
        ours, theirs = plan("sesn_a", mounts=mounts, limits=limits), plan("sesn_b")
        make = "mkdir {0}/user && echo secret >{0}/user/note && cat {0}/user/note"
        async with provider.open(ours) as a, provider.open(theirs) as b:
            for room in ("/mnt", "/srv"):
                assert await shell(a, make.format(room)) == (0, b"secret\n", b"")
                assert b"secret" not in (await shell(b, f"cat {room}/user/note")).output
                filled = await shell(a, f"head -c 2000000 /dev/zero >{room}/much")
                assert filled.code != 0
            assert (await shell(a, "echo >/mnt/session/uploads/new")).code != 0
            assert (await shell(a, "rmdir /mnt/session/uploads")).code != 0

    async def test_what_is_written_to_the_system_is_the_sandbox_s_own_and_goes_with_it(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Neither the machine has it, nor another sandbox, nor the session's next one."""
        name = f"roost-contract-{secrets.token_hex(4)}"
        own = [
            f"{place}/{name}" for place in ("/usr", "/usr/bin", "/usr/local/bin", "/opt", "/var")
        ]
        looked = f"ls -d {' '.join(own)}"
        async with provider.open(plan("sesn_a")) as a, provider.open(plan("sesn_b")) as b:
            made = await shell(a, f"mkdir {' '.join(own)} && {looked}")
            assert (made.code, set(made.output.decode().split())) == (0, set(own)), made.errors
            assert (await shell(b, looked)).output == b""
            assert not any(Path(path).exists() for path in own)  # noqa: ASYNC240
        async with provider.open(plan("sesn_a", generation=2)) as again:
            assert (await shell(again, looked)).output == b""

    async def test_two_sandboxes_do_not_reach_each_others_sockets(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Neither by port nor by name."""
        async with provider.open(plan("sesn_a")) as a, provider.open(plan("sesn_b")) as b:
            listening = await a.spawn(["python3", "-c", _LISTEN])
            port = (await listening.receive()).decode().strip()
            tried = await run(b, "python3", "-c", _CONNECT, port, "@roost-contract")
            assert tried.output == b"refused\nrefused\n"

    async def test_there_is_no_network(self, provider: SandboxProvider, plan: Plans) -> None:
        """Least of all the server's own ports."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
            async with provider.open(plan()) as sandbox:
                tried = await run(sandbox, "python3", "-c", _CONNECT, port, "/nowhere")
        assert tried.output == b"refused\nrefused\n"

    async def test_an_endpoint_is_the_way_out(self, provider: SandboxProvider, plan: Plans) -> None:
        """It is the only one."""
        given = plan()
        path = given.home.path.parent / "way-out.sock"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            path.chmod(0o666)
            server.listen()
            endpoint = Endpoint(address=UnixAddress(path), socket="/run/roost/way-out.sock")
            async with provider.open(plan(endpoints=[endpoint])) as sandbox:
                command = ["python3", "-c", _CONNECT, "1", "/run/roost/way-out.sock"]
                assert (await run(sandbox, *command)).output == b"refused\nreached\n"

    async def test_a_port_leads_to_its_endpoint_where_the_sandbox_opens_ports(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """Where it does not, `core/sandbox/loopback` has a program inside open them."""
        path = plan().home.path.parent / "way-out.sock"
        taken: list[socket.socket] = []

        async def take(connection: socket.socket) -> None:
            taken.append(connection)

        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
            path.chmod(0o666)
            endpoint = Endpoint(
                address=UnixAddress(path), socket="/run/roost/way-out.sock", port=3128, take=take
            )
            async with provider.open(plan(endpoints=[endpoint])) as sandbox:
                said = await run(sandbox, "python3", "-c", _CONNECT, "3128", "/nowhere")
                opens = sandbox.has_ports
        assert said.output.split()[0] == (b"reached" if opens else b"refused")
        for connection in taken:
            connection.close()
        assert len(taken) <= opens  # it may be gone before anybody takes it
