package stored

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/locksidecar/locksidecar/store/cas"
)

// MySQL looks at what sidecars of the default namespace keep in a database.
func MySQL(connect func() (*sql.DB, error)) View { return records{&database{connect: connect}} }

type database struct {
	connect func() (*sql.DB, error)
	db      *sql.DB
}

func (d *database) look(ctx context.Context) ([]*seen, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	if d.db == nil {
		db, err := d.connect()
		if err != nil {
			return nil, err
		}
		d.db = db
	}
	found, err := d.read(ctx)
	if err != nil {
		d.Close()
		return nil, err
	}
	return []*seen{found}, nil
}

// read reads all at one moment.
func (d *database) read(ctx context.Context) (*seen, error) {
	tx, err := d.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	found := newSeen()
	if err := found.locks(ctx, tx); err != nil {
		return nil, err
	}
	err = found.leases(ctx, tx)
	return found, err
}

func (s *seen) locks(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, "SELECT name, version, tokens, leases, data FROM locksidecar_locks ORDER BY name")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var kept cas.Record
		var leases []byte
		if err := rows.Scan(&kept.Key, &kept.Version, &kept.Tokens, &leases, &kept.Data); err != nil {
			return err
		}
		kept.Base = kept.Version
		for id := range slices.Chunk(leases, len(uuid.UUID{})) {
			kept.Leases = append(kept.Leases, uuid.UUID(id))
		}
		if err := s.record(kept.Key, &kept); err != nil {
			return fmt.Errorf("%s: %w", kept.Key, err)
		}
	}
	return rows.Err()
}

func (s *seen) leases(ctx context.Context, tx *sql.Tx) error {
	rows, err := tx.QueryContext(ctx, "SELECT id, instance FROM locksidecar_leases WHERE expires_at > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))")
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var raw []byte
		var instance string
		if err := rows.Scan(&raw, &instance); err != nil {
			return err
		}
		id := uuid.UUID(raw)
		if s.alive[id] = true; instance != "" {
			s.opened[id] = instance
		}
	}
	return rows.Err()
}

// Close ends the connection.
func (d *database) Close() {
	if d.db != nil {
		_ = d.db.Close()
		d.db = nil
	}
}
