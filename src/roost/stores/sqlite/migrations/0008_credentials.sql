-- The credentials of vaults; a vault is a record. What is replaced or archived leaves nothing behind: there are
-- no old versions, and `sealed` is NULL once the credential is archived.
CREATE TABLE credentials (
    num          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT    NOT NULL UNIQUE,
    tenant       TEXT    NOT NULL,
    vault        TEXT    NOT NULL,
    unique_key   TEXT    NOT NULL,  -- no two of a vault share it as long as they are not archived
    version      INTEGER NOT NULL,
    body         BLOB    NOT NULL,  -- JSON, without secrets
    sealed       TEXT,
    lease_holder TEXT    NOT NULL DEFAULT '',  -- who renews its token, until when
    lease_until  INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    updated_at   INTEGER NOT NULL,
    archived_at  INTEGER
);
CREATE INDEX credentials_by_vault ON credentials (vault, num);
