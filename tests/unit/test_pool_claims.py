"""Whose a container is: nobody inside can make that up, and what is another's is not ended."""

from __future__ import annotations

import json

import pytest

from roost.dynamic_sessions import CodePool
from roost.sandboxes.pool.claims import HELD, Claim, ContainerClaims

CLAIMS = ContainerClaims(b"a secret", "roost-1")


class FakePool(CodePool):
    """Stands for a pool with one container, which says this of its holder."""

    def __init__(self, told: str) -> None:
        self.told = told
        self.ended: list[str] = []

    async def run(self, identifier: str, code: str) -> str:
        compile(code, "code", "exec")
        return self.told

    async def end(self, identifier: str) -> None:
        self.ended.append(identifier)


def held(claim: Claim) -> str:
    return HELD + json.dumps(claim._asdict())


def test_a_claim_is_read_as_it_was_made_and_none_is_made_up() -> None:
    claim = CLAIMS.make(3)
    assert CLAIMS.read(held(claim)) == claim
    assert CLAIMS.make(3) != claim
    made_up = [
        held(claim._replace(generation=4)),
        held(ContainerClaims(b"a secret", "roost-2").make(4)),
        held(ContainerClaims(b"another", "roost-1").make(4)),
        held(Claim("", 4)),
        held(Claim("\u00e9" * 48, 4)),
        HELD + "[" * 100_000,
        HELD + '{"token": "x", "generation": Infinity}',
        HELD + "[]",
        HELD,
    ]
    assert [CLAIMS.read(each) for each in made_up] == [None] * len(made_up)


@pytest.mark.parametrize(
    ("told", "even_free", "is_ended"),
    [
        (held(CLAIMS.make(2)), False, True),
        (held(CLAIMS.make(3)), True, False),
        (held(CLAIMS.make(2)._replace(generation=9)), False, True),
        ("free", False, False),
        ("free", True, True),
    ],
    ids=["older", "newer", "made-up", "free", "even-free"],
)
async def test_only_what_is_not_to_be_spared_is_ended(
    told: str, even_free: bool, is_ended: bool
) -> None:
    pool = FakePool(told)
    done = await CLAIMS.end(pool, lambda holder: holder.generation > 2, even_free=even_free)
    assert done == is_ended
    assert pool.ended == ["roost-1"] * is_ended
