-- +goose Up

-- A record of package cas. The name is NAMESPACE/KEY, so one namespace, and one type of keys in it, are a range of the
-- primary key. leases are the ids of the leases that data names, 16 bytes each.
CREATE TABLE IF NOT EXISTS locksidecar_locks (
    name    VARBINARY(1536) NOT NULL PRIMARY KEY,
    -- The version is also the first token that the last swap reserved, and tokens is how many it reserved.
    version BIGINT          NOT NULL,
    tokens  INT             NOT NULL,
    -- The number of the request that wrote the record.
    swap_id BIGINT          NOT NULL,
    leases  MEDIUMBLOB      NOT NULL,
    data    MEDIUMBLOB      NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- A lease is alive until expires_at, and dead when its row is gone. The instance is empty for leases of single locks.
-- Times are microseconds since 1970 by the server's clock.
CREATE TABLE IF NOT EXISTS locksidecar_leases (
    id         BINARY(16)     NOT NULL PRIMARY KEY,
    instance   VARBINARY(512) NOT NULL,
    ttl        BIGINT         NOT NULL,
    expires_at BIGINT         NOT NULL,
    KEY instance (instance)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Letters to instances. Their reader deletes them.
CREATE TABLE IF NOT EXISTS locksidecar_letters (
    id      BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    mailbox VARBINARY(512)  NOT NULL,
    name    VARBINARY(1536) NOT NULL,
    base    BIGINT          NOT NULL,
    body    MEDIUMBLOB      NOT NULL,
    sent_at BIGINT          NOT NULL,
    KEY mailbox (mailbox, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row. server is the server that wrote history, and history names the time in which nothing was forgotten. Tokens of
-- deleted records are below token_floor. longest_ttl is that of the leases of instances, noted before they are opened.
CREATE TABLE IF NOT EXISTS locksidecar_meta (
    id             TINYINT        NOT NULL PRIMARY KEY,
    schema_version INT            NOT NULL,
    oldest         INT            NOT NULL,
    server         VARBINARY(255) NOT NULL,
    history        BINARY(16)     NOT NULL,
    -- began orders histories: a later one began later. outdated is when a later one began elsewhere, which this server missed.
    began          BIGINT         NOT NULL,
    outdated       BIGINT         NOT NULL,
    quiet_until    BIGINT         NOT NULL,
    longest_ttl    BIGINT         NOT NULL,
    longest_at     BIGINT         NOT NULL,
    token_floor    BIGINT         NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO locksidecar_meta
    (id, schema_version, oldest, server, history, began, outdated, quiet_until, longest_ttl, longest_at, token_floor)
    VALUES (1, 1, 1, '', X'00000000000000000000000000000000', 0, 0, 0, 0, 0, 0);
