-- When something is to be done about a record; NULL: never. Archived records are never due.
ALTER TABLE records ADD COLUMN due_at INTEGER;
CREATE INDEX records_due ON records (kind, due_at) WHERE due_at IS NOT NULL AND archived_at IS NULL;
