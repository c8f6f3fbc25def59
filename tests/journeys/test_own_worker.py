"""`roost worker`: our own worker, which runs the tools of sessions in sandboxes of its machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.api.api_server import skill_files
from tests.journeys.chat import script
from tests.journeys.test_workers import SelfHosted, tool, waiting_command

from roost.testing.live import LiveServer


@contextmanager
def own_worker(
    place: SelfHosted, *flags: str, key: str | None = None
) -> Generator[subprocess.Popen[bytes], None, None]:
    command = [sys.executable, "-m", "roost", "worker", "--environment", place.environment.id]
    given = ["--url", place.server.url, "--directory", str(place.root / "homes"), *flags]
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(place.root),
        "ANTHROPIC_ENVIRONMENT_KEY": key or place.key,
    }
    with (place.root / "own.log").open("ab") as output:
        process = subprocess.Popen([*command, *given], env=environ, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_it_runs_tools_in_a_sandbox_with_the_sessions_skills_and_is_killed(tmp_path: Path):
    with LiveServer(tmp_path / "data") as server:
        place = SelfHosted(server, tmp_path)
        with own_worker(place, key="roost_env_none.x") as process:
            assert process.wait(300) == 1
        assert "does not give work to this worker" in (tmp_path / "own.log").read_text()
        made = place.client.beta.skills.create(files=[part for _, part in skill_files("greeting")])
        skills = [{"type": "custom", "skill_id": made.id, "version": "latest"}]
        place.agent = place.client.beta.agents.update(
            place.agent.id, version=place.agent.version, skills=skills
        )
        commands = (
            "echo $HOME; pwd; id -u; ls /root 2>&1 | head -1; env | grep -c ANTHROPIC || true"
        )
        session = place.session(
            tool("bash", command=commands),
            tool("read", file_path="skills/greeting/SKILL.md"),
            {"tools": [tool("bash", command="echo kept >file"), tool("grep", pattern="ke.t")]},
            {"text": "Done."},
        )
        home = tmp_path / "homes" / session
        with own_worker(place, "--max-idle", "600") as process:
            place.until(lambda: place.has_ended(session))
            where, skill, _, found = place.results(session)
            assert where.splitlines()[:2] == ["/home/sandbox", "/workspace"]
            assert where.splitlines()[-1] == "0", "what the worker is let in by stays outside"
            assert "Say hello." in skill
            assert "kept" in found
            assert (home / "file").read_text() == "kept\n"
            # An interrupt ends the command that it is running.
            content = [{"type": "text", "text": script(waiting_command("first"), {"text": "No."})}]
            place.send(session, {"type": "user.message", "content": content})
            place.until(lambda: (home / "log").exists())
            place.send(session, {"type": "user.interrupt"})
            again = [
                {"type": "text", "text": script(tool("bash", command="echo on"), {"text": "Yes."})}
            ]
            place.send(session, {"type": "user.message", "content": again})
            place.until(lambda: place.results(session)[-1].endswith("on"))
            place.until(lambda: place.has_ended(session))
            # Killed in the middle of a call, it leaves nothing behind, and the model is told.
            (home / "log").unlink()
            place.send(session, {"type": "user.message", "content": content})
            place.until(lambda: (home / "log").exists())
            process.send_signal(signal.SIGKILL)
            process.wait()
        # Its lease would end by itself; it is taken away from it at once here.
        work = place.client.beta.environments.work
        [item] = [each for each in work.list(place.environment.id) if each.data.id == session]
        work.stop(item.id, environment_id=place.environment.id, force=True)
        place.until(lambda: place.has_ended(session))
        last = place.events(session, "user.tool_result")[-1]
        assert last.model_extra["closed"] == "worker_lost"
        # The next one has the same files.
        more = [{"type": "text", "text": script(tool("read", file_path="file"), {"text": "Yes."})}]
        place.send(session, {"type": "user.message", "content": more})
        with own_worker(place):
            place.until(lambda: place.results(session)[-1].strip() == "kept")
