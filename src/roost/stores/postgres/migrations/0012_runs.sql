-- Code that does not know of runs leaves schedules to servers that do.
-- works with: 7

-- What deployments were to start, at a time or by hand, and what came of it. No two runs of an owner are for the
-- same: `slot` is the time, or what somebody named it by. `look_at`: when something is to be done; 0: never again.
CREATE TABLE runs (
    num          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT   NOT NULL UNIQUE,
    tenant       TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    owner        TEXT   NOT NULL,
    created_by   TEXT   NOT NULL,
    slot         TEXT   NOT NULL,
    state        TEXT   NOT NULL,
    look_at      BIGINT NOT NULL,
    body         BYTEA  NOT NULL,  -- JSON
    scheduled_at BIGINT,           -- NULL: by hand
    session_id   TEXT,
    created_at   BIGINT NOT NULL,
    started_at   BIGINT,
    ended_at     BIGINT,
    UNIQUE (owner, slot)
);
CREATE INDEX runs_by_look ON runs (look_at, num) WHERE look_at > 0;
CREATE INDEX runs_unfinished ON runs (owner, num) WHERE look_at > 0;
CREATE INDEX runs_by_owner ON runs (owner, num);
CREATE INDEX runs_by_tenant ON runs (tenant, kind, num);
CREATE INDEX runs_started ON runs (owner, num) WHERE scheduled_at IS NOT NULL AND started_at IS NOT NULL;
