package inject

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Proves: threat pod author
func TestAnnotationsAreChecked(t *testing.T) {
	long := strings.Repeat("x", 256)
	for name, test := range map[string]struct {
		good, bad []any
		says      string
	}{
		ImageAnnotation: {
			good: []any{"a", "localhost:5000/a/b_c:v1@sha256:00", "A.b"},
			bad:  []any{"", " a", "a b", "-a", "a\n", strings.Repeat("x", 513), true},
			says: "the name of an image",
		},
		SecretAnnotation: {
			good: []any{"a", "a-b.c", "0"},
			bad:  []any{"", "A", "a_b", "-a", "a-", strings.Repeat("x", 254), 1.5},
			says: "the name of a Secret",
		},
		SocketAnnotation: {
			good: []any{"/a/b", "/run/x-y/_z.sock", "/etc/locksidecar2/s", "/locksidecar2/s", "/run/locksidecar/a/s", "/" + strings.Repeat("a", 104) + "/s"},
			bad: []any{
				"", "a/b", "/a", "/a/", "//a", "/a//b", "/a/../b", "/a/.b", "/.a/b", "/a/b c", "/a/$(X)", "/etc/locksidecar/s", "/etc/locksidecar/a/s", "/locksidecar/s", "/locksidecar/a/s",
				"/" + strings.Repeat("a", 105) + "/s",
				[]any{},
			},
			says: "an absolute path with a folder other than /etc/locksidecar",
		},
		TTLAnnotation: {
			good: []any{"500ms", "15s", "1h30m", "24h"},
			bad:  []any{"", "15", "499ms", "25h", "-1s", "soon", nil},
			says: "a duration from 500ms to 24h",
		},
		NamespaceAnnotation: {
			good: []any{"a", "A/b:c.d_e-f", long[:255]},
			bad:  []any{"", "$(POD_NAMESPACE)", "-a", "a b", "ä", long},
			says: "1 to 255",
		},
		CPUAnnotation: {
			good: []any{"1m", "250m", "99999m", "1", "99"},
			bad:  []any{"", "0", "0m", "0.5", "100", "100000m", "1 ", "-1", "1k", 1},
			says: "millicores from 1m to 99999m, or cores from 1 to 99",
		},
		CPULimitAnnotation: {
			good: []any{"10m", "99999m", "1", "99"},
			bad:  []any{"", "0", "0.5", "100", 1},
			says: "millicores from 1m to 99999m, or cores from 1 to 99",
		},
		StorageAnnotation: {
			good: []any{"1Mi", "99999Mi"},
			bad:  []any{"", "0Mi", "1Gi", "100000Mi", "1", true},
			says: "from 1Mi to 99999Mi, in Mi",
		},
		StorageLimitAnnotation: {
			good: []any{"1Mi", "99999Mi"},
			bad:  []any{"", "0Mi", "1Gi", "100000Mi", "1", true},
			says: "from 1Mi to 99999Mi, in Mi",
		},
		PullPolicyAnnotation: {
			good: []any{"Always", "IfNotPresent", "Never"},
			bad:  []any{"", "always", "Always ", false},
			says: "Always, IfNotPresent or Never",
		},
		MemoryAnnotation: {
			good: []any{"64Mi", "100Mi", "9999Mi"},
			bad:  []any{"", "63Mi", "9Mi", "10000Mi", "128", "128M", "1Gi", "064Mi", true},
			says: "from 64Mi to 9999Mi, in Mi",
		},
		LogLevelAnnotation: {
			good: []any{"debug", "info", "warn", "error"},
			bad:  []any{"", "DEBUG", "trace", "info\n", 0},
			says: "debug, info, warn or error",
		},
		EnvAnnotation: {
			good: []any{"OTEL_SERVICE_NAME=a b=c", "LOCKSIDECAR_CACHE_TTL=\n\nLOCKSIDECAR_MAX_BODY=1MiB\n", lines(32), "OTEL_X=" + strings.Repeat("x", 4089)},
			bad: []any{
				"", "\n", "OTEL_X", "=x", "otel_x=1", "PATH=/", "GOMEMLIMIT=1GiB", "POD_NAME=x", "LD_PRELOAD=/x", " OTEL_X=1", "OTEL_X=\t", "OTEL_X=ä",
				"OTEL_RESOURCE_ATTRIBUTES=a=b", "OTEL_X=1\nOTEL_X=2", lines(33), "OTEL_X=" + strings.Repeat("x", 4090), "OTEL_X=1\r\nOTEL_Y=1",
				"LOCKSIDECAR_SOCKET=/x/y", "LOCKSIDECAR_SOCKET_MODE=0666", "LOCKSIDECAR_STORE_URL=memory://", "LOCKSIDECAR_STORE_URL_FILE=/x", "LOCKSIDECAR_NAMESPACE=x",
				"LOCKSIDECAR_POD=x", "LOCKSIDECAR_ALLOWED_UIDS=0", "LOCKSIDECAR_TCP_ADDR=127.0.0.1:1", "LOCKSIDECAR_ADMIN_ADDR=:1", "LOCKSIDECAR_ALLOW_FORCE=true",
				"LOCKSIDECAR_AUTO_MIGRATE=true", "LOCKSIDECAR_POOL_MAX_CONNS=1000", "LOCKSIDECAR_POSTGRES_LISTEN_URL=x", "LOCKSIDECAR_TTL=15s", "LOCKSIDECAR_LOG_LEVEL=info", false,
			},
			says: "lines of NAME=value, each name once",
		},
		ContainersAnnotation: {
			good: []any{"app", "worker", "app,worker", "app,app"},
			bad:  []any{"", ",", "app,", ",app", "app,,worker", false},
			says: "separated by commas, without spaces",
		},
	} {
		for _, value := range test.good {
			if err := annotated(t, name, value); err != nil {
				t.Errorf("%s: %v: %v", name, value, err)
			}
		}
		for _, value := range test.bad {
			says := test.says
			if _, ok := value.(string); !ok {
				says = "it must be a string"
			}
			err := annotated(t, name, value)
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v: %v", name, value, err)
			}
		}
	}
	if err := annotated(t, ContainersAnnotation, "app, worker"); err == nil || !strings.Contains(err.Error(), `" worker", which the pod does not have; it has app, worker`) {
		t.Error(err)
	}
}

// lines are n variables.
func lines(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "OTEL_X%d=\n", i)
	}
	return text.String()
}

func annotated(t *testing.T, name string, value any) error {
	t.Helper()
	return annotatedWith(t, object{name: value})
}

// A limit below its request is refused before Kubernetes does it, with the names of the annotations.
func TestLimitsAreNotBelowRequests(t *testing.T) {
	for _, test := range []struct {
		annotations object
		says        string // empty: right
	}{
		{object{CPULimitAnnotation: "9m"}, `annotation locksidecar.dev/cpu-limit is "9m": it must not be less than the request, 10m (the annotation locksidecar.dev/cpu changes it)`},
		{object{CPULimitAnnotation: "9m", CPUAnnotation: "9m"}, ""},
		{object{CPULimitAnnotation: "1", CPUAnnotation: "1000m"}, ""},
		{object{CPULimitAnnotation: "1", CPUAnnotation: "1001m"}, "it must not be less than the request, 1001m"},
		{object{CPULimitAnnotation: "999m", CPUAnnotation: "1"}, "it must not be less than the request, 1 "},
		{object{StorageLimitAnnotation: "1Mi"}, ""},
		{object{StorageLimitAnnotation: "100Mi", StorageAnnotation: "100Mi"}, ""},
		{object{StorageLimitAnnotation: "99Mi", StorageAnnotation: "100Mi"}, "ephemeral-storage-limit is \"99Mi\": it must not be less than the request, 100Mi (the annotation locksidecar.dev/ephemeral-storage "},
	} {
		err := annotatedWith(t, test.annotations)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v: %v, want %q", test.annotations, err, test.says)
		}
	}
}

func annotatedWith(t *testing.T, annotations object) error {
	t.Helper()
	pod := parse(t, "spec: {containers: [{name: app}, {name: worker}]}")
	pod["metadata"] = object{"annotations": annotations}
	_, err := Pod(pod, defaults)
	return err
}

func TestOptionsAreChecked(t *testing.T) {
	with := func(names ...string) Options {
		o := defaults
		for _, name := range names {
			o.Env = append(o.Env, Variable{Name: name})
		}
		return o
	}
	for _, test := range []struct {
		options Options
		says    string
	}{
		{Options{Secret: "s"}, `--image is ""`},
		{Options{Image: "i i", Secret: "s"}, `--image is "i i"`},
		{Options{Image: "i", Secret: "S"}, `--secret is "S"`},
		{Options{Image: "i", Secret: "s", PullPolicy: "always"}, `--image-pull-policy is "always": it must be Always, IfNotPresent or Never`},
		{Options{Image: "i", Secret: "s", User: -1}, "--uid is -1: it must be from 1 to 2147483647, or 0 if the cluster assigns one"},
		{Options{Image: "i", Secret: "s", User: 1 << 31}, "--uid is 2147483648"},
		{with(""), `--env ""`},
		{with("1A"), `--env "1A"`},
		{with("A-B"), `--env "A-B"`},
		{with("LOCKSIDECAR_TTL"), "locksidecar.dev/ttl"},
		{with("LOCKSIDECAR_SOCKET"), "is set already"},
		{with("LOCKSIDECAR_STORE_URL"), "is set already"},
		{with("LOCKSIDECAR_ADMIN_ADDR"), "is set already"},
		{with("POD_NAME"), "is set already"},
		{with("OTEL_RESOURCE_ATTRIBUTES"), "is set already"},
		{with("A", "A"), "is set already"},
	} {
		if err := test.options.Check(); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%+v: %v", test.options, err)
		}
	}
	if err := with("LOCKSIDECAR_LOG_LEVEL", "OTEL_EXPORTER_OTLP_ENDPOINT", "_x1").Check(); err != nil {
		t.Error(err)
	}
	if taken := ownVariables(); !slices.Contains(taken, "LOCKSIDECAR_SOCKET_MODE") || len(taken) != 13 {
		t.Error(taken)
	}
}
