-- +goose Up
-- Command sessions with a terminal (0 columns: none) or a transcript.
ALTER TABLE commands ADD COLUMN pty_cols INTEGER NOT NULL DEFAULT 0;
ALTER TABLE commands ADD COLUMN pty_rows INTEGER NOT NULL DEFAULT 0;
ALTER TABLE commands ADD COLUMN pty_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE commands ADD COLUMN record INTEGER NOT NULL DEFAULT 0;
