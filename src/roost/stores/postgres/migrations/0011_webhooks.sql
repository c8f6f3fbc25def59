-- Code that does not know of webhooks tells nobody what it changes; they are told of what newer servers change.
-- works with: 7

-- The endpoints of tenants. `events` is '*', or the types with a space before and after each.
CREATE TABLE webhooks (
    num           BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id            TEXT   NOT NULL UNIQUE,
    tenant        TEXT   NOT NULL,
    state         TEXT   NOT NULL,
    events        TEXT   NOT NULL,
    body          BYTEA  NOT NULL,  -- JSON, without secrets
    sealed        TEXT   NOT NULL,
    reason        TEXT   NOT NULL,
    failing_since BIGINT NOT NULL,
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL
);
CREATE INDEX webhooks_by_tenant ON webhooks (tenant, num);
CREATE INDEX webhooks_enabled ON webhooks (tenant) WHERE state = 'enabled';

-- What is told to them: written with the change that it tells of, and kept for a while as a log. `due_at` is
-- when it is tried next, or until when somebody has it; 0: never. What was written to an endpoint that was
-- deleted at that moment is dropped when it is due.
CREATE TABLE deliveries (
    num        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    webhook    BIGINT NOT NULL,
    event      TEXT   NOT NULL,
    type       TEXT   NOT NULL,
    subject    TEXT   NOT NULL,
    parent     TEXT   NOT NULL,
    at         BIGINT NOT NULL,
    state      TEXT   NOT NULL DEFAULT 'pending',
    due_at     BIGINT NOT NULL,
    attempts   BIGINT NOT NULL DEFAULT 0,
    status     BIGINT,
    note       TEXT   NOT NULL DEFAULT '',
    answer     TEXT   NOT NULL DEFAULT '',
    updated_at BIGINT NOT NULL,
    UNIQUE (webhook, event)
);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook, num);
CREATE INDEX deliveries_due ON deliveries (due_at, num) WHERE due_at > 0;
CREATE INDEX deliveries_over ON deliveries (at) WHERE due_at = 0;
