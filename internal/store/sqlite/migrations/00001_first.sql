-- +goose Up
-- Times are nanoseconds since 1970 (UTC), 0 for none. Maps and lists are JSON.

CREATE TABLE sandboxes (
    id              TEXT PRIMARY KEY,
    name            TEXT NOT NULL, -- '' for none
    state           TEXT NOT NULL,
    desired_state   TEXT NOT NULL,
    reason          TEXT NOT NULL,
    detail          TEXT NOT NULL,
    template_ref    TEXT NOT NULL,
    template_digest TEXT NOT NULL,
    driver          TEXT NOT NULL,
    isolation       TEXT NOT NULL,
    vcpus           INTEGER NOT NULL,
    memory_mib      INTEGER NOT NULL,
    disk_mib        INTEGER NOT NULL,
    env             TEXT NOT NULL,
    metadata        TEXT NOT NULL,
    generation      INTEGER NOT NULL,
    agent_token     TEXT NOT NULL,
    owner           TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    ready_at        INTEGER NOT NULL,
    deleted_at      INTEGER NOT NULL,
    operation_id    TEXT NOT NULL,
    revision        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX sandboxes_live_name ON sandboxes (name) WHERE name <> '' AND state <> 'deleted';
CREATE INDEX sandboxes_live ON sandboxes (created_at, id) WHERE state <> 'deleted';
CREATE INDEX sandboxes_order ON sandboxes (created_at, id);

CREATE TABLE operations (
    id            TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    resource_type TEXT NOT NULL,
    resource_id   TEXT NOT NULL,
    state         TEXT NOT NULL,
    no_change     INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    ended_at      INTEGER NOT NULL,
    steps         TEXT NOT NULL,
    error         TEXT NOT NULL -- '' for none
) STRICT, WITHOUT ROWID;
CREATE INDEX operations_order ON operations (created_at, id);
CREATE INDEX operations_unfinished ON operations (created_at, id) WHERE state IN ('queued', 'running');

CREATE TABLE commands (
    id              TEXT PRIMARY KEY,
    sandbox_id      TEXT NOT NULL,
    process_id      TEXT NOT NULL,
    argv            TEXT NOT NULL,
    env             TEXT NOT NULL,
    cwd             TEXT NOT NULL,
    user            TEXT NOT NULL,
    stdin           INTEGER NOT NULL,
    timeout_seconds REAL NOT NULL,
    tag             TEXT NOT NULL,
    state           TEXT NOT NULL,
    reason          TEXT NOT NULL,
    pid             INTEGER NOT NULL,
    exit_code       INTEGER, -- NULL until exited
    signal          TEXT NOT NULL,
    error_code      TEXT NOT NULL,
    error_message   TEXT NOT NULL,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER NOT NULL,
    ended_at        INTEGER NOT NULL,
    stdout_bytes    INTEGER NOT NULL,
    stderr_bytes    INTEGER NOT NULL,
    stdin_bytes     INTEGER NOT NULL,
    truncated_bytes INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    revision        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX commands_process ON commands (sandbox_id, process_id);
CREATE INDEX commands_order ON commands (sandbox_id, created_at, id);

CREATE TABLE templates (
    digest       TEXT PRIMARY KEY,
    names        TEXT NOT NULL,
    size_bytes   INTEGER NOT NULL,
    min_disk_mib INTEGER NOT NULL,
    env          TEXT NOT NULL,
    user         TEXT NOT NULL,
    workdir      TEXT NOT NULL,
    entrypoint   TEXT NOT NULL,
    created_at   INTEGER NOT NULL,
    listed       INTEGER NOT NULL -- 0: gone from the node, kept for the sandboxes made from it
) STRICT, WITHOUT ROWID;

CREATE TABLE keys (
    hash       TEXT PRIMARY KEY, -- hex SHA-256
    id         TEXT NOT NULL UNIQUE,
    role       TEXT NOT NULL,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    principal   TEXT NOT NULL,
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    fingerprint TEXT NOT NULL, -- hex
    result_id   TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (principal, scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_age ON idempotency (created_at);

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
