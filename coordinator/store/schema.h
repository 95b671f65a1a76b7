// The tables. States are the IDL's numbers; times are milliseconds since 1970. A change of this text that an older file
// cannot bear raises kSchemaVersion, and the store refuses the older file by name.
#pragma once

namespace fenwick {

inline constexpr int kSchemaVersion = 1;

inline constexpr const char* kSchema = R"sql(
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    client TEXT NOT NULL,
    key TEXT,
    spec BLOB NOT NULL,
    spec_hash TEXT NOT NULL,
    state INTEGER NOT NULL,
    target INTEGER NOT NULL,
    name TEXT NOT NULL,
    priority INTEGER NOT NULL,
    created INTEGER NOT NULL,
    started INTEGER NOT NULL DEFAULT 0,
    finished INTEGER NOT NULL DEFAULT 0,
    expires INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    model_name TEXT NOT NULL,
    model_path TEXT NOT NULL,
    model_hash TEXT NOT NULL,
    device TEXT NOT NULL,
    dtype TEXT NOT NULL,
    bos INTEGER NOT NULL,
    levels TEXT NOT NULL,
    tokenizer TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    listed INTEGER NOT NULL DEFAULT 0,
    error_code INTEGER NOT NULL DEFAULT 0,
    error_message TEXT NOT NULL DEFAULT '',
    files TEXT NOT NULL DEFAULT '[]',
    queued INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0,
    tokens_done INTEGER NOT NULL DEFAULT 0,
    used_tokens INTEGER NOT NULL DEFAULT 0,
    used_scored INTEGER NOT NULL DEFAULT 0,
    used_computed INTEGER NOT NULL DEFAULT 0,
    used_rank_seconds REAL NOT NULL DEFAULT 0,
    used_gpu_seconds REAL NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX jobs_by_key ON jobs (client, key) WHERE key IS NOT NULL;
CREATE INDEX jobs_by_state ON jobs (state, priority DESC, number);
CREATE INDEX jobs_by_client ON jobs (client, number);

CREATE TABLE documents (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job TEXT NOT NULL,
    place INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    source TEXT NOT NULL,
    line INTEGER NOT NULL,
    error TEXT NOT NULL,
    content INTEGER NOT NULL,
    content_path TEXT NOT NULL,
    byte_offset INTEGER NOT NULL,
    byte_length INTEGER NOT NULL,
    element_bytes INTEGER NOT NULL,
    is_signed INTEGER NOT NULL,
    state INTEGER NOT NULL DEFAULT 1,
    tokens INTEGER NOT NULL DEFAULT -1,
    input_hash TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    gang TEXT NOT NULL DEFAULT '',
    position INTEGER NOT NULL DEFAULT 0,
    rate REAL NOT NULL DEFAULT 0,
    saved_position INTEGER NOT NULL DEFAULT 0,
    saved_at INTEGER NOT NULL DEFAULT 0,
    nll_total REAL NOT NULL DEFAULT 0,
    state_bytes INTEGER NOT NULL DEFAULT 0,
    state_hash TEXT NOT NULL DEFAULT '',
    state_file TEXT NOT NULL DEFAULT '',
    seconds REAL NOT NULL DEFAULT 0,
    error_code INTEGER NOT NULL DEFAULT 0,
    error_message TEXT NOT NULL DEFAULT '',
    row TEXT NOT NULL DEFAULT '');
CREATE UNIQUE INDEX documents_by_place ON documents (job, place);
CREATE INDEX documents_by_state ON documents (job, state, place);
CREATE INDEX documents_by_name ON documents (job, custom_id);
CREATE INDEX documents_running ON documents (state) WHERE state = 2;

-- The counts of a job follow its documents, whoever moves them.
CREATE TRIGGER documents_added AFTER INSERT ON documents BEGIN
    UPDATE jobs SET queued = queued + 1 WHERE id = new.job;
END;
CREATE TRIGGER documents_moved AFTER UPDATE OF state ON documents WHEN old.state <> new.state BEGIN
    UPDATE jobs SET
        queued = queued - (old.state = 1) + (new.state = 1), running = running - (old.state = 2) + (new.state = 2),
        completed = completed - (old.state = 3) + (new.state = 3), failed = failed - (old.state = 4) + (new.state = 4),
        cancelled = cancelled - (old.state = 5) + (new.state = 5) WHERE id = new.job;
END;
CREATE TRIGGER documents_measured AFTER UPDATE OF tokens, position ON documents BEGIN
    UPDATE jobs SET tokens = tokens - max(old.tokens, 0) + max(new.tokens, 0),
        tokens_done = tokens_done - old.position + new.position WHERE id = new.job;
END;

CREATE TABLE uploads (
    id TEXT PRIMARY KEY,
    client TEXT NOT NULL,
    name TEXT NOT NULL,
    size INTEGER NOT NULL,
    received INTEGER NOT NULL DEFAULT 0,
    committed INTEGER NOT NULL DEFAULT 0,
    expires INTEGER NOT NULL,
    used INTEGER NOT NULL DEFAULT 0);
CREATE INDEX uploads_by_client ON uploads (client, used);

CREATE TABLE gangs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    over INTEGER NOT NULL,
    seen INTEGER NOT NULL,
    info BLOB NOT NULL);
CREATE INDEX gangs_by_over ON gangs (over, number DESC);

CREATE TABLE logs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    time INTEGER NOT NULL,
    level INTEGER NOT NULL,
    job TEXT NOT NULL,
    custom_id TEXT NOT NULL,
    gang TEXT NOT NULL,
    rank INTEGER,
    text TEXT NOT NULL);
CREATE INDEX logs_by_job ON logs (job, sequence);

CREATE TABLE usage (
    client TEXT PRIMARY KEY,
    tokens INTEGER NOT NULL DEFAULT 0,
    scored INTEGER NOT NULL DEFAULT 0,
    computed INTEGER NOT NULL DEFAULT 0,
    rank_seconds REAL NOT NULL DEFAULT 0,
    gpu_seconds REAL NOT NULL DEFAULT 0,
    jobs INTEGER NOT NULL DEFAULT 0,
    documents INTEGER NOT NULL DEFAULT 0);
)sql";

}  // namespace fenwick
