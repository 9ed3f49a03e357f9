package pgtest

import (
	"errors"
	"testing"
)

func TestMissingPostgresIsAnError(t *testing.T) {
	defer func(was []string) { places = was }(places)
	places = nil
	t.Setenv("PATH", t.TempDir())
	if _, err := Run(); !errors.Is(err, errMissing) {
		t.Fatalf("Run without PostgreSQL: %v, want what to install", err)
	}
}
