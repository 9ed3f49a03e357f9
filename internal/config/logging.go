package config

import (
	"errors"
	"log/slog"
)

// Logging reads the level and format of the log, for a process that is no sidecar and
// needs nothing else of its configuration.
func Logging(src Source) (slog.Level, LogFormat, error) {
	lookup := src.withDefaults().Lookuper.Lookup
	value := func(variable, otherwise string) string {
		if set, ok := lookup(Prefix + variable); ok {
			return set
		}
		return otherwise
	}
	var c check
	level := c.level("LOG_LEVEL", value("LOG_LEVEL", "info"))
	format := oneOf(&c, "LOG_FORMAT", value("LOG_FORMAT", string(LogJSON)), LogJSON, LogText)
	return level, format, errors.Join(c.errs...)
}
