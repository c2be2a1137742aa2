-- +goose Up
-- Open sessions are looked for at each change of a sandbox's state; of those that have ended there may be very many.
CREATE INDEX commands_open ON commands (sandbox_id, created_at, id) WHERE state IN ('created', 'running');
