"""What sessions are given to work with: copies of files, shown read-only, and repositories.

A file becomes a copy that belongs to the session, so that deleting the original changes nothing. A
repository's token is a record of its own, and sealed: it is in no session, event or answer, and only the way
out asks for it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from roost.core.files.janitor import FileJanitor
from roost.core.files.outputs import Outputs
from roost.core.files.store import FileStore, now
from roost.domain.events import iso
from roost.domain.resource import (
    OUTPUTS,
    SEALED_TOKEN,
    UPLOADS,
    Resource,
    about_token,
    check_together,
    checked_checkout,
    checked_token,
    checked_url,
    files_of,
    mounted_file,
    mounted_repository,
    repositories_of,
    shown,
)
from roost.domain.session import Session, Spec, Status
from roost.errors import CannotUnseal, FieldNotServed, InvalidRequest, NotFound, SessionClosed
from roost.ids import mint
from roost.ports.catalog import Catalog, Record, RecordQuery
from roost.ports.drafts import new_draft
from roost.ports.egress import Credential, Origin
from roost.ports.file_exchange import FileExchange
from roost.ports.keys import Key
from roost.ports.sandbox_provider import Mount
from roost.ports.seal import Seal
from roost.ports.sessions import Revised, Sessions

_log = logging.getLogger(__name__)


class Resources:
    """The resources of all sessions. `urls`: what addresses of repositories may begin with."""

    def __init__(
        self,
        store: FileStore,
        janitor: FileJanitor,
        catalog: Catalog,
        sessions: Sessions,
        shown: FileExchange,
        outputs: Outputs,
        seal: Seal,
        *,
        urls: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._janitor = janitor
        self._catalog = catalog
        self._sessions = sessions
        self._shown = shown
        self._seal = seal
        self._urls = urls
        self.outputs = outputs
        janitor.also.append(self.forget)

    def check(self, params: Sequence[Mapping[str, Any]], spec: Spec) -> None:
        """Refuse resources that such a session cannot have.

        :raises InvalidRequest: such a session cannot have them
        """
        if params and spec.self_hosted:
            raise InvalidRequest(
                f"resources: environment {spec.environment_id} is a self-hosted environment. `resources` are not "
                "supported with self-hosted environments.",
                hint="The worker decides what there is in the directory that it works in.",
            )
        if params and (spec.trust_level != "sandboxed" or spec.sandbox is None):
            raise InvalidRequest(
                "resources: they are shown in sandboxes, and this session has none",
                hint="Ask for `trust_level: sandboxed` and an agent that is a program.",
            )

    @asynccontextmanager
    async def given(
        self, caller: Key, session_id: str, params: Sequence[Mapping[str, Any]]
    ) -> AsyncGenerator[list[Resource], None]:
        """What a session is made with, in the body; if it is not made, nothing of it stays.

        :raises InvalidRequest: naming the field
        """
        if not params:
            yield []
            return
        async with self._janitor.making(caller.tenant, session_id):
            made = [
                await self._made(caller, session_id, each, f"resources.{i}.")
                for i, each in enumerate(params)
            ]
            check_together(made)
            yield made

    async def look(self, caller: Key, params: Sequence[Mapping[str, Any]]) -> None:
        """Whether sessions could be given these later; nothing is copied. :raises InvalidRequest: naming the field"""
        places = []
        for i, each in enumerate(params):
            at = f"resources.{i}."
            if each["type"] == "file":
                original = await self._original(caller, each, at)
                places.append({"mount_path": mounted_file(each.get("mount_path"), original.id, at)})
            else:
                places.append(self._repository(each, at))
        check_together(places)

    def sealed(
        self, tenant: str, owner: str, params: Sequence[Mapping[str, Any]]
    ) -> list[Resource]:
        """What a record keeps that gives these to sessions: each token sealed, for this owner and address only.

        :raises InvalidRequest: naming the field :raises CannotSeal:
        """
        kept = []
        for i, each in enumerate(params):
            resource = {name: each[name] for name in each if name != "authorization_token"}
            if (token := each.get("authorization_token")) is not None:
                token = checked_token(token, f"resources.{i}.")
                about = about_token(tenant, owner, each["url"])
                resource[SEALED_TOKEN] = self._seal.seal(token, about)
            kept.append(resource)
        return kept

    def opened(self, tenant: str, owner: str, kept: Sequence[Resource]) -> list[Resource]:
        """What a session asks for that is to be given what `sealed` has kept.

        :raises CannotUnseal: a token was sealed with a key that this server does not have
        """
        asked = []
        for each in kept:
            resource = shown(each)
            if SEALED_TOKEN in each:
                about = about_token(tenant, owner, each["url"])
                resource["authorization_token"] = self._seal.open(each[SEALED_TOKEN], about)
            asked.append(resource)
        return asked

    async def again(self, session: Session) -> list[Resource]:
        """What another session asks for to be given the same: files that are there, and no tokens."""
        there = await self._there(session.tenant, files_of(session.spec.resources))
        kept = ("type", "file_id", "url", "checkout", "mount_path")
        return [
            {name: each[name] for name in kept if each.get(name) is not None}
            for each in session.spec.resources
            if each["type"] != "file" or each["file_id"] in there.values()
        ]

    async def add(self, caller: Key, session: Session, params: Mapping[str, Any]) -> Resource:
        """A file more. An agent that is awake on this node sees it at once.

        :raises InvalidRequest: :raises SessionClosed:
        """
        self.check([params], session.spec)
        tenant, made = session.tenant, await self._made(caller, session.id, params, "")

        def added(now: Session) -> Revised:
            _refuse_closed(now)
            resources = [*now.spec.resources, made]
            check_together(resources)
            return Revised(replace(now.spec, resources=resources), [new_draft("session.updated")])

        try:
            session = await self._sessions.revise(tenant, session.id, added)
        except BaseException:
            await self._store.drop(tenant, made["file_id"])
            raise
        await self._show(session)
        return made

    async def remove(self, tenant: str, session: Session, resource_id: str) -> None:
        """Take a file away from the session.

        :raises NotFound:
        :raises InvalidRequest: a repository stays
        :raises SessionClosed:
        """
        gone = found(session, resource_id)
        if gone["type"] != "file":
            raise InvalidRequest("only files can be removed; a repository is the session's to keep")

        def removed(now: Session) -> Revised:
            _refuse_closed(now)
            found(now, resource_id)
            left = [each for each in now.spec.resources if each["id"] != resource_id]
            return Revised(replace(now.spec, resources=left), [new_draft("session.updated")])

        session = await self._sessions.revise(tenant, session.id, removed)
        await self._show(session)
        await self._store.drop(tenant, gone["file_id"])

    async def rotate(self, tenant: str, session: Session, resource_id: str, token: str) -> Resource:
        """Give a repository another token. :raises NotFound: :raises InvalidRequest: it is a file"""
        resource = found(session, resource_id)
        if resource["type"] != "github_repository":
            raise InvalidRequest("authorization_token: only repositories have one")
        _refuse_closed(session)
        await self._keep_token(tenant, session.id, resource_id, checked_token(token))
        moment = iso(now())

        def touched(now_: Session) -> Revised:
            resources = [
                {**each, "updated_at": moment} if each["id"] == resource_id else each
                for each in now_.spec.resources
            ]
            # An agent that is awake has the old one until it starts anew, with its next message.
            return Revised(replace(now_.spec, resources=resources), [new_draft("session.updated")])

        session = await self._sessions.revise(tenant, session.id, touched)
        return found(session, resource_id)

    async def mounts(self, session: Session) -> list[Mount]:
        """What a sandbox is shown: the files, and a directory for outputs.

        :raises BlobsFailed: a file is not on this node, and cannot be fetched now
        """
        if session.spec.trust_level != "sandboxed":
            return []
        return [
            Mount(await self._show(session), UPLOADS),
            Mount(await self._shown.outputs(session.id), OUTPUTS, writable=True),
        ]

    async def gone(self, session: Session) -> list[str]:
        """Which of its files have been deleted, in words."""
        files = files_of(session.spec.resources)
        there = await self._there(session.tenant, files)
        return [f"the file at {UPLOADS}/{path} was deleted" for path in files.keys() - there.keys()]

    async def origins(self, session: Session) -> list[Origin]:
        """Its repositories, with their tokens: for the egress, and nobody else.

        :raises CannotUnseal: a token was sealed with a key that this server does not have
        """
        wanted = repositories_of(session.spec.resources)
        tokens = await self._tokens(session.tenant, session.id) if wanted else {}
        origins = []
        for each in wanted:
            credential = None
            if each["id"] in tokens:
                credential = Credential.fixed(self._opened(tokens[each["id"]]), "basic")
            origins.append(Origin(url=each["url"], protocol="git", credential=credential))
        return origins

    def _opened(self, record: Record) -> str:
        """A token, whether it was kept before tokens were sealed or since."""
        body = record.body
        if "sealed" not in body:
            return str(body["token"])
        try:
            about = about_token(record.tenant, body["name"], body["resource"])
            return self._seal.open(body["sealed"], about)
        except CannotUnseal as closed:
            raise CannotUnseal(
                f"the token of the repository {body['resource']} cannot be read: {closed.message}"
            ) from None

    async def forget(self, tenant: str, session_id: str) -> None:
        """A session is gone: so are its tokens, and what was shown of its files on this node."""
        for record in await self._secrets(tenant, session_id):
            await self._catalog.delete("secret", tenant, record.id)
        await self._shown.remove(session_id)

    async def _made(
        self, caller: Key, session_id: str, params: Mapping[str, Any], at: str
    ) -> Resource:
        moment = iso(now())
        resource: Resource = {"type": params["type"], "id": mint("sesrsc")}
        match params["type"]:
            case "file":
                resource |= await self._file(caller, session_id, params, at)
            case _:
                resource |= self._repository(params, at)
                if (token := params.get("authorization_token")) is not None:
                    token = checked_token(token, at)
                    await self._keep_token(caller.tenant, session_id, resource["id"], token)
        return resource | {"created_at": moment, "updated_at": moment}

    async def _file(
        self, caller: Key, session_id: str, params: Mapping[str, Any], at: str
    ) -> dict[str, Any]:
        original = await self._original(caller, params, at)
        path = mounted_file(params.get("mount_path"), original.id, at)
        copy = await self._store.copy(caller, original, session_id)
        return {"file_id": copy.id, "mount_path": path}

    async def _original(self, caller: Key, params: Mapping[str, Any], at: str) -> Record:
        try:
            return await self._store.seen(caller, params["file_id"])
        except NotFound as missing:
            raise InvalidRequest(f"{at}file_id: {missing.message}") from None

    def _repository(self, params: Mapping[str, Any], at: str) -> dict[str, Any]:
        if params["type"] != "github_repository":
            raise FieldNotServed(f"{at}type: memory stores are not served")
        url = checked_url(params["url"], self._urls, at)
        return {
            "url": url,
            "checkout": checked_checkout(params.get("checkout"), at),
            "mount_path": mounted_repository(params.get("mount_path"), url, at),
        }

    async def _show(self, session: Session) -> Any:
        there = await self._there(session.tenant, files_of(session.spec.resources))

        async def fetch(file_id: str) -> AsyncGenerator[bytes, None]:
            async for piece in self._store.content(await self._store.get(session.tenant, file_id)):
                yield piece

        return await self._shown.uploads(session.id, there, fetch)

    async def _there(self, tenant: str, files: Mapping[str, str]) -> dict[str, str]:
        """Those that have not been deleted."""
        there = {}
        for path, file_id in files.items():
            try:
                await self._store.get(tenant, file_id)
            except NotFound:
                continue
            there[path] = file_id
        return there

    async def _keep_token(self, tenant: str, session_id: str, resource_id: str, token: str) -> None:
        """The new one first, then without the old ones: versions of a record would keep those."""
        old = (await self._tokens(tenant, session_id)).get(resource_id)
        sealed = self._seal.seal(token, about_token(tenant, session_id, resource_id))
        body = {"name": session_id, "resource": resource_id, "sealed": sealed}
        await self._catalog.add("secret", tenant, mint("secret"), body, unique_name=False)
        if old is not None:
            await self._catalog.delete("secret", tenant, old.id)

    async def _tokens(self, tenant: str, session_id: str) -> dict[str, Record]:
        """The newest of each repository."""
        secrets = await self._secrets(tenant, session_id)
        return {record.body["resource"]: record for record in reversed(secrets)}

    async def _secrets(self, tenant: str, session_id: str) -> list[Record]:
        query = RecordQuery(kind="secret", tenant=tenant, name=session_id, limit=1000)
        return await self._catalog.page(query)


def found(session: Session, resource_id: str) -> Resource:
    """One of a session's resources. :raises NotFound:"""
    for resource in session.spec.resources:
        if resource["id"] == resource_id:
            return resource
    raise NotFound(f"session {session.id} has no resource {resource_id}")


def _refuse_closed(session: Session) -> None:
    if session.state.status is Status.TERMINATED:
        raise SessionClosed("a session that is terminated cannot be changed")
