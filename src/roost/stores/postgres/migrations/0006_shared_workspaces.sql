-- Code that does not know of shared workspaces would not wait for its turn in one.
-- works with: 6

-- Workspaces that sessions share: which node has one, and whose turn it is where turns are one at a time.
ALTER TABLE workspaces ADD COLUMN holder TEXT NOT NULL DEFAULT '';
CREATE TABLE workspace_turns (
    session   TEXT   PRIMARY KEY,
    workspace TEXT   NOT NULL,
    since     BIGINT NOT NULL,
    is_in     BIGINT NOT NULL
);
CREATE INDEX workspace_turns_in_order ON workspace_turns (workspace, since);
