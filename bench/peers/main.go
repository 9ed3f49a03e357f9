// Command peers loads what others lock with, as cmd bench's own load processes load
// the sidecar: one operation is a lock that is acquired and released. It is a module
// of its own, so that etcd's client is none of the sidecar's dependencies.
//
//	peers NAME ADDRESS CONNECTIONS                each locks a key of its own
//	peers NAME ADDRESS CONNECTIONS hot            all want one key: etcd, redis, mysql (a table of locks), mysql-rows (row locks)
//	peers hand-off HOST:PORT TIMES                etcd: from an unlock to the lock of a waiter, in milliseconds
package main

import (
	"fmt"
	"os"
	"strconv"

	"github.com/locksidecar/locksidecar/bench/internal/load"
)

// peer prepares workers, each of which acquires and releases a lock of its own, or all of them
// the same one (hot); end closes their connections.
type peer func(address string, workers int, hot bool) (operations []func() error, end func(), err error)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// keyOf is the key of a worker.
func keyOf(worker int, hot bool) string {
	if hot {
		return "bench:hot"
	}
	return fmt.Sprintf("bench:%d", worker)
}

func run(args []string) error {
	const usage = "peers etcd|redis|mysql|mysql-rows ADDRESS CONNECTIONS [hot], or hand-off HOST:PORT TIMES"
	hot := len(args) == 4 && args[3] == "hot"
	if len(args) != 3 && !hot {
		return fmt.Errorf("usage: %s", usage)
	}
	if args[0] == "hand-off" {
		times, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return handOffs(args[1], times, os.Stdout)
	}
	known, ok := map[string]peer{"etcd": etcd, "redis": redis, "mysql": mysqlTable, "mysql-rows": mysqlRows}[args[0]]
	if !ok {
		return fmt.Errorf("usage: %s", usage)
	}
	workers, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	operations, end, err := known(args[1], workers, hot)
	defer end()
	if err != nil {
		return err
	}
	return load.Serve(os.Stdin, os.Stdout, operations)
}
