package fault

import (
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/pgproxy"
)

var statementKinds = []Kind{
	{Name: "cut-before-send", part: sidecar, weight: 1, least: 2 * time.Second, most: 5 * time.Second, strike: cutAt(pgproxy.BeforeSend)},
	{Name: "cut-after-send", part: sidecar, weight: 2, least: 2 * time.Second, most: 5 * time.Second, strike: cutAt(pgproxy.AfterSend)},
	{Name: "cut-before-commit", part: sidecar, weight: 2, least: 2 * time.Second, most: 5 * time.Second, strike: cutAt(pgproxy.AfterCommandComplete)},
}

// statements are those that change the holder of a lock, or that notify other sidecars of it.
var statements = []string{
	"acquire_one", "acquire_row", "acquire_session", "acquire_rows", "acquire_many",
	"lease_open", "lease_renew", "lease_renew_one", "release_one", "release_many", "release",
	"ask", "cancel_one", "cancel_many", "withdraw", "amend", "downgrade", "adopt", "check", "note_delivery", "signal", "signals_acknowledged",
	"reap_one", "reap_many", "lease_existing", "reap_waited", "reap_rest", "hand_off", "locked", "notify",
}

// cutAt cuts connections at a stage of statements, each once or twice.
func cutAt(stage pgproxy.Stage) func(s *strike) (int, error) {
	return func(s *strike) (int, error) {
		var armed []*pgproxy.Hook
		for _, name := range statements {
			armed = append(armed, s.sidecar().Net.Statements.Cut(pgproxy.Cut{Statement: name, Stage: stage, Times: 1 + s.rng.IntN(2)}))
		}
		bites := s.last(func() (fired int) {
			for _, hook := range armed {
				fired += hook.Fired()
			}
			return fired
		})
		for _, hook := range armed {
			hook.Disarm()
		}
		return bites, nil
	}
}
