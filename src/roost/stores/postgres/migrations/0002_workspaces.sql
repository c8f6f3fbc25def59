-- Which copy of a workspace's files is the living one, and whether the newest snapshot has everything.
CREATE TABLE workspaces (
    id         TEXT   PRIMARY KEY,
    copy       TEXT   NOT NULL,
    generation BIGINT NOT NULL,
    state      TEXT   NOT NULL,
    sequence   BIGINT NOT NULL,
    attempts   BIGINT NOT NULL,
    error      TEXT   NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX workspaces_unsynced ON workspaces (updated_at) WHERE state <> 'idle';
