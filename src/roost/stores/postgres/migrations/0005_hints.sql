-- works with: 4

-- How often each key may still call. Not logged: after a crash every bucket is full again.
CREATE UNLOGGED TABLE buckets (
    name   TEXT             PRIMARY KEY,
    tokens DOUBLE PRECISION NOT NULL,
    took   DOUBLE PRECISION NOT NULL,
    at     DOUBLE PRECISION NOT NULL  -- seconds since 1970
) WITH (fillfactor = 20);

-- How far sessions were shown to programs that keep no cursor. Not logged either: a hint.
CREATE UNLOGGED TABLE shown (
    session TEXT             PRIMARY KEY,
    seq     BIGINT           NOT NULL,
    at      DOUBLE PRECISION NOT NULL  -- seconds since 1970
) WITH (fillfactor = 50);
