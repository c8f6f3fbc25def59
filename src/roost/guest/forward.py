"""Ports on a sandbox's own loopback, each leading to a unix socket that was mounted into it.

    python3 -I -S forward.py 3128=/run/roost/proxy.sock [PORT=SOCKET ...] -- command [argument ...]

The ports are open before the command starts. The command keeps this process's id, pipes and
signals; the forwarding goes on in a process beside it that holds none of its pipes, and ends with
the sandbox. Without a command it forwards in the foreground. One thread for all connections: threads
would count against the sandbox's limit of processes.

Every agent's start waits for this. So what takes long to import is imported in the process beside the
command, while the command starts; until then, whoever comes to a port waits in line.
"""

from __future__ import annotations

import _socket
import errno
import os
import sys

TYPE_CHECKING = False  # `typing` has it too, and takes as long to import as all the rest
if TYPE_CHECKING:
    import selectors
    import socket
    from collections.abc import Sequence
    from typing import NoReturn

CHUNK = 65536
BACKLOG = 128


class Flow:
    """One direction of a connection: what was read from `source` and not yet written to `sink`."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source = source
        self.sink = sink
        self.waiting = b""
        self.ended = False
        self.done = False

    def read(self) -> None:
        """Take in what has come; nothing means that the other side has no more to say."""
        data = self.source.recv(CHUNK)
        self.waiting += data
        self.ended = not data
        self.write()

    def write(self) -> None:
        """Pass on as much as is taken, and the end after the last of it."""
        if self.waiting:
            try:
                self.waiting = self.waiting[self.sink.send(self.waiting) :]
            except BlockingIOError:
                return
        if self.ended and not self.waiting and not self.done:
            self.done = True
            self.sink.shutdown(socket.SHUT_WR)


class Pair:
    """A connection to a port, and the connection to the socket it leads to."""

    def __init__(
        self, selector: selectors.BaseSelector, near: socket.socket, far: socket.socket
    ) -> None:
        self.selector = selector
        self.up = Flow(near, far)
        self.down = Flow(far, near)
        self.watched: dict[socket.socket, int] = {}
        self.watch()

    def ready(self, which: socket.socket, events: int) -> None:
        """Something can be read from or written to one of the two."""
        out, back = (self.up, self.down) if which is self.up.source else (self.down, self.up)
        try:
            if events & selectors.EVENT_WRITE:
                back.write()
            if events & selectors.EVENT_READ:
                out.read()
        except OSError:
            self.close()
            return
        if self.up.done and self.down.done:
            self.close()
        else:
            self.watch()

    def watch(self) -> None:
        """Wait for exactly what can go on: a side that is not read from holds up only its writer."""
        for out, back in ((self.up, self.down), (self.down, self.up)):
            read = selectors.EVENT_READ if not out.ended and not out.waiting else 0
            write = selectors.EVENT_WRITE if back.waiting else 0
            self.register(out.source, read | write)

    def register(self, which: socket.socket, events: int) -> None:
        """Tell the selector, if it does not know."""
        before = self.watched.get(which, 0)
        self.watched[which] = events
        if events and before and events != before:
            self.selector.modify(which, events, self)
        elif events and not before:
            self.selector.register(which, events, self)
        elif before and not events:
            self.selector.unregister(which)

    def close(self) -> None:
        """Close both sides of the connection."""
        for which in (self.up.source, self.down.source):
            self.register(which, 0)
            which.close()


def listen(port: int) -> _socket.socket | None:
    """A port that only this sandbox can reach; None if it is open already.

    Where the commands of a sandbox share its network, an earlier one has opened it, for all of them.
    """
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def accept(selector: selectors.BaseSelector, listener: socket.socket, path: str) -> None:
    """Connect somebody who has come to the port with the socket behind it."""
    try:
        near, _ = listener.accept()
    except OSError:
        return
    far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    far.setblocking(False)
    try:
        # At once or not at all: to wait here would hold up the connections that could make room.
        far.connect(path)
    except OSError:
        near.close()
        far.close()
        return
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Pair(selector, near, far)


def forward(listeners: Sequence[tuple[_socket.socket, str]]) -> NoReturn:
    """Carry connections until the process ends."""
    global selectors, socket
    import selectors
    import socket

    selector = selectors.DefaultSelector()
    for opened, path in listeners:
        listener = socket.socket(fileno=opened.detach())
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, path)
    while True:
        for key, events in selector.select():
            if isinstance(key.data, str):
                accept(selector, key.fileobj, key.data)  # type: ignore[arg-type]
            elif key.data.watched[key.fileobj]:  # else closed by an event before this one
                key.data.ready(key.fileobj, events)


def let_go(keep: set[int]) -> None:
    """Close everything but those, also what was inherited by mistake and is open under any number."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - pathlib doubles the time to start
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:  # the one for the listing itself is gone already
                continue
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)


def beside(listeners: Sequence[tuple[_socket.socket, str]]) -> None:
    """Forward in a process that is nobody's child, so that the command is not asked to wait for it,
    and that holds no pipe, so that the end of the command is seen as the end of its output.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    let_go({listener.fileno() for listener, _ in listeners})
    try:
        forward(listeners)
    finally:
        os._exit(1)


def main(arguments: Sequence[str]) -> None:
    """Open the ports, then become the command."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    pairs = [argument.split("=", 1) for argument in arguments[:cut]]
    command = list(arguments[cut + 1 :])
    opened = [(listen(int(port)), path) for port, path in pairs]
    listeners = [(listener, path) for listener, path in opened if listener is not None]
    if not command:
        forward(listeners)
    if listeners:
        beside(listeners)
    for listener, _ in listeners:
        listener.close()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(sys.argv[1:])
