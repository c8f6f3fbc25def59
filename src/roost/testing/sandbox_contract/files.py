"""What a command finds in the file system."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from roost.ports.sandbox_provider import SYSTEM_CERTIFICATES, LocalVolume, Mount, SandboxProvider
from roost.testing.sandbox_contract.kit import Kit, Plans, shell


class FileContract(Kit):
    """What a sandbox sees of its volumes and mounts."""

    async def test_the_workspace_outlives_the_sandbox(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """The next sandbox of the session finds it as it was left, and may go on changing it."""
        async with provider.open(plan()) as sandbox:
            assert (
                await shell(sandbox, "mkdir -p a/b; echo one >a/b/file; ln -s a link")
            ).code == 0
        async with provider.open(plan(generation=2)) as sandbox:
            result = await shell(sandbox, "echo two >>link/b/file; cat a/b/file; rm -r a")
            assert result == (0, b"one\ntwo\n", b"")

    async def test_the_home_outlives_the_sandbox(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """It is another directory than the workspace, if the plan says so."""
        workspace = tmp_path / "shared"
        workspace.mkdir()
        async with provider.open(plan(workspace=LocalVolume(workspace))) as sandbox:
            await shell(sandbox, "echo mine >$HOME/note; echo ours >note")
        assert (tmp_path / "sesn_1" / "note").read_text() == "mine\n"
        async with provider.open(plan(workspace=LocalVolume(workspace), generation=2)) as sandbox:
            assert (await shell(sandbox, "cat $HOME/note note")).output == b"mine\nours\n"

    async def test_two_sessions_can_share_a_workspace(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """At the same time, and each may change what the other has made."""
        workspace = tmp_path / "shared"
        workspace.mkdir()
        async with (
            provider.open(plan("sesn_a", workspace=LocalVolume(workspace))) as a,
            provider.open(plan("sesn_b", workspace=LocalVolume(workspace))) as b,
        ):
            assert (await shell(a, "mkdir d; echo a >d/file")).code == 0
            assert (await shell(b, "echo b >>d/file; echo b >d/other")) == (0, b"", b"")
            assert (await shell(a, "cat d/file; rm d/other; rm -r d")).output == b"a\nb\n"

    async def test_files_the_server_puts_there_belong_to_the_sandbox(
        self, provider: SandboxProvider, plan: Plans
    ) -> None:
        """An upload or a restored snapshot can be changed inside."""
        given = plan()
        (given.workspace.path / "folder").mkdir(mode=0o700)
        (given.workspace.path / "folder" / "file").write_text("server\n")
        (given.workspace.path / "folder" / "file").chmod(0o600)
        async with provider.open(given) as sandbox:
            result = await shell(sandbox, "echo inside >>folder/file; cat folder/file")
            assert result == (0, b"server\ninside\n", b"")

    async def test_a_mount_can_be_read_and_only_written_if_it_says_so(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """Directories and single files."""
        for name in ("fixed", "open"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        mounts = [
            Mount(tmp_path / "fixed", "/mnt/session/fixed"),
            Mount(tmp_path / "open", "/mnt/session/open", writable=True),
            Mount(tmp_path / "fixed" / "file", "/opt/one-file"),
        ]
        async with provider.open(plan(mounts=mounts)) as sandbox:
            read = "cat /mnt/session/fixed/file /mnt/session/open/file /opt/one-file"
            assert (await shell(sandbox, read)).output == b"fixedopenfixed"
            assert (await shell(sandbox, "echo >/mnt/session/fixed/new")).code != 0
            assert (await shell(sandbox, "echo >/opt/one-file")).code != 0
            assert (await shell(sandbox, "echo new >/mnt/session/open/new")).code == 0
        assert (tmp_path / "open" / "new").read_text() == "new\n"
        assert not (tmp_path / "fixed" / "new").exists()

    async def test_other_certificates_can_take_the_place_of_the_systems(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """Where programs look for them. Nobody inside can change them."""
        own = tmp_path / "certificates.pem"
        own.write_text("certificates of this session\n")
        read = f"cat {' '.join(SYSTEM_CERTIFICATES)}"
        async with provider.open(plan(certificates=own)) as sandbox:
            assert b"certificates of this session" in (await shell(sandbox, read)).output
            write = "; ".join(f"echo more >>{path}" for path in SYSTEM_CERTIFICATES)
            await shell(sandbox, write)
        assert own.read_text() == "certificates of this session\n"
        async with provider.open(plan(generation=2)) as sandbox:
            assert b"of this session" not in (await shell(sandbox, read)).output

    async def test_what_the_workspace_hides_is_seen_in_the_home_alone(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """They are one directory; the agent's own record is in it, and works as if nothing was hidden."""
        given = plan(hidden=[".own"])
        async with provider.open(given) as sandbox:  # it is not there yet
            put = (
                "echo one >$HOME/.own/file && mkdir $HOME/.own/d && mv $HOME/.own/file $HOME/.own/d"
            )
            assert await shell(sandbox, put) == (0, b"", b"")
            assert await shell(sandbox, "ls -A .own; cat $HOME/.own/d/file") == (0, b"one\n", b"")
            changes = (">.own/new", "mkdir .own/d", "rm -r .own", "mv .own x", "umount .own")
            for change in (*changes, "mv $HOME/.own $HOME/x", "rmdir $HOME/.own"):
                assert (await shell(sandbox, change)).code != 0
            beside = await shell(sandbox, "echo two >file; cat $HOME/file; ls -A /workspace")
            assert (beside.code, beside.output.split()) == (0, [b"two", b".own", b"file"])
            assert (await shell(sandbox, "chmod 0 $HOME/.own $HOME")).code == 0
        async with provider.open(plan(hidden=[".own"], generation=2)) as sandbox:
            again = await shell(sandbox, "cat $HOME/.own/d/file file; ls -A .own")
            assert again == (0, b"one\ntwo\n", b"")
        assert (given.home.path / ".own" / "d" / "file").read_text() == "one\n"

    async def test_what_is_planted_where_the_workspace_hides_something_leads_nowhere(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """It is not followed, and not in the way either."""
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("outside")
        planted = plan().home.path / ".own"
        plants: list[Callable[[], object]] = [
            lambda: planted.symlink_to(outside),
            lambda: planted.symlink_to(outside / "new"),
            lambda: planted.symlink_to(planted),
            lambda: planted.write_text("planted"),
            lambda: os.mkfifo(planted),
        ]
        for generation, plant in enumerate(plants, 1):
            plant()
            async with provider.open(plan(hidden=[".own"], generation=generation)) as sandbox:
                seen = await shell(sandbox, "echo one >$HOME/.own/file && ls -A .own $HOME/.own")
                assert seen == (0, b".own:\n\n/home/sandbox/.own:\nfile\n", b"")
            assert not planted.is_symlink()
            shutil.rmtree(planted)
        assert [file.name for file in outside.iterdir()] == ["file"]
        assert (outside / "file").read_text() == "outside"

    async def test_what_a_mount_hides_looks_empty_and_its_links_lead_nowhere(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """A person's files can be shown without showing all of them, or what they point to."""
        vault, outside = _vault(tmp_path), tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("secret")
        (vault / "link").symlink_to(outside / "secret")
        (vault / "up").symlink_to("../outside")
        (vault / "within").symlink_to("notes/note")
        given = plan(mounts=[Mount(vault, "/vault", hidden=[".private"])])
        async with provider.open(given) as sandbox:
            seen = await shell(
                sandbox, "cat /vault/notes/note /vault/within; ls -A /vault/.private"
            )
            assert seen == (0, b"notenote", b"")
            for path in ("link", "up/secret", ".private/deep/file"):
                assert (await shell(sandbox, f"cat /vault/{path}")).output == b""

    async def test_nothing_can_be_put_into_a_mount_or_into_what_it_hides(
        self, provider: SandboxProvider, plan: Plans, tmp_path: Path
    ) -> None:
        """A person's files are not changed."""
        vault = _vault(tmp_path)
        given = plan(mounts=[Mount(vault, "/vault", hidden=[".private"])])
        async with provider.open(given) as sandbox:
            for path in ("new", "notes/note", "notes/new", ".private/new"):
                assert (await shell(sandbox, f"echo >/vault/{path}")).code != 0
            tricks = "rm -r /vault/notes; mv /vault/.private /vault/x; umount /vault/.private"
            assert (await shell(sandbox, tricks)).code != 0
        assert (vault / "notes" / "note").read_text() == "note"
        assert (vault / ".private" / "deep" / "file").read_text() == "hidden"


def _vault(folder: Path) -> Path:
    """A person's files, one of them private."""
    vault = folder / "vault"
    for inner in (vault / "notes", vault / ".private" / "deep"):
        inner.mkdir(parents=True)
    (vault / "notes" / "note").write_text("note")
    (vault / ".private" / "deep" / "file").write_text("hidden")
    return vault
