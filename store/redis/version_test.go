package redis

import "testing"

// Valkey says a version of Redis, too.
func TestVersionOf(t *testing.T) {
	for want, info := range map[string]map[string]string{
		"7.0.15":       {"redis_version": "7.0.15"},
		"Valkey 8.1.1": {"redis_version": "7.2.4", "valkey_version": "8.1.1", "server_name": "valkey"},
	} {
		if got := versionOf(info); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
