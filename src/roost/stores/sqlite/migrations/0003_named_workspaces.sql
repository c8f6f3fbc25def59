-- Which workspace a session works in, if it is not its own: '' for its own.
ALTER TABLE sessions ADD COLUMN workspace TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_by_workspace ON sessions (workspace, num) WHERE workspace <> '';
