-- Who made a session or a record: '' if that was before it was noted. `ceiling`: how far the key that wrote a
-- version was trusted; '' if nobody noted it.
ALTER TABLE sessions ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
CREATE INDEX sessions_by_creator ON sessions (tenant, created_by, num);
ALTER TABLE records ADD COLUMN created_by TEXT NOT NULL DEFAULT '';
CREATE INDEX records_by_creator ON records (tenant, kind, created_by, num);
ALTER TABLE versions ADD COLUMN ceiling TEXT NOT NULL DEFAULT '';
