package mysql_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/testing/await"
	"github.com/locksidecar/locksidecar/internal/testing/mysqltest"
	"github.com/locksidecar/locksidecar/store"
	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
)

// spoiled is what another client of a pooler leaves in a session: a transaction with an old snapshot that may not write, and
// settings with which nothing would be committed, or only sometimes.
const spoiled = "SET SESSION completion_type = 'CHAIN', autocommit = 0, time_zone = '+03:00', innodb_lock_wait_timeout = 1; " +
	"SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; START TRANSACTION READ ONLY; SELECT 1 FROM information_schema.tables LIMIT 1"

// A pooler gives each packet another session, in any state. Nothing of a session is needed.
// Proves: A8
func TestBackendBehindAPooler(t *testing.T) {
	t.Parallel()
	castest.Run(t, func(t *testing.T) castest.Server {
		s := on(t, shared)
		s.url = s.At(mysqltest.NewPooler(t, shared, spoiled).Address) // its sessions are in this database
		return s
	})
}

// MySQL Router passes packets on. Where it shares connections, Router 9 forbids several statements in a packet, and the sidecar says so. Router 8.0
// carries them out. It is not for MariaDB.
func TestMySQLRouter(t *testing.T) {
	t.Parallel()
	if !mysqltest.IsMySQL() {
		return
	}
	works := func(t *testing.T, address string) {
		t.Helper()
		castest.Run(t, func(t *testing.T) castest.Server {
			s := on(t, shared)
			s.url = s.Through(address)
			return s
		})
	}
	t.Run("passes on", func(t *testing.T) {
		t.Parallel()
		works(t, mysqltest.StartRouter(t, shared, false))
	})
	t.Run("shares connections", func(t *testing.T) {
		t.Parallel()
		s, address := on(t, shared), mysqltest.StartRouter(t, shared, true)
		s.url = s.Through(address)
		r := s.start("one")
		forbidden := false
		await.Until(t, "the sidecar knows whether it may use the Router", func() bool {
			err := r.Ready()
			forbidden = err != nil && strings.Contains(err.Error(), "connection_sharing=0")
			return err == nil || forbidden
		})
		if !forbidden {
			works(t, address)
		}
	})
}

// If a proxy loses the server during a packet, the server may have carried it out, whatever error the proxy sends.
func TestOutcomeIsUnknownIfAProxyLosesTheServer(t *testing.T) {
	t.Parallel()
	s := on(t, shared)
	pooler := mysqltest.NewPooler(t, shared, "")
	s.url = s.At(pooler.Address)
	r := s.ready("one")
	pooler.Lose(hex.EncodeToString([]byte("ns/lost")))
	if _, err := r.SwapOne(cas.Swap{Key: "ns/lost", Data: []byte("x")}); !store.OutcomeUnknown(err) {
		t.Errorf("a swap whose answer the proxy lost: %v", err)
	}
	pooler.Lose("")
	r.BecomesReady()
	if seen := r.LoadOne("ns/lost"); string(seen.Data) != "x" {
		t.Errorf("the server carried the swap out, and then the record is %+v", seen)
	}
}

// A packet works in a session that another client has left in a transaction, and leaves none itself.
// Proves: A8
func TestPacketsBeginAndEndOutsideOfTransactions(t *testing.T) {
	t.Parallel()
	m := mysqltest.Start(t, mysqltest.WithFlag("--autocommit=0"), mysqltest.WithFlag("--transaction-isolation=SERIALIZABLE"))
	s := on(t, m)
	pooler := mysqltest.NewPooler(t, m, spoiled)
	direct := s.url
	s.url = s.At(pooler.Address)
	one, two := s.ready("one"), s.ready("two")
	s.url = direct
	operator := s.session()
	operator.exec("SET innodb_lock_wait_timeout = 1")
	for i := range 20 {
		now := two.LoadOne("ns/key")
		one.Done(cas.Swap{Key: "ns/key", Version: now.Version, Data: []byte{byte(i)}})
		if seen := two.LoadOne("ns/key"); len(seen.Data) != 1 || seen.Data[0] != byte(i) {
			t.Fatalf("swap %d was answered, and another session reads %+v", i, seen)
		}
		operator.exec("UPDATE locksidecar_locks SET data = data") // no read and no swap has left it locked
	}
	if pooler.Switched() < 20 {
		t.Errorf("%d transactions got another session", pooler.Switched())
	}
}
