package measure

import (
	"net"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/wire"
)

const page = "# HELP x what it is\nx{type=\"a\",pod=\"p q\"} 2\nx{type=\"b\"} 3\nxy 1e+06\n"

// TestFigures: every figure is read, with its labels, and no other counts in a sum.
func TestFigures(t *testing.T) {
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	go func() {
		_, _ = there.Read(make([]byte, 1<<10)) // the request comes in one piece
		_, _ = there.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + page))
		_ = there.Close()
	}()
	c := wire.New(here)
	f, err := FiguresOf(c)
	if err != nil {
		t.Fatal(err)
	}
	if len(f) != 3 || f["xy"] != 1e6 || f.Sum("x", "") != 5 || f.Sum("x", `type="b"`) != 3 || f.Sum("x", "p q") != 2 {
		t.Errorf("%v", f)
	}
}

// TestQuantile: of a hundred, and of none.
func TestQuantile(t *testing.T) {
	var times Times
	for i := range 100 {
		times = append(times, time.Duration(100-i))
	}
	if times.Quantile(0.5) != 51 || times.Quantile(0.99) != 100 || times.Quantile(0) != 1 || Times(nil).Quantile(0.5) != 0 {
		t.Errorf("%d %d %d", times.Quantile(0), times.Quantile(0.5), times.Quantile(0.99))
	}
}
