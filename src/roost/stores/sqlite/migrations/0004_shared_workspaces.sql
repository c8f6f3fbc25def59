-- Workspaces that sessions share: which node has one, and whose turn it is where turns are one at a time.
ALTER TABLE workspaces ADD COLUMN holder TEXT NOT NULL DEFAULT '';
CREATE TABLE workspace_turns (
    session   TEXT    NOT NULL PRIMARY KEY,
    workspace TEXT    NOT NULL,
    since     INTEGER NOT NULL,
    is_in     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX workspace_turns_in_order ON workspace_turns (workspace, since);
