package main

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
)

// storeServer is the one server of a fleet.
type storeServer struct {
	name, url string
	// failure says what failOver does to it.
	failure  string
	failOver func() error
	// counts are what the server counts.
	counts func() (serverCounts, error)
	// cpu is the processor time that it has used, of all its processes.
	cpu  func() (time.Duration, error)
	stop func()
}

// serverCounts are statements or requests so far, and the connections and listeners of the moment.
type serverCounts struct{ requests, connections, listeners int64 }

// A server of a fleet has room for so many connections.
const perSidecar, spareConnections = 5, 100

func (b *bench) fleetPostgres(sidecars int) (*storeServer, error) {
	cluster, url, err := b.database(pgtest.WithSetting("max_connections", strconv.Itoa(perSidecar*sidecars+spareConnections)))
	if err != nil {
		return nil, err
	}
	c, err := b.counter(url)
	if err != nil {
		cluster.Stop()
		return nil, err
	}
	s := &storeServer{name: "PostgreSQL", url: url, failure: "the server is stopped, started as a standby, and promoted: all connections break, and it has another history"}
	var before time.Duration // of the server before a failover
	s.cpu = func() (time.Duration, error) {
		now, err := c.serverCPU()
		return before + now, err
	}
	s.failOver = func() error {
		used, err := s.cpu()
		if err != nil {
			return err
		}
		c.close()
		if err := cluster.FailOver(); err != nil {
			return err
		}
		before = used
		c, err = b.counter(url)
		return err
	}
	s.counts = func() (n serverCounts, err error) {
		if n.requests, _, err = c.count(""); err != nil {
			return n, err
		}
		if n.connections, err = c.number("SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"); err != nil {
			return n, err
		}
		// The last statement of a connection that listens is LISTEN.
		n.listeners, err = c.number("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%LISTEN%' AND pid <> pg_backend_pid()")
		return n, err
	}
	s.stop = func() { c.close(); cluster.Stop() }
	return s, nil
}

// peerServer is a server of one process that can be killed and started again.
func (b *bench) peerServer(name, scheme string, start starter) (*storeServer, string, error) {
	p, address, err := b.startPeer(start)
	if err != nil {
		return nil, "", err
	}
	var before time.Duration // of the processes that have ended
	s := &storeServer{name: name, url: scheme + address, failure: "the server is killed, and started again on its files"}
	s.cpu = func() (time.Duration, error) {
		now, err := p.cpu()
		return before + now, err
	}
	s.failOver = func() error {
		used, err := p.cpu()
		if err != nil {
			return err
		}
		before += used
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		_ = p.cmd.Wait()
		cmd := exec.Command(p.cmd.Args[0], p.cmd.Args[1:]...)
		if err := cmd.Start(); err != nil {
			return err
		}
		p.cmd = cmd
		for range 2000 {
			if c, err := net.Dial("tcp", address); err == nil {
				return c.Close()
			}
			if err := b.rest(10 * time.Millisecond); err != nil {
				return err
			}
		}
		return errors.New("it did not come back")
	}
	s.stop = func() { p.stop() }
	return s, address, nil
}

func (b *bench) fleetEtcd(int) (*storeServer, error) {
	s, address, err := b.peerServer("etcd", "etcd://", startEtcd)
	if err != nil {
		return nil, err
	}
	files := int64(-1) // which it has open without any sidecar
	s.counts = func() (n serverCounts, err error) {
		answer, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			return n, err
		}
		defer func() { _ = answer.Body.Close() }()
		for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), " ")
			f, err := strconv.ParseFloat(value, 64)
			switch {
			case err != nil:
			case strings.HasPrefix(name, "grpc_server_msg_received_total{"): // those of streams, too
				n.requests += int64(f)
			case name == "etcd_debugging_mvcc_watcher_total":
				n.listeners = int64(f)
			case name == "process_open_fds":
				n.connections = int64(f)
			}
		}
		if files < 0 {
			files = n.connections
		}
		n.connections -= files
		return n, nil
	}
	return s, nil
}

func (b *bench) fleetRedis(sidecars int) (*storeServer, error) {
	s, address, err := b.peerServer("Redis", "redis://", startRedis("--appendonly", "yes", "--maxclients", strconv.Itoa(perSidecar*sidecars+spareConnections)))
	if err != nil {
		return nil, err
	}
	client := goredis.NewClient(&goredis.Options{Addr: address, Protocol: 2, DisableIdentity: true})
	s.counts = func() (n serverCounts, err error) {
		if n.requests, err = redisRequests(b.ctx, client); err != nil {
			return n, err
		}
		all, err := client.ClientList(b.ctx).Result()
		if err != nil {
			return n, err
		}
		n.connections = int64(strings.Count(all, "\n")) - 1
		subscribed, err := client.Do(b.ctx, "CLIENT", "LIST", "TYPE", "pubsub").Text()
		n.listeners = int64(strings.Count(subscribed, "\n"))
		return n, err
	}
	end := s.stop
	s.stop = func() { _ = client.Close(); end() }
	return s, nil
}

// fleetMariaDB is only for the measures that need no counts.
func (b *bench) fleetMariaDB(int) (*storeServer, error) {
	m, err := startMariaDB()
	if err != nil {
		return nil, err
	}
	return &storeServer{
		name: "MariaDB", url: m.url, cpu: m.cpu, stop: m.stop,
		counts: func() (n serverCounts, err error) {
			var name string
			ctx, cancel := context.WithTimeout(b.ctx, 10*time.Second)
			defer cancel()
			err = m.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n.requests)
			if err == nil {
				err = m.db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Threads_connected'").Scan(&name, &n.connections)
			}
			return n, err
		},
	}, nil
}
