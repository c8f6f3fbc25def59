"""What may be uploaded as a skill, and what may not."""

from __future__ import annotations

import stat
import time
import zipfile
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.skill import MOST_BYTES, SkillFile, bundled, zipped
from roost.errors import InvalidRequest

MANIFEST = b"---\nname: greeting\ndescription: >\n  Greets\n  people.\n---\nSay hello.\n"


def archive(*members: tuple[str, bytes, int]) -> SkillFile:
    made = BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data, mode in members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            opened.writestr(info, data)
    return SkillFile("skill.zip", made.getvalue())


def test_files_below_one_directory_are_a_skill():
    bundle = bundled([SkillFile("any/b/run.sh", b"x"), SkillFile("any/SKILL.md", MANIFEST)])
    assert (bundle.name, bundle.description) == ("greeting", "Greets people.")
    assert [file.path for file in bundle.files] == ["SKILL.md", "b/run.sh"]


def test_an_archive_is_a_skill_and_keeps_what_may_be_run():
    made = archive(
        ("a/", b"", stat.S_IFDIR | 0o755), ("a/SKILL.md", MANIFEST, 0), ("a/x", b"", 0o755)
    )
    bundle = bundled([made])
    assert [(file.path, file.executable) for file in bundle.files] == [
        ("SKILL.md", False),
        ("x", True),
    ]
    assert bundled([SkillFile("again.zip", zipped("greeting", bundle.files))]) == bundle


def test_without_a_name_of_its_own_a_skill_is_called_as_its_directory():
    head = b"---\ndescription: Greets.\n---\n"
    assert bundled([SkillFile("my-skill/SKILL.md", head)]).name == "my-skill"


SKILL = SkillFile("a/SKILL.md", MANIFEST)


@pytest.mark.parametrize(
    ("uploads", "problem"),
    [
        ([], "1 to 1000 files"),
        ([SkillFile("SKILL.md", MANIFEST)], "in one directory"),
        ([SKILL, SkillFile("b/x", b"")], "in one directory"),
        ([SkillFile("a/other.md", b"")], "no SKILL.md"),
        ([SKILL, SkillFile("a/../../etc/passwd", b"")], "not a path"),
        ([SKILL, SkillFile("/a/x", b"")], "not a path"),
        ([SKILL, SkillFile("a//x", b"")], "not a path"),
        ([SKILL, SkillFile("a/./x", b"")], "not a path"),
        ([SKILL, SkillFile("a/..\\x", b"")], "not a path"),
        ([SKILL, SkillFile("a/x\0y", b"")], "not a path"),
        ([SKILL, SkillFile("a/" + "x" * 256, b"")], "not a path"),
        ([SKILL, SkillFile("a/" + "x/" * 20 + "y", b"")], "not a path"),
        ([SKILL, SkillFile("a/x", b""), SkillFile("a/x", b"")], "same path"),
        ([SKILL, SkillFile("a/x", b""), SkillFile("a/x/y", b"")], "same path"),
        ([SKILL, SkillFile("a/x", b"x" * (MOST_BYTES + 1))], "bytes, unpacked"),
        ([SKILL, *[SkillFile(f"a/{n}", b"") for n in range(1000)]], "1 to 1000 files"),
        ([SkillFile("a/SKILL.md", b"no head")], "must begin with"),
        ([SkillFile("a/SKILL.md", b"---\n- a\n- b\n---\n")], "must begin with"),
        ([SkillFile("a/SKILL.md", b"---\n{{{{\n---\n")], "must begin with"),
        (
            [SkillFile("a/SKILL.md", b"---\nx: !!python/object:os.system y\n---\n")],
            "`description` must",
        ),
        ([SkillFile("a/SKILL.md", b"---\n" + b"[" * 5000 + b"\n---\n")], "must begin with"),
        ([SkillFile("a/SKILL.md", b"---\n" + b"- " * 5000 + b"\n---\n")], "must begin with"),
        ([SkillFile("a/SKILL.md", b"\xff\xfe")], "must begin with"),
        (
            [SkillFile("a/SKILL.md", b"---\nname: a\n" + b"x: y\n" * 5000 + b"---\n")],
            "must begin with",
        ),
        ([SkillFile("a/SKILL.md", b"---\nname: Big Name\ndescription: x\n---\n")], "`name` must"),
        ([SkillFile("a/SKILL.md", b"---\nname: ../up\ndescription: x\n---\n")], "`name` must"),
        ([SkillFile("a/SKILL.md", b"---\nname: [a]\ndescription: x\n---\n")], "`name` must"),
        ([SkillFile("a/SKILL.md", b"---\nname: a\n---\n")], "`description` must"),
        ([SkillFile("a/SKILL.md", b"---\nname: a\ndescription: ' '\n---\n")], "`description` must"),
        (
            [archive(("a/SKILL.md", MANIFEST, 0), ("a/l", b"/etc/passwd", stat.S_IFLNK | 0o777))],
            "plain file",
        ),
        ([archive(("a/SKILL.md", MANIFEST, 0), ("a/p", b"", stat.S_IFIFO | 0o644))], "plain file"),
        ([archive(("a/SKILL.md", MANIFEST, 0), ("../../up", b"", 0))], "not a path"),
        ([archive(("a/SKILL.md", MANIFEST, 0), ("/abs", b"", 0))], "not a path"),
        (
            [archive(("a/SKILL.md", MANIFEST, 0), ("a/bomb", b"\0" * (MOST_BYTES + 1), 0))],
            "unpacked",
        ),
        ([SkillFile("a.zip", b"PK\x03\x04 and nothing more")], "damaged"),
    ],
)
def test_what_is_no_skill_or_not_safe_is_refused(uploads: list[SkillFile], problem: str):
    with pytest.raises(InvalidRequest) as refused:
        bundled(uploads)
    assert problem in refused.value.message


def test_a_head_that_would_grow_without_end_is_read_as_it_stands():
    lines = ["name: greeting", "description: Greets.", "a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 30)]
    head = "\n".join(lines).encode()
    assert bundled([SkillFile("a/SKILL.md", b"---\n" + head + b"\n---\n")]).name == "greeting"


def test_a_head_of_brackets_in_brackets_costs_little():
    began = time.process_time()
    with pytest.raises(InvalidRequest, match="must begin with"):
        bundled([SkillFile("a/SKILL.md", b"---\n" + b"[" * 16_000 + b"\n---\n")])
    assert time.process_time() - began < 5


def test_an_archive_that_lies_about_its_sizes_is_refused():
    data = bytearray(archive(("a/SKILL.md", MANIFEST, 0), ("a/x", b"x" * 100_000, 0)).data)
    for at in (data.find(b"PK\x01\x02"), data.rfind(b"PK\x01\x02")):
        data[at + 24 : at + 28] = (10).to_bytes(4, "little")  # what it is said to unpack to
    with pytest.raises(InvalidRequest):
        bundled([SkillFile("a.zip", bytes(data))])


@given(st.binary(max_size=400), st.integers(min_value=0, max_value=300), st.binary(max_size=20))
def test_no_archive_can_do_harm(junk: bytes, at: int, patch: bytes):
    good = archive(("a/SKILL.md", MANIFEST, 0), ("a/x", b"x" * 50, 0)).data
    for data in (b"PK\x03\x04" + junk, good[:at] + patch + good[at + len(patch) :]):
        try:
            bundled([SkillFile("a.zip", data)])
        except InvalidRequest:
            continue
