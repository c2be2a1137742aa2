-- +goose Up
-- Leases of sandboxes. Durations are nanoseconds; a lease_ttl of 0: none. lease_expires_at is 0 while time stands still,
-- lease_remaining is what is left then.
ALTER TABLE sandboxes ADD COLUMN lease_ttl INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN lease_on_expiry TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN lease_expires_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN lease_remaining INTEGER NOT NULL DEFAULT 0;
CREATE INDEX sandboxes_lease ON sandboxes (lease_expires_at, id) WHERE lease_expires_at <> 0;

CREATE INDEX operations_resource ON operations (resource_id, created_at, id);

-- What happened, in the order of commits. AUTOINCREMENT: a number is never given twice, also after all rows are gone.
CREATE TABLE events (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    time         INTEGER NOT NULL,
    type         TEXT NOT NULL,
    sandbox_id   TEXT NOT NULL, -- '' for none
    operation_id TEXT NOT NULL, -- '' for none
    object       TEXT NOT NULL  -- JSON
) STRICT;
