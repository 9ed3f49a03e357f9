package load

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// waiting are all lines. A waiter that has an outcome waits no more.
const waiting = `SELECT key, id, coalesce(data, '{}') FROM locksidecar.waiters WHERE outcome IS NULL ORDER BY key, id`

// Observe notes who stands in line for what, as the database shows it, every so often and
// until ctx ends. It needs a way to the database that takes no part in the faults, and
// goes on when that is gone for a while, as after a kill of the server.
func Observe(ctx context.Context, url string, every time.Duration, rec *history.Recorder) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		if conn == nil {
			conn, _ = pgx.Connect(ctx, url)
		}
		if conn != nil && observe(ctx, conn, rec) != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
			conn = nil
		}
		rest(ctx, every)
	}
	if conn != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

// observe notes all lines in which there is an order to see. They are seen at one moment
// between the times that are noted.
func observe(ctx context.Context, conn *pgx.Conn, rec *history.Recorder) error {
	limited, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	asked := history.Now()
	rows, err := conn.Query(limited, waiting)
	if err != nil {
		return err
	}
	lines := make(map[string][]history.Place)
	var key, data string
	var place history.Place
	_, err = pgx.ForEachRow(rows, []any{&key, &place.Number, &data}, func() error {
		var req struct{ Op string }
		if err := json.Unmarshal([]byte(data), &req); err != nil {
			return err
		}
		place.ID = req.Op
		lines[key] = append(lines[key], place)
		return nil
	})
	if err != nil {
		return err
	}
	answered := history.Now()
	for key, line := range lines {
		if len(line) > 1 {
			rec.Add(history.Op{Kind: history.Line, Key: key, Call: asked, Return: answered, Line: line})
		}
	}
	return nil
}
