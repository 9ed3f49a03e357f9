package exitcode

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	odd := errors.New("odd")
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"none":              {nil, OK},
		"unknown":           {odd, Unexpected},
		"known":             {With(Config, odd), Config},
		"known and wrapped": {fmt.Errorf("wrapped: %w", With(Config, odd)), Config},
		"the outer counts":  {With(Unavailable, With(Config, odd)), Unavailable},
		"a command's":       {StatusError(9), 9},
	} {
		if got := Of(c.err); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if With(Config, nil) != nil {
		t.Error("no error has got a code")
	}
	if err := With(Config, odd); !errors.Is(err, odd) || err.Error() != "odd" {
		t.Errorf("got %v", err)
	}
}

func TestHelpExplainsAll(t *testing.T) {
	for _, code := range []int{OK, Unexpected, Usage, Unavailable, CannotOpen, NoLock, Refused, Config} {
		if !strings.Contains(Help, fmt.Sprintf("\n  %-2d  ", code)) {
			t.Errorf("the help does not explain %d", code)
		}
	}
}
