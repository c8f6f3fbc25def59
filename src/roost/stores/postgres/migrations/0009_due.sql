-- Code that does not know when records are due leaves that as it is.
-- works with: 7

-- When something is to be done about a record; NULL: never. Archived records are never due.
ALTER TABLE records ADD COLUMN due_at BIGINT;
CREATE INDEX records_due ON records (kind, due_at, num) WHERE due_at IS NOT NULL AND archived_at IS NULL;
