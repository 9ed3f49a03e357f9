package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// limit is a thing that a lock cannot do without, alone: what the machine needs for it.
type limit struct {
	what string
	// do does it once. pid is who else works for it; 0: nobody that is counted.
	do   func() error
	pid  int
	took []float64 // medians of the rounds, in microseconds
	cost []float64 // processor time of pid each, in microseconds
}

// floors measures the steps that no design with these parts can leave out, each alone
// and one at a time, so that a goal can be set beside what it is made of.
func (b *bench) floors() ([]result, error) {
	cluster, url, err := b.database()
	if err != nil {
		return nil, err
	}
	defer cluster.Stop()
	echo, err := b.echo()
	if err != nil {
		return nil, err
	}
	defer echo.stop()
	app, err := dial(echo.socket)
	if err != nil {
		return nil, err
	}
	defer app.close()
	c, err := b.counter(url) // only for its connection
	if err != nil {
		return nil, err
	}
	defer c.close()
	limits, end, err := b.limits(c, app, echo)
	defer end()
	if err != nil {
		return nil, err
	}
	for range b.rounds {
		for _, l := range limits {
			if err := l.round(b.length / time.Duration(len(limits))); err != nil {
				return nil, fmt.Errorf("%s: %w", l.what, err)
			}
		}
	}
	rows := make([]result, len(limits))
	for i, l := range limits {
		rows[i] = l.row()
		b.log.Printf("floor %s: %.1f us, %.1f us of processor time", l.what, median(l.took), median(l.cost))
	}
	return rows, nil
}

// limits are the steps. end is to be called, after an error too.
func (b *bench) limits(c *counter, app *conn, echo *process) (all []*limit, end func(), err error) {
	end = func() {}
	backend, err := c.number("SELECT pg_backend_pid()")
	if err != nil {
		return nil, end, err
	}
	data, err := c.text("SHOW data_directory")
	if err != nil {
		return nil, end, err
	}
	flush, end, err := flusher(filepath.Join(data, "pg_wal"))
	if err != nil {
		return nil, end, err
	}
	request := []byte("PUT /v1/locks/bench:1 HTTP/1.1\r\nHost: b\r\n\r\n")
	statement := func(sql string) func() error {
		return func() error {
			_, err := c.db.Exec(b.ctx, sql)
			return err
		}
	}
	return []*limit{
		{what: "one request of one connection, to an echo over a Unix socket", pid: echo.cmd.Process.Pid, do: func() error { return app.roundTrip(request) }},
		{what: "8 kB written and flushed (O_DSYNC) where WAL lies", do: flush},
		{what: "a round trip to PostgreSQL that does nothing, by pgx", pid: int(backend), do: func() error { return c.db.Ping(b.ctx) }},
		{what: "`SELECT 1` by pgx, prepared", pid: int(backend), do: statement("SELECT 1")},
		// A message in the log is the least that a commit has to flush for.
		{what: "a durable commit of nothing, by pgx", pid: int(backend), do: statement("SELECT pg_logical_emit_message(true, 'bench', '')")},
	}, end, nil
}

// flusher writes the first block of a file again and again, as pg_test_fsync does.
func flusher(folder string) (flush func() error, end func(), err error) {
	file, err := os.OpenFile(filepath.Join(folder, "bench"), os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_DSYNC, 0o600)
	if err != nil {
		return nil, func() {}, err
	}
	end = func() { _ = errors.Join(file.Close(), os.Remove(file.Name())) }
	const size = 16 << 20 // of a segment of WAL
	if _, err := file.Write(make([]byte, size)); err != nil {
		return nil, end, err
	}
	block := make([]byte, 8<<10)
	return func() error {
		_, err := file.WriteAt(block, 0)
		return err
	}, end, nil
}

// round does it again and again for a time.
func (l *limit) round(length time.Duration) error {
	before, err := l.cpu()
	if err != nil {
		return err
	}
	var times []float64
	for began := time.Now(); time.Since(began) < length; {
		from := time.Now()
		if err := l.do(); err != nil {
			return err
		}
		times = append(times, float64(time.Since(from).Nanoseconds())/1000)
	}
	after, err := l.cpu()
	if err != nil {
		return err
	}
	l.took = append(l.took, median(times))
	l.cost = append(l.cost, float64((after-before).Nanoseconds())/1000/float64(len(times)))
	return nil
}

func (l *limit) cpu() (time.Duration, error) {
	if l.pid == 0 {
		return 0, nil
	}
	t, err := readTimes(l.pid)
	return t.own, err
}

func (l *limit) row() result {
	figure := fmt.Sprintf("%.1f µs", median(l.took))
	if l.pid != 0 {
		figure += fmt.Sprintf(", %.1f µs of the server's processor time", median(l.cost))
	}
	return result{id: "floor", what: l.what + ", median", figure: figure, peer: none, ratio: none, goal: none}
}
