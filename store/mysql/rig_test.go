package mysql_test

import (
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
)

// rig is a started backend.
type rig struct {
	*mysql.Backend
	*castest.Rig
}

// open makes an instance with a process of its own.
func (s *server) open(instance string) expecting {
	s.t.Helper()
	return castest.Only(s.t, s.Connect(), instance).(expecting)
}

// start starts an instance, whether a server can be reached or not.
func (s *server) start(instance string) *rig {
	s.t.Helper()
	b := s.open(instance)
	return &rig{b.Backend, castest.Start(s.t, b)}
}

// ready starts an instance and waits until it is ready.
func (s *server) ready(instance string) *rig {
	s.t.Helper()
	r := s.start(instance)
	r.BecomesReady()
	return r
}

func (s *server) logged() *castest.Log {
	l := &castest.Log{}
	s.logger = l.Logger()
	return l
}
