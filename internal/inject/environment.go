package inject

import (
	"slices"
	"strings"
)

const (
	maxEnv     = 4 << 10 // bytes of the annotation
	maxEnvSize = 32      // variables
	envRule    = "lines of NAME=value, each name once, at most 32 lines and 4096 bytes of ASCII; a name is OTEL_… (but not " +
		"OTEL_RESOURCE_ATTRIBUTES), or LOCKSIDECAR_ with RENEW_INTERVAL, STORE_TIMEOUT, CACHE_SIZE, CACHE_TTL, KEEP, BATCH_MAX, " +
		"MAX_SESSIONS, MAX_LOCKS_PER_SESSION, MAX_WAITERS, MAX_BODY, DRAIN_TIMEOUT or LOG_FORMAT"
)

// envLine excludes variables that are the operator's decision: the store, who may call the sidecar, and its
// permissions. The range at its end is all of printable ASCII.
var envLine = matcher(`^(OTEL_[A-Z0-9_]+|LOCKSIDECAR_(RENEW_INTERVAL|STORE_TIMEOUT|CACHE_SIZE|CACHE_TTL|KEEP|BATCH_MAX|` +
	`MAX_SESSIONS|MAX_LOCKS_PER_SESSION|MAX_WAITERS|MAX_BODY|DRAIN_TIMEOUT|LOG_FORMAT))=[ -~]*$`)

// variablesIn reads the lines of EnvAnnotation, without empty ones.
func variablesIn(text string) []Variable {
	var found []Variable
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" {
			name, value, _ := strings.Cut(line, "=")
			found = append(found, Variable{name, value})
		}
	}
	return found
}

func rightEnv(text string) bool {
	var names []string
	for line := range strings.SplitSeq(text, "\n") {
		name, _, _ := strings.Cut(line, "=")
		switch {
		case line == "":
			continue
		case !envLine.MatchString(line), name == "OTEL_RESOURCE_ATTRIBUTES", slices.Contains(names, name):
			return false
		}
		names = append(names, name)
	}
	return len(text) <= maxEnv && len(names) > 0 && len(names) <= maxEnvSize
}

// furtherVariables are the pod's, then the injector's. If both have a name, the injector's value is used.
func furtherVariables(s settings, o Options) []Variable {
	var found []Variable
	for _, v := range s.env {
		if !slices.ContainsFunc(o.Env, func(own Variable) bool { return own.Name == v.Name }) {
			found = append(found, v)
		}
	}
	return append(found, o.Env...)
}
