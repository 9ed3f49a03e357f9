package mysql

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	// leastPacket is what the largest swap needs.
	leastPacket = 4 << 20
	// leastRows is more than any statement asks for.
	leastRows = 10_000
	// clockMargin is how much the clocks of two servers may differ, as with PostgreSQL.
	clockMargin = 64 * time.Second
)

// check asks the server how it is, and begins a new history if it is another one.
func (b *Server) check(ctx context.Context) error {
	settings, tables, err := b.readSettings(ctx)
	if err != nil {
		return explain(err)
	}
	server, err := b.suitable(settings)
	if err != nil {
		return err
	}
	b.server.Store(&server)
	migrated := false
	for {
		m, err := b.meta(ctx, tables)
		if outdated := (*outdatedError)(nil); errors.As(err, &outdated) && b.config.AutoMigrate && !migrated {
			if _, _, err := b.migrate(ctx); err != nil {
				return fmt.Errorf("migration: %w", explain(err))
			}
			migrated = true
			if _, tables, err = b.readSettings(ctx); err != nil {
				return explain(err)
			}
			continue
		}
		if tooOld := (*TooOldError)(nil); errors.As(err, &tooOld) && b.config.TooOld != nil {
			b.config.TooOld(err)
		}
		if err != nil || m.same {
			return err
		}
		if err := b.newHistory(ctx, m.server); err != nil {
			return explain(err)
		}
	}
}

// readSettings reads the server's settings, and the engines of the tables.
func (b *Server) readSettings(ctx context.Context) (settings, tables map[string]string, err error) {
	p := &packet{}
	p.add("end_other")
	p.add("settings")
	p.add("tables")
	p.add("end_other")
	found, _, err := b.send(ctx, b.main, "check", p)
	if err != nil {
		return nil, nil, err
	}
	if len(found) != 2 {
		return nil, nil, errFormat
	}
	maps := [2]map[string]string{{}, {}}
	for i := range maps {
		for _, row := range found[i] {
			maps[i][strings.ToLower(string(row[0]))] = string(row[1])
		}
	}
	return maps[0], maps[1], nil
}

// suitable refuses servers that cannot keep locks, warns about settings that may forget some, and returns how SQL names
// the server.
func (b *Server) suitable(settings map[string]string) (server string, err error) {
	is := func(name, value string) bool { return strings.EqualFold(settings[name], value) }
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(settings[name], 10, 64)
		return n
	}
	maria, err := version(settings["version"])
	switch {
	case err != nil:
		return "", err
	case is("read_only", "ON"), is("super_read_only", "ON"):
		return "", errors.New("the server is read-only: is it a replica? The store's URL must lead to the primary")
	case is("wsrep_on", "ON"):
		return "", errors.New("the server is a node of a Galera cluster: its row locks and reads are not those of the cluster, so locks are not safe there")
	case is("log_bin", "ON") && is("binlog_format", "STATEMENT"):
		return "", errors.New("binlog_format is STATEMENT: InnoDB refuses transactions with READ COMMITTED then; set it to ROW or MIXED")
	case number("sql_select_limit") > 0 && number("sql_select_limit") < leastRows:
		return "", fmt.Errorf("sql_select_limit is %d: answers would lack rows, and leases that are left out would count as dead; at least %d is needed",
			number("sql_select_limit"), leastRows)
	case number("max_allowed_packet") < leastPacket:
		return "", fmt.Errorf("max_allowed_packet is %d; at least %d is needed", number("max_allowed_packet"), leastPacket)
	}
	if !is("innodb_flush_log_at_trx_commit", "1") {
		b.WarnOnce("innodb_flush_log_at_trx_commit", "innodb_flush_log_at_trx_commit is not 1: a crash of the server's machine may forget the grants of the last moments, and then two sessions may hold a lock",
			slog.String("value", settings["innodb_flush_log_at_trx_commit"]))
	}
	if is("log_bin", "ON") && !is("sync_binlog", "1") {
		b.WarnOnce("sync_binlog", "sync_binlog is not 1: after a crash of the server's machine a replica may lack grants that the primary has",
			slog.String("value", settings["sync_binlog"]))
	}
	b.tell(settings)
	if maria {
		return "CONCAT('server_id ', @@global.server_id)", nil
	}
	return "@@global.server_uuid", nil
}

// version refuses servers without SKIP LOCKED.
func version(text string) (maria bool, err error) {
	var major, minor, patch int
	if _, err := fmt.Sscanf(text, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return false, fmt.Errorf("the server's version %q is not understood", text)
	}
	maria = strings.Contains(strings.ToLower(text), "mariadb")
	if maria && (major < 10 || major == 10 && minor < 6) || !maria && major < 8 {
		return false, fmt.Errorf("the server is %s; locksidecar needs MySQL 8.0 or MariaDB 10.6, or later", text)
	}
	return maria, nil
}

// meta is the row of locksidecar_meta.
type meta struct {
	server []byte
	same   bool // this server has written the history
}

func (b *Server) meta(ctx context.Context, tables map[string]string) (m meta, err error) {
	if tables["locksidecar_meta"] == "" {
		return m, &outdatedError{errors.New("the database has no tables of locksidecar: run `locksidecar migrate`")}
	}
	for name, engine := range tables {
		if !strings.EqualFold(engine, "InnoDB") && name != versionTable {
			return m, fmt.Errorf("the table %s has the engine %q; it must be InnoDB, because others have no transactions", name, engine)
		}
	}
	p := &packet{server: *b.server.Load()}
	p.add("end_other")
	p.add("meta")
	p.add("end_other")
	found, _, err := b.send(ctx, b.main, "check", p)
	switch {
	case err != nil:
		return m, explain(err)
	case len(found) != 1:
		return m, errFormat
	case len(found[0]) != 1:
		return m, &outdatedError{errMetaLost}
	}
	row := found[0][0]
	have, err := strconv.Atoi(string(row[0]))
	oldest, err2 := strconv.Atoi(string(row[1]))
	began, err3 := strconv.ParseInt(string(row[4]), 10, 64)
	outdated, err4 := strconv.ParseInt(string(row[5]), 10, 64)
	if err := errors.Join(err, err2, err3, err4, problem(have, oldest)); err != nil {
		return m, err
	}
	m = meta{server: row[2], same: string(row[3]) == "1"}
	if m.same && began < max(outdated, b.latest.began.Load()) {
		_, _, err := b.send(ctx, b.main, "outdate", b.outdate())
		return m, b.oldPrimary(err)
	}
	return m, nil
}

// outdate is a packet that notes on an old primary that there is a later one, for sidecars that have not seen that.
func (b *Server) outdate() *packet {
	later := b.latest.began.Load()
	p := &packet{}
	p.add("end_other")
	p.add("isolation")
	p.add("begin")
	p.add("outdate", later, later)
	p.add("commit")
	return p
}

// oldPrimary says that the server is one. err: it could not be noted there.
func (b *Server) oldPrimary(err error) error {
	if err != nil {
		b.Log.Warn("an old primary could not be marked as such: other sidecars may still use it", "error", err)
	}
	return errOldPrimary
}

// newHistory begins a history on this server, unless another sidecar has done so.
func (b *Server) newHistory(ctx context.Context, before []byte) error {
	// The first server of all follows nobody, and forgets nothing.
	quiet, margin := 1, clockMargin
	if first := len(before) == 0 && b.latest.began.Load() == 0; first {
		quiet, margin = 0, 0
	} else if b.config.Quick {
		quiet = 0
	}
	history := uuid.New()
	p := &packet{server: *b.server.Load()}
	p.add("end_other")
	p.add("isolation")
	p.add("begin")
	p.add("new_history", quiet, b.longest.Load(), margin.Microseconds(), history[:], b.latest.began.Load(), before)
	p.add("commit")
	_, _, err := b.send(ctx, b.main, "new_history", p)
	if err == nil && len(before) > 0 {
		b.Log.Warn("another server has been promoted", "before", string(before))
	}
	return err
}
