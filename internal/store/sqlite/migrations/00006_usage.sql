-- +goose Up
-- What sandboxes with a machine hold, by driver: kept up to date by triggers, so that admitting one more sandbox costs
-- the same however many there are.
CREATE TABLE usage (
    driver     TEXT PRIMARY KEY,
    sandboxes  INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    vcpus      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO usage
    SELECT driver, count(*), sum(memory_mib), sum(vcpus) FROM sandboxes WHERE state NOT IN ('deleted', 'failed') GROUP BY driver;

-- +goose StatementBegin
CREATE TRIGGER sandboxes_usage_insert AFTER INSERT ON sandboxes WHEN NEW.state NOT IN ('deleted', 'failed')
BEGIN
    INSERT INTO usage VALUES (NEW.driver, 1, NEW.memory_mib, NEW.vcpus)
        ON CONFLICT (driver) DO UPDATE SET sandboxes = sandboxes + 1, memory_mib = memory_mib + excluded.memory_mib, vcpus = vcpus + excluded.vcpus;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER sandboxes_usage_delete AFTER DELETE ON sandboxes WHEN OLD.state NOT IN ('deleted', 'failed')
BEGIN
    UPDATE usage SET sandboxes = sandboxes - 1, memory_mib = memory_mib - OLD.memory_mib, vcpus = vcpus - OLD.vcpus WHERE driver = OLD.driver;
END;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE TRIGGER sandboxes_usage_update AFTER UPDATE ON sandboxes
WHEN (OLD.state IN ('deleted', 'failed')) <> (NEW.state IN ('deleted', 'failed')) OR OLD.driver <> NEW.driver
    OR OLD.memory_mib <> NEW.memory_mib OR OLD.vcpus <> NEW.vcpus
BEGIN
    UPDATE usage SET sandboxes = sandboxes - 1, memory_mib = memory_mib - OLD.memory_mib, vcpus = vcpus - OLD.vcpus
        WHERE driver = OLD.driver AND OLD.state NOT IN ('deleted', 'failed');
    INSERT INTO usage SELECT NEW.driver, 1, NEW.memory_mib, NEW.vcpus WHERE NEW.state NOT IN ('deleted', 'failed')
        ON CONFLICT (driver) DO UPDATE SET sandboxes = sandboxes + 1, memory_mib = memory_mib + excluded.memory_mib, vcpus = vcpus + excluded.vcpus;
END;
-- +goose StatementEnd
