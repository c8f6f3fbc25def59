-- Sessions, their logs, the catalog and the keys.
--
-- A session is three rows, split by how often they change: `sessions` at each turn, `heads` at each
-- entry, `specs` at an update. Kept as one row, each entry would rewrite the whole session.
-- `num` stands for the session's id inside the database; AUTOINCREMENT, because the entries of a
-- deleted session stay for a while and must not turn up in a new one.

CREATE TABLE sessions (
    num            INTEGER PRIMARY KEY AUTOINCREMENT,
    id             TEXT    NOT NULL UNIQUE,
    tenant         TEXT    NOT NULL,
    agent_id       TEXT    NOT NULL,
    agent_version  INTEGER NOT NULL,
    environment_id TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    status         TEXT    NOT NULL,
    owner          TEXT    NOT NULL,  -- '' for nobody, so that a claim asks one question of all owners
    active_since   INTEGER NOT NULL,  -- since when it has work; 0: it has none
    archived_at    INTEGER,
    rest           BLOB    NOT NULL   -- JSON: what else `State` holds and no query looks at
);
CREATE INDEX sessions_by_tenant ON sessions (tenant, num);
CREATE INDEX sessions_by_agent ON sessions (agent_id, num);
CREATE INDEX sessions_by_environment ON sessions (environment_id, num);
CREATE INDEX sessions_open ON sessions (tenant) WHERE archived_at IS NULL;
CREATE INDEX sessions_with_work ON sessions (owner, active_since) WHERE active_since > 0;

CREATE TABLE heads (
    session    INTEGER PRIMARY KEY,
    head       INTEGER NOT NULL,
    queued     INTEGER NOT NULL,
    waits_from INTEGER NOT NULL,  -- the seq of the oldest input that waits, 0 if none does
    sent       INTEGER NOT NULL,
    sent_at    INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

CREATE TABLE specs (
    session INTEGER PRIMARY KEY,
    spec    BLOB NOT NULL  -- JSON
);

-- All logs in one table, in the order of writing, with one index: each further one would cost every
-- accepted input another page. `taken` is NULL unless the entry is an input; 0
-- while that waits; then the seq at which the agent got it.
CREATE TABLE entries (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    queued  INTEGER NOT NULL,
    taken   INTEGER,
    id      TEXT    NOT NULL,
    type    TEXT    NOT NULL,
    body    BLOB    NOT NULL
);
CREATE UNIQUE INDEX entries_in_order ON entries (session, seq);

-- Which inputs came under which sender's key, and which sessions were created under one.
CREATE TABLE receipts (
    session     INTEGER NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    PRIMARY KEY (session, key)
) WITHOUT ROWID;

CREATE TABLE creations (
    tenant      TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) WITHOUT ROWID;

-- What was deleted: a listing may go on after it, and a session's log may still have to be swept.
CREATE TABLE graves (
    kind   TEXT    NOT NULL,
    num    INTEGER NOT NULL,
    tenant TEXT    NOT NULL,
    id     TEXT    NOT NULL,
    swept  INTEGER NOT NULL,
    PRIMARY KEY (kind, num)
) WITHOUT ROWID;
CREATE INDEX graves_by_id ON graves (id);
CREATE INDEX graves_to_sweep ON graves (num) WHERE swept = 0;

CREATE TABLE records (
    num         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT    NOT NULL UNIQUE,
    kind        TEXT    NOT NULL,
    tenant      TEXT    NOT NULL,
    name        TEXT,
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    archived_at INTEGER
);
CREATE INDEX records_by_tenant ON records (tenant, kind, num);
CREATE INDEX records_by_name ON records (tenant, kind, name) WHERE archived_at IS NULL;

CREATE TABLE versions (
    record     INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    body       BLOB    NOT NULL,  -- JSON
    PRIMARY KEY (record, version)
);

CREATE TABLE keys (
    num        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT    NOT NULL UNIQUE,
    tenant     TEXT    NOT NULL,
    digest     BLOB    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    rest       BLOB    NOT NULL  -- JSON
);

-- One row, rewritten to see whether the disk still takes a commit.
CREATE TABLE pulse (
    id INTEGER PRIMARY KEY,
    at INTEGER NOT NULL
);
