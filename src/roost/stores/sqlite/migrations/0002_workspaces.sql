-- Which copy of a workspace's files is the living one, and whether the newest snapshot has everything.
CREATE TABLE workspaces (
    id         TEXT    NOT NULL PRIMARY KEY,
    copy       TEXT    NOT NULL,
    generation INTEGER NOT NULL,
    state      TEXT    NOT NULL,
    sequence   INTEGER NOT NULL,
    attempts   INTEGER NOT NULL,
    error      TEXT    NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX workspaces_unsynced ON workspaces (updated_at) WHERE state <> 'idle';
