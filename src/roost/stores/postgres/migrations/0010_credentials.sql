-- Code that does not know of vaults runs a session without its credentials: it can do less, and shows nothing.
-- works with: 7

-- The credentials of vaults; a vault is a record. What is replaced or archived leaves nothing behind: there are
-- no old versions, and `sealed` is NULL once the credential is archived.
CREATE TABLE credentials (
    num          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id           TEXT   NOT NULL UNIQUE,
    tenant       TEXT   NOT NULL,
    vault        TEXT   NOT NULL,
    unique_key   TEXT   NOT NULL,  -- no two of a vault share it as long as they are not archived
    version      BIGINT NOT NULL,
    body         BYTEA  NOT NULL,  -- JSON, without secrets
    sealed       TEXT,
    lease_holder TEXT   NOT NULL DEFAULT '',  -- who renews its token, until when
    lease_until  BIGINT NOT NULL DEFAULT 0,
    created_at   BIGINT NOT NULL,
    updated_at   BIGINT NOT NULL,
    archived_at  BIGINT
);
CREATE INDEX credentials_by_vault ON credentials (vault, num);
