"""What agents do all day works in a sandbox that blocks all that the other tests here try."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.hostile.probed_sandbox import hostile_sandbox

from roost.testing.sandbox_contract.kit import run

_GIT = """
git init -q repo && cd repo
git config user.email a@b && git config user.name c
echo one >file && git add file && git commit -q -m one
git worktree add -q ../tree && git gc -q && git log --oneline | wc -l
"""
_PROCESSES = """
import multiprocessing, multiprocessing.shared_memory, concurrent.futures as futures
def double(number): return 2 * number
if __name__ == "__main__":
    with futures.ProcessPoolExecutor(2) as pool: assert list(pool.map(double, range(8)))[-1] == 14
    with futures.ThreadPoolExecutor(8) as pool: assert sum(pool.map(double, range(8))) == 56
    memory = multiprocessing.shared_memory.SharedMemory(create=True, size=1000); memory.unlink()
    multiprocessing.Queue().put(1); multiprocessing.Semaphore().release()
"""
_DATABASE = """
import sqlite3
db = sqlite3.connect("x.db"); db.execute("pragma journal_mode=wal")
db.execute("create table t (a)"); db.execute("insert into t values (1)"); db.commit()
assert db.execute("select * from t").fetchall() == [(1,)]
"""
_SERVER = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0)); threading.Thread(target=lambda: server.accept()[0].send(b"hi")).start()
assert socket.create_connection(server.getsockname()).recv(2) == b"hi"
six = socket.create_server(("::1", 0), family=socket.AF_INET6); pair = socket.socketpair()
assert socket.getaddrinfo("localhost", 80) and socket.if_nameindex()
import asyncio, subprocess, select, os, tempfile, signal
asyncio.run(asyncio.sleep(0)); subprocess.run(["true"], check=True); select.epoll().close(); os.memfd_create("x")
os.eventfd(0); os.pidfd_open(os.getpid()); signal.setitimer(signal.ITIMER_REAL, 0)
"""
_NODE = """
const { Worker, isMainThread } = require("worker_threads"), fs = require("fs");
fs.watch("."); new Worker("process.exit(0)", { eval: true }).on("exit", () => {
  require("child_process").execFileSync("true");
  fetch("http://127.0.0.1:9").catch(() => process.exit(0));
});
"""
_C = """
printf '#include <stdio.h>\\nint main(){puts("hi");}' >a.c && gcc -o a a.c && ./a
"""
WORK = {
    "git": ("git", _GIT),
    "python processes": ("python3", f"cat >p.py <<'E'\n{_PROCESSES}\nE\npython3 p.py"),
    "a database": ("python3", f"python3 -c '{_DATABASE}'"),
    "a server": ("python3", f"cat >s.py <<'E'\n{_SERVER}\nE\npython3 s.py"),
    "node": ("node", f"cat >n.js <<'E'\n{_NODE}\nE\nnode n.js"),
    "a compiler": ("gcc", _C),
    "a terminal": ("script", "script -qec 'tty && stty size' /dev/null </dev/null"),
    "a tracer": ("strace", "strace -f -o trace sh -c 'true | true' && grep -q exit_group trace"),
    "a shell of one's own": (
        "bash",
        "bash -c 'cat <(echo a) | tr a b; ulimit -n; sleep 0.01 & wait'",
    ),
    "links and permissions": (
        "sh",
        "ln -s a b; mkfifo f; touch g; ln g h; chmod 700 g; mv h i; rm -r *",
    ),
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("name", WORK)
async def test_ordinary_work_is_done(tmp_path: Path, name: str) -> None:
    program, script = WORK[name]
    if shutil.which(program, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"this machine has no {program}")
    async with hostile_sandbox(tmp_path / "home") as sandbox:
        result = await run(sandbox, "sh", "-ec", script)
        assert result.code == 0, result
