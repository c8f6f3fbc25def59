-- works with: 2

-- What a node says of itself, and since when it is to hand its work over; 0: it is not.
ALTER TABLE nodes ADD COLUMN about BYTEA NOT NULL DEFAULT '{}';
ALTER TABLE nodes ADD COLUMN draining BIGINT NOT NULL DEFAULT 0;

-- The place that has a session's files from its last turn: its node has a head start at the next one.
ALTER TABLE sessions ADD COLUMN home TEXT NOT NULL DEFAULT '';
ALTER TABLE nodes ADD COLUMN home TEXT NOT NULL DEFAULT '';
