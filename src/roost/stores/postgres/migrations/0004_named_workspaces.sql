-- Code that does not know of named workspaces would let a session work in the wrong directory.
-- works with: 4

-- Which workspace a session works in, if it is not its own: '' for its own.
ALTER TABLE sessions ADD COLUMN workspace TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_by_workspace ON sessions (workspace, num) WHERE workspace <> '';
