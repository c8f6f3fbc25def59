-- works with: 2

-- How often each key may still call. Not logged: after a crash every bucket is full again.
CREATE UNLOGGED TABLE buckets (
    name   TEXT             PRIMARY KEY,
    tokens DOUBLE PRECISION NOT NULL,
    took   DOUBLE PRECISION NOT NULL,
    at     DOUBLE PRECISION NOT NULL  -- seconds since 1970
) WITH (fillfactor = 20);
