-- +goose Up
-- What an operation was asked for beside its kind, and its place among those of its resource that have not ended.

ALTER TABLE operations ADD COLUMN input TEXT NOT NULL DEFAULT '';
ALTER TABLE operations ADD COLUMN accepted INTEGER NOT NULL DEFAULT 0;
CREATE INDEX operations_open ON operations (resource_id, accepted) WHERE state IN ('queued', 'running');
