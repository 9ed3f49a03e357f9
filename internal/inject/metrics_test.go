package inject

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
)

// metrics reads GET /metrics.
func (c *cluster) metrics() string {
	c.t.Helper()
	resp, err := http.Get("http://" + c.webhook.MetricsAddr() + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		c.t.Fatal(err, resp.Status)
	}
	return string(text)
}

func (c *cluster) shows(lines ...string) {
	c.t.Helper()
	text := c.metrics()
	for _, line := range lines {
		if !strings.Contains(text, "locksidecar_injector_"+line+"\n") {
			c.t.Errorf("no %q in\n%s", line, text)
		}
	}
}

// The webhook counts its reviews by their outcome, and says when its certificate ends, also after that was replaced.
func TestWebhookMetrics(t *testing.T) {
	ends := time.Now().Add(time.Hour).Truncate(time.Second)
	c := start(t, ends)
	c.shows(`build_info{version="v1"} 1`, `reviews_total{outcome="injected"} 0`, `reviews_total{outcome="busy"} 0`, "review_duration_seconds_count 0",
		fmt.Sprintf("certificate_not_after_timestamp_seconds %g", float64(ends.Unix())))
	c.review("CREATE", "Pod", asked)
	c.review("CREATE", "Pod", asked)
	c.review("UPDATE", "Pod", asked)
	c.review("CREATE", "Pod", strings.Replace(asked, `"labels"`, `"annotations":{"locksidecar.dev/ttl":"x"},"labels"`, 1))
	c.do("POST", "/mutate", "text/plain", strings.NewReader("{}"))
	later := ends.Add(time.Hour)
	c.secret.Update(c.ca.Issue(serverName, later))
	c.shows(`reviews_total{outcome="injected"} 2`, `reviews_total{outcome="unchanged"} 1`, `reviews_total{outcome="refused"} 1`, `reviews_total{outcome="bad_call"} 1`,
		"review_duration_seconds_count 5", fmt.Sprintf("certificate_not_after_timestamp_seconds %g", float64(later.Unix())))
}

func TestWebhookMetricsOfCallersThatAreRefused(t *testing.T) {
	file := certtest.MountFiles(t, map[string][]byte{"ca.crt": certtest.New(t).PEM()})
	c := startFor(t, time.Now().Add(time.Hour), file.File("ca.crt"))
	c.do("POST", "/mutate", "application/json", strings.NewReader(reviewOf("CREATE", "Pod", asked)))
	c.shows(`reviews_total{outcome="unauthorized"} 1`, "failed_connections_total 0")
}
