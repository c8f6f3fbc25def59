-- The endpoints of tenants. `events` is '*', or the types with a space before and after each.
CREATE TABLE webhooks (
    num           INTEGER PRIMARY KEY AUTOINCREMENT,
    id            TEXT    NOT NULL UNIQUE,
    tenant        TEXT    NOT NULL,
    state         TEXT    NOT NULL,
    events        TEXT    NOT NULL,
    body          BLOB    NOT NULL,  -- JSON, without secrets
    sealed        TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    failing_since INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
);
CREATE INDEX webhooks_by_tenant ON webhooks (tenant, num);
CREATE INDEX webhooks_enabled ON webhooks (tenant) WHERE state = 'enabled';

-- What is told to them: written with the change that it tells of, and kept for a while as a log. `due_at` is
-- when it is tried next, or until when somebody has it; 0: never. What was written to an endpoint that was
-- deleted at that moment is dropped when it is due.
CREATE TABLE deliveries (
    num        INTEGER PRIMARY KEY AUTOINCREMENT,
    webhook    INTEGER NOT NULL,
    event      TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    parent     TEXT    NOT NULL,
    at         INTEGER NOT NULL,
    state      TEXT    NOT NULL DEFAULT 'pending',
    due_at     INTEGER NOT NULL,
    attempts   INTEGER NOT NULL DEFAULT 0,
    status     INTEGER,
    note       TEXT    NOT NULL DEFAULT '',
    answer     TEXT    NOT NULL DEFAULT '',
    updated_at INTEGER NOT NULL,
    UNIQUE (webhook, event)
);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook, num);
CREATE INDEX deliveries_due ON deliveries (due_at, num) WHERE due_at > 0;
CREATE INDEX deliveries_over ON deliveries (at) WHERE due_at = 0;
