package mysql_test

import (
	"testing"

	"github.com/locksidecar/locksidecar/store/cas"
	"github.com/locksidecar/locksidecar/store/cas/castest"
	"github.com/locksidecar/locksidecar/store/mysql"
)

// TestViews: the instances of a process, which share connections, keep all rules among themselves.
func TestViews(t *testing.T) {
	t.Parallel()
	castest.RunViews(t, func(t *testing.T) cas.Server {
		server, err := mysql.NewServer(mysql.Config{ServerConfig: cas.ServerConfig{URL: on(t, shared).url}, AutoMigrate: true})
		if err != nil {
			t.Fatal(err)
		}
		return expectingViews{server}
	})
}

// expectingViews are views that expect letters all the time: see expecting.
type expectingViews struct{ *mysql.Server }

func (v expectingViews) View(instance string) cas.Backend {
	return expecting{v.Server.View(instance).(*mysql.Backend)}
}
