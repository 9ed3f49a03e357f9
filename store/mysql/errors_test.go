package mysql_test

import (
	"errors"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/locksidecar/locksidecar/store/mysql"
)

// An error of the server, or of a proxy before it, names what an operator must do, and leads to a check of the server if it says that this is not
// the server which the sidecar had checked. The server's own text stays. The one of MySQL Router also has a test with a real Router (TestMySQLRouter), on MySQL only.
func TestErrorsNameTheRemedy(t *testing.T) {
	t.Parallel()
	for number, want := range map[uint16]struct {
		text   string
		checks bool
	}{
		4501: {"connection_sharing=0", true}, // MySQL Router: multi-statements are forbidden
		1290: {"is it a replica", true},
		1836: {"is it a replica", true},
		1792: {"is it a replica", true},
		1142: {"deploy/mysql-roles.sql", true},
		1045: {"refuses the user of the store's URL", true},
		1049: {"refuses the user of the store's URL", false},
		1044: {"refuses the user of the store's URL", false},
		1114: {"no space left", false},
		1021: {"no space left", false},
		1242: {"another server", true},
		1064: {"", false}, // a syntax error: a fault of this package
		2003: {"", true},  // MySQL Router cannot reach the server
		2013: {"", true},  // a proxy has lost the server
	} {
		const own = "the server's own text"
		err := &driver.MySQLError{Number: number, Message: own}
		explained := mysql.Explain(err)
		if !strings.Contains(explained.Error(), want.text) {
			t.Errorf("%d: %q does not say %q", number, explained, want.text)
		}
		if number != 1242 && !errors.Is(explained, err) { // it is an error that a guard made
			t.Errorf("%d: the server's error is lost in %q", number, explained)
		}
		if checks := mysql.Suspicious(err); checks != want.checks {
			t.Errorf("%d: leads to a check: %t", number, checks)
		}
	}
}
