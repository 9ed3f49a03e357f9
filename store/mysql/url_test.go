package mysql_test

import (
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/store/mysql"
)

func TestURL(t *testing.T) {
	t.Parallel()
	for raw, allowed := range map[string]bool{
		"mysql://user@host/db":                                   true,
		"mysql://user:secret@host:3307/db":                       true,
		"mysql://user:secret@a,b:3307,[::1]:3306/db":             true,
		"mysql://user:sec%2Fret@host/db?tls=true":                true,
		"mysql://user:secret@host/db?tls=skip-verify":            true,
		"mysql://user:secret@host/db?tls=false":                  true,
		"mysql://user:secret@host":                               false,
		"mysql://user:secret@host/a/b":                           false,
		"mysql://host/db":                                        false,
		"mysql://user:secret@a,,b/db":                            false,
		"mysql://user:secret@a:1,b:x/db":                         false,
		"mysql://user:sec%zzret@host/db":                         false,
		"mysql://user:secret@host/db#secret":                     false,
		"mysql://user:secret@host/db?tls=secret":                 false,
		"mysql://user:secret@host/db?secret=1":                   false,
		"mysql://user:secret@host/db?cacert=/no/file":            false,
		"mysql://user:secret@host/db?cert=/dev/null":             false,
		"mysql://user:secret@host/db?tls=false&cacert=/dev/null": false,
		"postgres://user:secret@host/db":                         false,
	} {
		err := mysql.Check(raw)
		if (err == nil) != allowed {
			t.Errorf("%s: %v", raw, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") && !strings.Contains(raw, "secret=1") {
			t.Errorf("%s: the error shows the password: %v", raw, err)
		}
	}
}
