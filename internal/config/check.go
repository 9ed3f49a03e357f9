package config

import (
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// check collects what is wrong. Its methods parse one value each and return the
// zero value for a bad one.
type check struct{ errs []error }

// bad notes that a variable's value is not what is allowed.
func (c *check) bad(variable, value, allowed string) {
	c.badFull(Prefix+variable, value, allowed)
}

func (c *check) badFull(full, value, allowed string) {
	c.errs = append(c.errs, fmt.Errorf("%s is %q; allowed: %s", full, value, allowed))
}

func (c *check) duration(variable, value string, low, high time.Duration) time.Duration {
	d, err := time.ParseDuration(value)
	if err != nil || d < low || d > high {
		c.bad(variable, value, fmt.Sprintf("a duration from %s to %s, such as 1500ms, 15s or 1h30m", short(low), short(high)))
		return 0
	}
	return d
}

// short writes a duration without its zero parts: 24h, not 24h0m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func (c *check) integer(variable, value string, low, high int) int {
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		c.bad(variable, value, fmt.Sprintf("a whole number from %d to %d", low, high))
		return 0
	}
	return n
}

func (c *check) boolean(variable, value string) bool {
	switch strings.ToLower(value) {
	case "true", "1":
		return true
	case "false", "0":
		return false
	}
	c.bad(variable, value, "true or false")
	return false
}

func oneOf[T ~string](c *check, variable, value string, allowed ...T) T {
	if slices.Contains(allowed, T(value)) {
		return T(value)
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	c.bad(variable, value, strings.Join(words, ", "))
	return ""
}

func (c *check) level(variable, value string) slog.Level {
	switch strings.ToLower(value) {
	case "debug":
		return slog.LevelDebug
	case "info":
		return slog.LevelInfo
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	}
	c.bad(variable, value, "debug, info, warn, error")
	return 0
}

// sizeUnits are the units of a size. Only those that are unmistakable.
var sizeUnits = []struct {
	suffix string
	bytes  int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"B", 1}, {"", 1}}

func (c *check) size(variable, value string, low, high int) int {
	for _, unit := range sizeUnits {
		digits, ok := strings.CutSuffix(value, unit.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(digits)
		if err == nil && n > 0 && n <= high/unit.bytes && n*unit.bytes >= low {
			return n * unit.bytes
		}
		break
	}
	c.bad(variable, value, fmt.Sprintf("a size from %dKiB to %dMiB, such as 64KiB, 1MiB or 65536", low>>10, high>>20))
	return 0
}

func (c *check) socket(variable, value string) string {
	switch {
	case !filepath.IsAbs(value):
		c.bad(variable, value, "an absolute path")
	case strings.ContainsRune(value, 0) || strings.HasSuffix(value, "/"):
		c.bad(variable, value, "the path of a file")
	case len(value) > maxSocketBytes:
		c.bad(variable, value, fmt.Sprintf("a path of at most %d bytes (this one has %d): the system allows no longer one for a Unix socket",
			maxSocketBytes, len(value)))
	default:
		return value
	}
	return ""
}

func (c *check) fileMode(variable, value string) fs.FileMode {
	mode, err := strconv.ParseUint(value, 8, 32)
	if err != nil || mode&^0o777 != 0 || mode&0o600 != 0o600 {
		c.bad(variable, value, "an octal mode in which the owner may read and write, such as 0660 or 0600")
		return 0
	}
	return fs.FileMode(mode)
}

func (c *check) uids(variable, value string) []uint32 {
	if value == "" {
		return nil
	}
	var uids []uint32
	for part := range strings.SplitSeq(value, ",") {
		uid, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil || uid > maxUID {
			c.bad(variable, value, "user ids separated by commas, such as 1000,1001")
			return nil
		}
		uids = append(uids, uint32(uid))
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

func (c *check) addr(variable, value string) string {
	if value == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil || !validPort(port) || strings.ContainsAny(host, " /") {
		c.bad(variable, value, "host:port, such as 127.0.0.1:7625, [::1]:7625 or :7625")
		return ""
	}
	return value
}

// loopbackAddr never resolves a name: only what is a loopback address by itself
// can be trusted to stay one.
func (c *check) loopbackAddr(variable, value string) string {
	if value == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(value)
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, ipErr := netip.ParseAddr(host)
	if err != nil || ipErr != nil || !validPort(port) || !ip.IsLoopback() || ip.Zone() != "" {
		c.bad(variable, value, "host:port of a loopback address, such as 127.0.0.1:7624 or [::1]:7624: whoever reaches it may take any lock")
		return ""
	}
	return net.JoinHostPort(host, port)
}

func validPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

func portZero(addr string) bool {
	_, port, _ := net.SplitHostPort(addr)
	return port == "0"
}
