package world

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestAnswersNameTheProxies: a sidecar goes to other servers through its own proxies, and numbers and texts that look like a port stay.
func TestAnswersNameTheProxies(t *testing.T) {
	const slots = "*1\r\n*3\r\n:0\r\n:5460\r\n*3\r\n$9\r\n127.0.0.1\r\n:20001\r\n$2\r\nid\r\n"
	for _, answers := range [][2]string{
		{"-MOVED 3999 127.0.0.1:20001\r\n", "-MOVED 3999 127.0.0.1:31\r\n"},
		{"-ASK 3999 127.0.0.1:20002\r\n", "-ASK 3999 127.0.0.1:32\r\n"},
		{slots, strings.ReplaceAll(slots, ":20001", ":31")},
		{"*3\r\n$1\r\nh\r\n:20001\r\n*1\r\n:20002\r\n", ""},
		{":20001\r\n", ""},
		{"$8\r\n:20001\r\n\r\n", ""},
		{"-ERR 127.0.0.1:20001\r\n", ""},
		{"*2\r\n$-1\r\n*-1\r\n", ""},
	} {
		want := answers[1]
		if want == "" {
			want = answers[0]
		}
		from := bufio.NewReader(strings.NewReader(answers[0] + "+next\r\n"))
		next := renameCluster(map[string]string{"20001": "31", "20002": "32"})
		if got, err := next(from); string(got) != want || err != nil {
			t.Errorf("%q became %q, %v, want %q", answers[0], got, err, want)
		}
		if got, err := next(from); string(got) != "+next\r\n" || err != nil {
			t.Errorf("after %q came %q, %v", answers[0], got, err)
		}
		if _, err := next(from); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
	}
}

// TestAServerIsCutOff: nothing goes over the links of a server that is cut off, in no direction, and a replica that falls behind still gossips.
func TestAServerIsCutOff(t *testing.T) {
	g := newRedisCluster(t, Config{Folder: Folder(t), Logs: t.TempDir()})
	primary := g.Primaries()[0]
	replica, err := g.Replica(primary)
	if err != nil {
		t.Fatal(err)
	}
	has := func(n *RedisNode, what, section, text string) {
		t.Helper()
		if err := await(what, func() error {
			if !n.says(section, text) {
				return errors.New("not yet")
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	end := g.Behind(replica, primary)
	has(primary, "the replica is cut off", "replication", "connected_slaves:0")
	has(replica, "it knows", "replication", "master_link_status:down")
	if !g.clusterSays(primary, "cluster_state:ok") {
		t.Error("the cluster is not complete without replication")
	}
	end()
	has(primary, "the replica is back", "replication", "connected_slaves:1")
	g.Isolate(primary)
	has(primary, "the replica is gone", "replication", "connected_slaves:0")
	has(replica, "the replica is promoted", "replication", "role:master")
	if err := await("the old primary refuses", func() error {
		if g.clusterSays(primary, "cluster_state:ok") {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	g.Rejoin(primary)
	if err := g.Settled(); err != nil {
		t.Error(err)
	}
}
