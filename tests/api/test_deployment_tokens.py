"""Tokens of repositories in deployments: sealed, given to each session, replaced, and gone with the deployment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.api.api_server import TENANT, error_of
from tests.api.dying import HOUR, Killed, Later, Writes, notes
from tests.api.test_deployments import HOURLY, Deployed, deployed
from tests.api.test_resources import REPOSITORY, is_written, secrets, token_of

from roost.core.files.resources import Resources
from roost.core.vaults.reseal import Reseal
from roost.domain.resource import SEALED_TOKEN, about_token
from roost.ports.catalog import RecordQuery
from roost.stores.seal import MasterKeys, fingerprint

TOKEN = "ghp_planted_0123456789abcdef"
OTHER = "ghp_planted_fedcba9876543210"
PRIVATE = {**REPOSITORY, "authorization_token": TOKEN}


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of these tests have no sandboxes: nothing works on them."""
    monkeypatch.setattr(Resources, "check", lambda *given: None)


async def kept(it: Deployed, deployment: Any) -> list[Any]:
    record = await it.roost.store.catalog.get("deployment", TENANT, deployment["id"])
    return list(record.body["resources"])


async def ran(it: Deployed, deployment: Any) -> Any:
    run = await it.do(deployment, "run")
    return await it.roost.get(f"/v1/sessions/{run['session_id']}")


async def test_a_token_is_given_to_each_session_and_never_shown_or_written(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await it.create(resources=[PRIVATE])
        [shown] = made["resources"]
        assert shown == REPOSITORY
        assert (await it.look(made))["resources"] == [shown]
        [resource] = await kept(it, made)
        assert resource[SEALED_TOKEN]
        for _ in range(2):
            assert await token_of(it.roost, await ran(it, made)) == TOKEN
        at = f"/v1/deployments/{made['id']}"
        await it.roost.post(at, {"name": "other"})
        assert await token_of(it.roost, await ran(it, made)) == TOKEN
        await it.roost.post(at, {"resources": [{**REPOSITORY, "authorization_token": OTHER}]})
        assert await token_of(it.roost, await ran(it, made)) == OTHER
        await it.roost.post(at, {"resources": [REPOSITORY]})
        assert await token_of(it.roost, await ran(it, made)) is None
        assert not is_written(tmp_path, TOKEN)
        assert not is_written(tmp_path, OTHER)


async def test_archived_a_deployment_has_no_token_in_the_same_commit(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made = await it.create(resources=[PRIVATE])
        await it.do(made, "archive")
        assert await kept(it, made) == [REPOSITORY]
        # Its agent is archived: the deployment with it.
        made = await it.create(resources=[PRIVATE], schedule=HOURLY)
        await it.roost.post(f"/v1/agents/{it.agent['id']}/archive")
        it.to(13, 0, 1)
        await it.tick()
        assert (await it.look(made))["archived_at"]
        assert await kept(it, made) == [REPOSITORY]


async def test_a_token_that_cannot_be_read_fails_the_run_and_says_so(tmp_path: Path):
    async with deployed(tmp_path) as it:
        made, other = [await it.create(resources=[PRIVATE]) for _ in range(2)]
        [stolen] = await kept(it, other)
        await it.roost.store.catalog.change(
            "deployment", TENANT, made["id"], lambda record: {**record.body, "resources": [stolen]}
        )
        run = await it.do(made, "run")
        assert run["error"]["type"] == "session_creation_rejected_error"
        assert (await it.roost.get("/v1/sessions"))["data"] == []
        it.roost.deps.services[Resources]._seal = MasterKeys([], seals=False)
        refused = await it.roost.client.post("/v1/deployments", json=it.params(resources=[PRIVATE]))
        assert error_of(refused, 400)["details"]["error_code"] == "master_key_missing"


async def test_with_another_master_key_tokens_are_sealed_anew(tmp_path: Path):
    old, new = bytes(range(2, 34)), bytes(range(3, 35))
    async with deployed(tmp_path) as it:
        two = {"type": "github_repository", "url": "https://github.com/a/c"}
        made = await it.create(resources=[PRIVATE, {**two, "authorization_token": OTHER}])
        store = it.roost.store

        def by_old(body: Any) -> Any:
            resources = [
                {**each, SEALED_TOKEN: MasterKeys([old]).seal(token, about(made, each))}
                for each, token in zip(body["resources"], (TOKEN, OTHER), strict=True)
            ]
            return {**body, "resources": resources}

        await store.catalog.change("deployment", TENANT, made["id"], lambda r: by_old(r.body))
        work = Reseal(store.catalog, store.credentials, store.webhooks, MasterKeys([new, old]))
        assert await work.counts() == {fingerprint(old): 2}
        step = await work.batch(None)
        assert (step.resealed, step.unreadable) == (2, [])
        assert await work.counts() == {fingerprint(new): 2}
        opened = [
            MasterKeys([new]).open(each[SEALED_TOKEN], about(made, each))
            for each in await kept(it, made)
        ]
        assert opened == [TOKEN, OTHER]


def about(deployment: Any, resource: Any) -> str:
    return about_token(TENANT, deployment["id"], resource["url"])


class Dying(Writes):
    """From the write with this number on there are none: whoever is dead tidies nothing up."""

    def _counted(self, real: Any) -> Any:
        async def write(*args: Any, **more: Any) -> Any:
            self.left -= 1
            if self.left <= 0:
                raise Killed
            return await real(*args, **more)

        return write


async def test_killed_between_any_two_writes_of_a_run_one_session_has_the_token(tmp_path: Path):
    async with deployed(tmp_path) as it:
        for last in range(1, 30):
            done = await killed_at(it, last)
            assert not is_written(tmp_path, TOKEN)
            if done:
                break
        assert done, "it writes without end"
        assert last > 4
        later = Later(it.roost, 2 * HOUR)
        later.janitor.also.append(it.roost.deps.services[Resources].forget)
        await later.janitor.look()
        assert await notes(it.roost) == 0
        query = RecordQuery(kind="secret", tenant=TENANT, limit=100)
        sessions = (await it.roost.get("/v1/sessions", limit=100))["data"]
        of = [record.body["name"] for record in await it.roost.store.catalog.page(query)]
        assert sorted(of) == sorted(each["id"] for each in sessions)


async def killed_at(it: Deployed, last: int) -> bool:
    """A scheduled run whose server dies instead of this write, and is finished later. True: it writes less often."""
    made = await it.create(resources=[PRIVATE], schedule=HOURLY, missed_runs={"policy": "all"})
    it.to(12 + last, 0, 1)
    store = it.roost.store
    with pytest.MonkeyPatch.context() as patched:
        writes = Dying(patched, last)
        writes.count(store.catalog, "add", "change", "delete")
        writes.count(store.sessions, "create")
        writes.count(store.runs, "claim", "take", "settle")
        with suppress(Killed, BaseExceptionGroup):
            await it.tick()
    it.to(12 + last, 2)  # whoever had taken it has had its minute
    await it.tick()
    assert await it.told(made) == ["started"]
    [session] = (await it.roost.get("/v1/sessions", deployment_id=made["id"]))["data"]
    assert await token_of(it.roost, session) == TOKEN
    assert len(await secrets(it.roost, session)) == 1
    await it.do(made, "archive")
    return writes.left > 0
