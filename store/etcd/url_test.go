package etcd_test

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/store/etcd"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for raw, allowed := range map[string]bool{
		"etcd://host":                        true,
		"etcd://host:2379/prefix":            true,
		"etcd://[::1]:2379/a/deep/one/":      true,
		"etcd://a,b:1,c/p":                   true,
		"etcds://host":                       true,
		"etcd://user:secret@host":            true,
		"etcd://":                            false,
		"etcd:host":                          false,
		"etcd://a,,b":                        false,
		"http://host":                        false,
		"etcd://user@host":                   false,
		"etcd://:secret@host":                false,
		"etcd://user:@host":                  false,
		"etcd://host?ssl=true":               false,
		"etcd://host?cacert=/no/such/secret": false,
		"etcd://host?cert=/a&cert=/b":        false,
		"etcd://host?cert=/dev/null":         false,
		"etcd://host?cacert=/dev/null":       false,
		"etcd://a:1,b/c:2":                   true,
		"etcd://a:1,b:x":                     false,
		"etcd://host#secret":                 false,
		"etcd://user:sec%zzret@host":         false,
	} {
		err := etcd.Check(raw)
		if (err == nil) != allowed {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && strings.Contains(err.Error(), "sec") && !strings.Contains(raw, "cacert") {
			t.Errorf("%s: the error shows the password: %v", raw, err)
		}
	}
}
