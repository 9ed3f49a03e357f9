package config

import (
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

type rule[T any] struct {
	allowed string
	parse   func(value string) (parsed T, ok bool)
}

type setting struct {
	allowed string
	set     func(value string) bool
}

func into[T any](field *T, r rule[T]) setting {
	return setting{r.allowed, func(value string) bool {
		parsed, ok := r.parse(value)
		if ok {
			*field = parsed
		}
		return ok
	}}
}

// anything accepts every value, because another check follows.
func anything(allowed string) rule[string] {
	return rule[string]{allowed, func(value string) (string, bool) { return value, true }}
}

// aDuration begins what is allowed for durations.
const aDuration = "a duration"

// MissingUnit is a hint for a duration that is only a number, or empty.
func MissingUnit(value string) string {
	if value == "" || strings.Trim(value, "0123456789.") != "" {
		return ""
	}
	return fmt.Sprintf(" (the unit is missing, as in %[1]ss or %[1]sms)", value)
}

func duration(low, high time.Duration) rule[time.Duration] {
	return rule[time.Duration]{
		fmt.Sprintf(aDuration+" from %s to %s", short(low), short(high)),
		func(value string) (time.Duration, bool) {
			d, err := time.ParseDuration(value)
			return d, err == nil && d >= low && d <= high
		},
	}
}

// short formats a duration without zero parts: 24h, not 24h0m0s.
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

func integer(low, high int) rule[int] {
	return rule[int]{fmt.Sprintf("a whole number from %d to %d", low, high), func(value string) (int, bool) {
		n, err := strconv.Atoi(value)
		return n, err == nil && n >= low && n <= high
	}}
}

var boolean = rule[bool]{"true or false", func(value string) (bool, bool) {
	switch strings.ToLower(value) {
	case "true", "1":
		return true, true
	case "false", "0":
		return false, true
	}
	return false, false
}}

func oneOf[T ~string](allowed ...T) rule[T] {
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	return rule[T]{strings.Join(words, ", "), func(value string) (T, bool) {
		return T(value), slices.Contains(allowed, T(value))
	}}
}

var level = rule[slog.Level]{"debug, info, warn, error", func(value string) (slog.Level, bool) {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, ok := levels[strings.ToLower(value)]
	return l, ok
}}

// size accepts only unambiguous units.
func size(low, high int) rule[int] {
	units := []struct {
		suffix string
		bytes  int
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"B", 1}, {"", 1}}
	return rule[int]{
		fmt.Sprintf("a size from %dKiB to %dMiB, such as 64KiB or 65536", low>>10, high>>20),
		func(value string) (int, bool) {
			for _, unit := range units {
				if digits, ok := strings.CutSuffix(value, unit.suffix); ok {
					n, err := strconv.Atoi(digits)
					return n * unit.bytes, err == nil && n > 0 && n <= high/unit.bytes && n*unit.bytes >= low
				}
			}
			return 0, false
		},
	}
}

// path is the path of a socket, whose length the system limits.
func path(limit int) rule[string] {
	return rule[string]{fmt.Sprintf("the absolute path of a file, at most %d bytes", limit), func(value string) (string, bool) {
		return value, filepath.IsAbs(value) && !strings.ContainsRune(value, 0) && !strings.HasSuffix(value, "/") && len(value) <= limit
	}}
}

var fileMode = rule[fs.FileMode]{
	"an octal mode in which the owner may read and write, such as 0600",
	func(value string) (fs.FileMode, bool) {
		mode, err := strconv.ParseUint(value, 8, 32)
		return fs.FileMode(mode), err == nil && mode&^0o777 == 0 && mode&0o600 == 0o600
	},
}

var uids = rule[[]uint32]{"user ids separated by commas, such as 1000,1001", func(value string) (uids []uint32, ok bool) {
	const last = math.MaxUint32 - 1 // (uid_t)-1 means "no user"
	for part := range strings.SplitSeq(value, ",") {
		uid, err := strconv.ParseUint(strings.TrimSpace(part), 10, 32)
		if err != nil || uid > last {
			return nil, false
		}
		uids = append(uids, uint32(uid))
	}
	slices.Sort(uids)
	return slices.Compact(uids), true
}}

var addr = rule[string]{"host:port, such as 127.0.0.1:7625, [::1]:7625 or :7625", func(value string) (string, bool) {
	host, port, err := net.SplitHostPort(value)
	return value, err == nil && validPort(port) && !strings.ContainsAny(host, " /")
}}

// tcpAddr never resolves a name, because only a literal address cannot change. Package config's relations decide which addresses may be served how.
var tcpAddr = rule[string]{"host:port with a literal address, such as 127.0.0.1:7624, [::1]:7624 or :7624", func(value string) (string, bool) {
	host, port, err := net.SplitHostPort(value)
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, ipErr := netip.ParseAddr(host)
	return net.JoinHostPort(host, port), err == nil && validPort(port) && (host == "" || ipErr == nil && ip.Zone() == "")
}}

// isLoopback reports whether only this machine reaches an address that tcpAddr allows.
func isLoopback(addr string) bool {
	at, err := netip.ParseAddrPort(addr)
	return err == nil && at.Addr().IsLoopback()
}

// filePath is the path of a file that is read at the start and when it changes, so it must not depend on the folder of a command.
var filePath = rule[string]{"the absolute path of a file", func(value string) (string, bool) {
	return value, filepath.IsAbs(value) && !strings.ContainsRune(value, 0)
}}

// maxFolderBytes leaves room for the names of sockets under the folder: MaxSocketBytes is their limit.
const maxFolderBytes = 40

var folderPath = rule[string]{fmt.Sprintf("the absolute path of a folder, at most %d bytes", maxFolderBytes), func(value string) (string, bool) {
	return value, filepath.IsAbs(value) && filepath.Clean(value) == value && len(value) <= maxFolderBytes && !strings.ContainsRune(value, 0)
}}

func validPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

// text accepts texts that can be shown and stored everywhere.
func text(limit int) rule[string] {
	return rule[string]{fmt.Sprintf("1 to %d bytes of UTF-8 without control characters", limit), func(value string) (string, bool) {
		return value, value != "" && len(value) <= limit && utf8.ValidString(value) && !strings.ContainsFunc(value, unicode.IsControl)
	}}
}
