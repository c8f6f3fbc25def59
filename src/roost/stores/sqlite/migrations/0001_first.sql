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
    last       INTEGER NOT NULL,  -- the session's newest entry, 0 before the first
    last_input INTEGER NOT NULL,  -- its newest input, 0 before the first
    head       INTEGER NOT NULL,
    queued     INTEGER NOT NULL,
    sent       INTEGER NOT NULL,
    sent_at    INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
);

CREATE TABLE specs (
    session INTEGER PRIMARY KEY,
    spec    BLOB NOT NULL  -- JSON
);

-- All logs in one table, in the order of writing. There is no index by (session, seq): with a
-- thousand sessions at work it would dirty a page for each entry, and that costs three times what
-- the entry costs. Instead each entry points to the one before it (`prev`) and each input to the
-- input before it (`prev_input`), 0 for none; `heads` has the ends of both chains, and `marks` has
-- every 64th entry of a log to jump to. A reader goes from a mark, or the end, backwards.
--
-- `taken` is NULL unless the entry is an input; 0 while that waits; then the seq at which the agent
-- got it. The body comes last, so that walking past a large one does not load it.
CREATE TABLE entries (
    num        INTEGER PRIMARY KEY,
    session    INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    prev       INTEGER NOT NULL,
    prev_input INTEGER,
    at         INTEGER NOT NULL,
    queued     INTEGER NOT NULL,
    taken      INTEGER,
    id         TEXT    NOT NULL,
    type       TEXT    NOT NULL,
    body       BLOB    NOT NULL
);

CREATE TABLE marks (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    entry   INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

-- Which inputs came under which sender's key, and which sessions were created under one.
CREATE TABLE receipts (
    session     INTEGER NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    entry       INTEGER NOT NULL,
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
    last   INTEGER NOT NULL,  -- the newest entry of its log that is left
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
