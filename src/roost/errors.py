"""Every error Roost raises on purpose.

* RoostError
  + InvalidRequest                  the request itself is wrong; says which field
    - FieldNotServed                the API has the field, this server does nothing with it, on purpose
    - HarnessCannot                 the session's harness lacks what is asked for
    - SessionClosed                 terminated or archived: it takes no more input
    - SessionBusy                   not while it is running; interrupt first
    - CannotSeal                    there is no master key to keep a secret with
    - AgentModelRequired            an agent's model can be replaced, not cleared
    - EnvironmentArchived           it takes no changes and no new sessions
    - ConfigTypeChanged             cloud stays cloud, self-hosted stays self-hosted
    - ModelNotServed                no server of models is configured for it
    - BudgetRefused                 there is no list price to count against
    - BudgetCreateOnly              a budget comes with a session or not at all
    - BudgetNotRaised               so much is spent already
    - BudgetReached                 nothing is left to work with
    - BadArchive                    damaged, hostile, or of a newer format; nothing was taken in
    - MethodNotAllowed              the path is right, the method is not
    - StorageQuotaExceeded          the tenant's files have reached their limit
    - RangeRefused                  the file has no such bytes
    - NotJson                       a WebSocket frame that is no JSON object with a type
    - NotStarted                    a WebSocket message before `start`
    - AlreadyStarted                a second `start` on one WebSocket
    - AlreadyAnswered               somebody else answered first
    - OwnKey                        a key does not revoke itself
    - LastAdministrator             nobody could make keys any more
    - WrongAnswer                   a result where permission is asked for, or the other way round
    - NotWaiting                    a runner takes an input that was taken or withdrawn before
  + Unauthenticated                 no key, or not one of ours
  + Forbidden                       a key of ours that may not do this
    - NotTheOwner                   it belongs to another key, and this one is no administrator's
    - AuthorNotTrusted              the session would have more trust than whoever wrote its agent
    - CrossOrigin                   a page of another site, with this browser's login
  + NotFound                        absent, or another tenant's: the two look the same
    - EnvironmentNotFound           an environment in particular: the API has a code for it
    - FileExpired                   a file whose time was up
    - NotServed                     the API has it, this server does not, on purpose
    - SnapshotGone                  the files of that turn are not kept, or never were
  + Conflict                        somebody else was faster
    - IdempotencyMismatch           the key was used for another request
    - FilesElsewhere                another node works in the session's files, or has just taken them
  + HeartbeatMismatch               another worker has the work item, or none
  + TooLarge                        the body is over the limit
    - HeadTooLarge                  the request line or the headers are
  + RequestTooSlow                  the body did not come in time
  + RateLimited                     too much, for now; carries when to come back
    - QuotaExceeded                 too much, until something is archived or deleted
    - QueueFull                     the session has too many unread inputs
    - TooManyStreams                the key has too many streams open
    - TooManySockets                the key has too many WebSockets open
    - TooMuchAtOnce                 the key's requests under way have too many bytes together
    - TooManyConnections            the address has too many connections
  + Unavailable                     the server is starting, stopping, or its disk refused
  + SandboxFailed                   the sandbox failed, not the command in it
    - SandboxUnavailable            this machine cannot open such a sandbox now
    - FilesNotFetched               it is on another machine, which still has what was changed in it
  + BlobsFailed                     the blob store cannot be reached, or refuses
    - DiskFull                      there is too little free space to write more
    - TenantStorageFull             the tenant's snapshots have reached their limit
    - BlobNotFound                  no such object
    - BlobChanged                   somebody else has moved the pointer
    - SnapshotCorrupt               what came back is not what was stored
    - SnapshotsMissing              there should be snapshots, and there are none: a wrong store?
    - WrongBlobs                    the blob store is another installation's, or is empty
  + CannotUnseal                    sealed with another master key, or damaged
  + ModelKeyMissing                 the session's LLM vault has no key for its model
  + WorkspaceTooLarge               more files than a snapshot may hold
  + HarnessUnavailable              no such harness here, or none of the sandboxes that it needs
  + AgentFailed                     the agent's program cannot be started, or ended
  + WorkspaceDeleted                the end of every session in it
  + LeaseLost                       another runner owns the session now; drop everything
  + StartupError                    the server cannot start, and would fail the same way again
    - DataDirLocked                 another server has this data directory open
    - SchemaTooNew                  the database was written by a newer Roost

A class's docstring is its default message. `code` is stable: clients may branch on it. `hint` tells
a person what to do next. Which HTTP status each one gets is one table in `api/framework/errors.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class RoostError(Exception):
    """Something went wrong inside Roost."""

    code: ClassVar[str] = "internal_error"
    hint: str | None = None

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())
        if hint is not None:
            self.hint = hint

    @property
    def message(self) -> str:
        """What happened, in a sentence."""
        return str(self.args[0])


class InvalidRequest(RoostError):
    """The request is not valid."""

    code = "invalid_request"


class FieldNotServed(InvalidRequest):
    """This server does not serve that field of the API."""

    code = "field_not_served"


class HarnessCannot(InvalidRequest):
    """The session's harness cannot do that."""

    code = "harness_cannot"
    hint = "Name another `harness`: `GET /roost/v1/harnesses` says what each can do."


class SessionClosed(InvalidRequest):
    """The session is terminated and accepts no more events."""

    code = "session_closed"
    hint = "Create a new session; this one stays readable."


class SessionBusy(InvalidRequest):
    """The session cannot be changed this way while its status is running."""

    code = "session_running"
    hint = "Send a user.interrupt event, wait for session.status_idle, then try again."


class CannotSeal(InvalidRequest):
    """This server cannot keep secrets: it has no master key that all servers of its database share."""

    code = "master_key_missing"
    hint = (
        "The operator sets ROOST_MASTER_KEY, the same for all servers: `openssl rand -base64 32`."
    )


class AgentModelRequired(InvalidRequest):
    """The model of an agent can be replaced, not cleared."""

    code = "agent_model_required"


class EnvironmentArchived(InvalidRequest):
    """The environment is archived."""

    code = "environment_archived"


class ConfigTypeChanged(InvalidRequest):
    """The type of an environment's config cannot change after creation."""

    code = "invalid_config_type_change"


class ModelNotServed(InvalidRequest):
    """No server of models that the operator named serves this model."""

    code = "model_not_served"
    hint = "`GET /v1/models` lists those that are served."


class BudgetRefused(InvalidRequest):
    """A budget needs a list price for the session's model, which this server does not have."""

    code = "model_not_budgetable"
    hint = "The operator sets list prices with ROOST_PRICES."


class BudgetCreateOnly(InvalidRequest):
    """A budget cannot be added to a session that was created without one."""

    code = "budget_create_only"


class BudgetNotRaised(InvalidRequest):
    """The session has already spent that much."""

    code = "budget_not_raised"
    hint = "Give a budget above the session's `usage.list_cost`."


class BudgetReached(InvalidRequest):
    """The session's budget is used up."""

    code = "budget_reached"
    hint = "Raise the session's budget; if it is the operator's limit, create a new session."


class BadArchive(InvalidRequest):
    """This is not an archive of a session."""

    code = "bad_archive"


class MethodNotAllowed(InvalidRequest):
    """This path does not take that method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: list[str]) -> None:
        super().__init__(f"this path takes {' and '.join(allowed)}, not {method[:20]}")
        self.allowed = allowed


class StorageQuotaExceeded(InvalidRequest):
    """The tenant's files have reached their storage limit."""

    code = "storage_quota_exceeded"
    hint = "Delete files that are no longer needed."


class RangeRefused(InvalidRequest):
    """The file has no such bytes."""

    code = "range_not_satisfiable"


class NotJson(InvalidRequest):
    """The frame is not a JSON object with a `type`."""

    code = "not_json"


class NotStarted(InvalidRequest):
    """This socket follows no session yet."""

    code = "not_started"
    hint = "Send a `start` message first."


class AlreadyStarted(InvalidRequest):
    """This socket follows a session already."""

    code = "already_started"
    hint = "Open another socket for another session."


class AlreadyAnswered(InvalidRequest):
    """This was answered already."""

    code = "already_answered"


class OwnKey(InvalidRequest):
    """A key cannot revoke itself."""

    code = "own_key"
    hint = "Create another administrator's key, log in with it, and revoke this one."


class LastAdministrator(InvalidRequest):
    """This is the last administrator's key; without it nobody could create keys."""

    code = "last_administrator"
    hint = "Create another one first: `roost key create --role admin`."


class WrongAnswer(InvalidRequest):
    """This is waiting for an answer of another kind."""

    code = "wrong_answer"
    hint = "A tool call that waits for permission is allowed or denied; a question or custom tool gets a result."


class WrongInput(InvalidRequest):
    """The tool cannot take this input; nothing was answered."""

    code = "wrong_input"
    hint = "Give an input that the tool takes, or allow the call without one."


class NotWaiting(InvalidRequest):
    """The input is no longer waiting: the agent has it, or it was withdrawn."""

    code = "not_waiting"


class Unauthenticated(RoostError):
    """The API key is missing or is not valid."""

    code = "unauthenticated"
    hint = (
        "The administrator's key is in keys/admin.key in the server's data directory; "
        "`roost key create` creates others."
    )


class Forbidden(RoostError):
    """This API key may not do that."""

    code = "forbidden"


class NotTheOwner(Forbidden):
    """It belongs to another key."""

    code = "not_the_owner"
    hint = "Ask its owner or an administrator, or create your own."


class AuthorNotTrusted(Forbidden):
    """The agent, environment or task was written by a key with less trust than the session would have."""

    code = "author_not_trusted"
    hint = (
        "Let a key with this trust level review it and save it again (an update without changes is "
        "enough), or use another one."
    )


class CrossOrigin(Forbidden):
    """This request comes from a page of another origin."""

    code = "cross_origin"
    hint = "Open the app at this server's own address, or name the page's origin in ROOST_ALLOWED_ORIGINS."


class NotFound(RoostError):
    """It was not found."""

    code = "not_found"


class EnvironmentNotFound(NotFound):
    """There is no such environment."""

    code = "environment_not_found"


class FileExpired(NotFound):
    """The file has expired."""

    code = "file_expired"


class NotServed(NotFound):
    """This server does not serve that operation."""

    code = "not_served"


class SnapshotGone(NotFound):
    """The files of that turn are no longer stored."""

    code = "snapshot_gone"
    hint = "Name another turn: the files of the newest turns are kept, unless storing them failed."


class Conflict(RoostError):
    """The resource was changed by somebody else in the meantime."""

    code = "conflict"
    hint = "Retrieve it again and repeat the change on what you get."


class HeartbeatMismatch(RoostError):
    """Another worker has this work item, or none: the heartbeat that was expected is not the last one."""

    code = "heartbeat_precondition_failed"
    hint = "Leave the item alone, and poll for another."

    def __init__(self, lease: Mapping[str, Any]) -> None:
        super().__init__()
        self.lease = lease


class IdempotencyMismatch(Conflict):
    """This idempotency key was already used for a different request."""

    code = "idempotency_key_reused"
    hint = "Use a new key for a new request; repeat a request with exactly its first body."


class FilesElsewhere(Conflict):
    """The session's files are in use on another node."""

    code = "files_elsewhere"
    hint = "Ask again when the session's agent sleeps, or ask the node that runs it."


class TooLarge(RoostError):
    """The request is larger than this server accepts."""

    code = "request_too_large"


class HeadTooLarge(TooLarge):
    """The request line or the headers are larger than this server accepts."""

    code = "head_too_large"
    hint = "Send shorter and fewer headers; what is long belongs in the body."


class RequestTooSlow(RoostError):
    """The request's body did not arrive in time."""

    code = "request_too_slow"
    hint = "Send it again, over a faster connection; ROOST_BODY_SECONDS is how long it may pause."


class RateLimited(RoostError):
    """This key has sent too many requests."""

    code = "rate_limited"

    def __init__(
        self, message: str | None = None, *, retry_after: float = 1.0, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class QuotaExceeded(RateLimited):
    """This key has reached its quota."""

    code = "quota_exceeded"


class QueueFull(RateLimited):
    """The session has too many inputs waiting; nothing was accepted."""

    code = "queue_full"
    hint = "Wait until the session has handled its queue, or interrupt it."


class PoolFull(RateLimited):
    """The pool has as many sessions as it may."""

    code = "pool_full"
    hint = "Stop one, wait until one has cooled down, or raise the pool's `max_sessions`."


class TooManyStreams(RateLimited):
    """This key has as many event streams open as it may."""

    code = "too_many_streams"
    hint = "Close a stream first; one stream shows all that happens in its session."


class TooManySockets(RateLimited):
    """This key has as many WebSockets open as it may."""

    code = "too_many_sockets"
    hint = "Close a WebSocket first."


class TooMuchAtOnce(RateLimited):
    """The unfinished requests of this key have too many bytes in total."""

    code = "too_much_at_once"
    hint = "Send large requests one after the other."


class TooManyConnections(RateLimited):
    """There are too many connections from this address."""

    code = "too_many_connections"
    hint = "Close some, or use one for several requests. Behind a proxy, name it in ROOST_TRUSTED_PROXIES."


class Unavailable(RoostError):
    """The server cannot take this request right now."""

    code = "unavailable"


class SandboxFailed(RoostError):
    """The sandbox failed while it was in use."""

    code = "sandbox_failed"


class SandboxUnavailable(SandboxFailed):
    """This machine cannot open a sandbox of that kind now."""

    code = "sandbox_unavailable"
    hint = "Run `roost doctor`: it says what is missing and how to get it."


class FilesNotFetched(SandboxFailed):
    """What the agent has changed cannot be fetched from its sandbox."""

    code = "files_not_fetched"
    hint = (
        "Fetching is tried again after the next turn, and when the agent goes to sleep; if that fails, too, the"
        " changes are lost. If the changes are too large, let the agent remove some of them."
    )


class PackagesFailed(RoostError):
    """The environment's packages cannot be installed."""

    code = "packages_failed"
    hint = "Change the environment's packages, or send a message to try again."


class BlobsFailed(RoostError):
    """The blob store cannot be reached, or refused a request."""

    code = "blobs_failed"
    hint = "Check ROOST_BLOBS_URL and the store; what could not be stored is tried again."


class DiskFull(BlobsFailed):
    """There is too little free space on the server's disk."""

    code = "disk_full"
    hint = "The operator frees space, or lowers ROOST_MIN_FREE_DISK. Messages are still accepted."


class TenantStorageFull(BlobsFailed):
    """The snapshots of the tenant's sessions and workspaces have reached their limit."""

    code = "tenant_storage_full"
    hint = (
        "Delete sessions or workspaces that are no longer needed, or let the operator raise "
        "ROOST_MAX_TENANT_BYTES; then it continues by itself. Messages are still accepted."
    )


class BlobNotFound(BlobsFailed):
    """The blob store has no such object."""

    code = "blob_not_found"


class BlobChanged(BlobsFailed):
    """The object was changed by somebody else."""

    code = "blob_changed"


class SnapshotCorrupt(BlobsFailed):
    """A snapshot is damaged; nothing was restored from the damaged part."""

    code = "snapshot_corrupt"
    hint = "Restore an earlier snapshot, or bring the object store back to a good state."


class SnapshotsMissing(BlobsFailed):
    """The blob store has no snapshot of these files, though one was stored."""

    code = "snapshots_missing"
    hint = (
        "ROOST_BLOBS_URL may name another store, or an empty one; with the right one it continues by "
        "itself. If the snapshots are lost for good, the operator says so: `roost blobs adopt --lost`."
    )


class WrongBlobs(BlobsFailed):
    """The blob store is not the one that belongs to this database."""

    code = "blobs_wrong"
    hint = (
        "Correct ROOST_BLOBS_URL, or mount the folder that it names; with the right store it continues "
        "by itself. If this store is the right one, say so with `roost blobs adopt`."
    )


class CannotUnseal(RoostError):
    """A secret in the database cannot be decrypted."""

    code = "cannot_unseal"
    hint = (
        "Give every server the ROOST_MASTER_KEY that the secret was sealed with, or set it again."
    )


class ModelKeyMissing(RoostError):
    """The session's LLM vault has no key for its model."""

    code = "model_key_missing"
    hint = "Add a credential with a key to the vault; a deleted vault needs another session."


class WorkspaceTooLarge(RoostError):
    """The workspace has more files than a snapshot may hold."""

    code = "workspace_too_large"
    hint = "Remove files from the workspace; it is not stored until then."


class HarnessUnavailable(RoostError):
    """This server cannot run the session's agent."""

    code = "harness_unavailable"


class AgentFailed(RoostError):
    """The agent's program failed."""

    code = "agent_failed"
    hint = "Send the message again; if it happens again, run `roost doctor` where the server runs."


class WorkspaceDeleted(RoostError):
    """The workspace that this session works in was deleted."""

    code = "workspace_deleted"
    hint = "Its files are gone; create a new session."


class LeaseLost(RoostError):
    """Another runner owns this session now."""

    code = "lease_lost"


class StartupError(RoostError):
    """The server cannot start."""

    code = "startup_failed"


class DataDirLocked(StartupError):
    """Another Roost server has this data directory open."""

    code = "data_dir_locked"
    hint = "Stop the other server, or give this one a directory of its own with --data."


class SchemaTooNew(StartupError):
    """The database was written by a newer version of Roost."""

    code = "schema_too_new"
    hint = "Start the newer version, or restore a backup made before the upgrade."
