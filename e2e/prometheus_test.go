package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/locksidecar/locksidecar/internal/testing/certtest"
	"github.com/locksidecar/locksidecar/internal/testing/otlptest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest"
	"github.com/locksidecar/locksidecar/internal/testing/pgtest/pgroles"
)

// scrapeInterval is the shortest interval for two sidecars with the race detector.
const scrapeInterval = 400 * time.Millisecond

// noData are expressions of the dashboard that may have no data in this test, with the reason.
var noData = map[string]string{}

// namingFaults are accepted warnings of promtool about names, with the reason.
var namingFaults = map[string]string{}

// expected are alerts that the test's traffic or its short TTL causes.
var expected = map[string]bool{
	"LocksidecarLocksCutShort":   true, // max_hold
	"LocksidecarAppsDropLocks":   true,
	"LocksidecarLeaseNearExpiry": true, // a short TTL, and the race detector
	"LocksidecarLogLinesDropped": true, // the sidecars log at debug level
	"LocksidecarHandOffsSlow":    true, // the race detector, and a shared machine
	"LocksidecarStatementsSlow":  true, // as above
}

// TestPrometheus: the files of deploy/observability work with two real sidecars and a real
// Prometheus, through an outage of the database.
// Proves: rule metrics
func TestPrometheus(t *testing.T) {
	t.Parallel()
	r := otlptest.Start(t)
	own := pgtest.Start(t, pgroles.Template())
	o := options{"STORE_URL": own.NewDatabase(t), "TTL": "6s", "RENEW_INTERVAL": "1s"}
	one, two := startScraped(t, r, o, "pod-a"), startScraped(t, r, o, "pod-b")
	traffic := newTraffic(t, one.sidecar, two.sidecar)
	p := startPrometheus(t, one, two)
	traffic.start()

	p.awaitFiring("only the alerts about the traffic", func(firing map[string]bool) bool {
		for name := range firing {
			if !expected[name] {
				return false
			}
		}
		return firing["LocksidecarLocksCutShort"] && firing["LocksidecarAppsDropLocks"] && p.count(`locksidecar_store_ready == 1`) == 2
	})
	eventually(t, "counts of the fleet by namespace", func() bool {
		return p.count(`locksidecar_fleet_leader == 1`) == 1 && p.count(`locksidecar_fleet_waiters{lock_namespace="default", type="report"} == 1`) == 1
	})
	for _, s := range []*scraped{one, two} {
		checkExposition(t, s)
	}
	p.leadsToTrace(traffic)

	own.Kill()
	p.awaitFiring("the alerts of an outage", func(firing map[string]bool) bool {
		return firing["LocksidecarNotReady"] && firing["LocksidecarRenewalsFailing"] && firing["LocksidecarLocksLost"]
	})
	eventually(t, "both sidecars to be reported as not ready", func() bool {
		return p.count(`ALERTS{alertname="LocksidecarNotReady", alertstate="firing"}`) == 2
	})
	p.checkAnnotations()
	own.Restart(t)
	p.awaitFiring("the end of the outage's alerts", func(firing map[string]bool) bool { return !firing["LocksidecarNotReady"] })

	p.checkDashboard()
	p.checkRules()
	checkDocumented(t, one, two)
	traffic.stop()
	two.kill()
	p.awaitFiring("the alert about a stopped sidecar", func(firing map[string]bool) bool { return firing["LocksidecarDown"] })
}

// scraped is a sidecar with an admin listener.
type scraped struct {
	*sidecar
	pod, admin string
}

func startScraped(t *testing.T, r *otlptest.Receiver, o options, pod string) *scraped {
	t.Helper()
	s := launchWith(t, folder(t), o.with(options{"ADMIN_ADDR": "127.0.0.1:0", "POD": pod}), append(r.Env(), "OTEL_METRICS_EXPORTER=none"))
	s.await("ready", s.tryReady)
	_, admin := s.listening()
	return &scraped{s, pod, admin}
}

// exposition returns the body of GET /metrics.
func (s *scraped) exposition(t *testing.T) string {
	t.Helper()
	return get(t, "http://"+s.admin+"/metrics")
}

func get(t *testing.T, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %v: %s", address, res.StatusCode, err, body)
	}
	return string(body)
}

// checkExposition checks the names with promtool, and that no key is shown.
func checkExposition(t *testing.T, s *scraped) {
	t.Helper()
	text := s.exposition(t)
	if strings.Contains(text, secretPart) {
		t.Errorf("the metrics of %s contain a key:\n%s", s.pod, text)
	}
	cmd := exec.Command(prometheusTool(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(line, " ")
		if namingFaults[name] == "" {
			t.Errorf("promtool check metrics: %s", line)
		}
	}
	if err != nil && len(out) == 0 {
		t.Errorf("promtool check metrics: %v", err)
	}
}

// prometheus is a running Prometheus.
type prometheus struct {
	t       *testing.T
	address string
	log     *logBuffer
}

// startPrometheus starts one with the rules of deploy/observability. Its alerts fire at once.
func startPrometheus(t *testing.T, targets ...*scraped) *prometheus {
	t.Helper()
	dir := t.TempDir()
	p := &prometheus{t: t, address: pgtest.FreeAddress(t), log: &logBuffer{}}
	config := hastyConfig(t, targets)
	config["rule_files"] = []string{writeYAML(t, dir, "rules.yaml", hastyRules(t))}
	cmd := exec.Command(prometheusTool(t, "prometheus"), "--config.file="+writeYAML(t, dir, "prometheus.yaml", config),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+p.address,
		"--enable-feature=exemplar-storage", "--log.level=warn")
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", p.log.tail(20))
		}
	})
	eventually(t, "Prometheus to be ready", func() bool {
		c, err := net.Dial("tcp", p.address)
		if err != nil {
			return false
		}
		return c.Close() == nil && p.ready()
	})
	return p
}

func (p *prometheus) ready() bool {
	res, err := http.Get("http://" + p.address + "/-/ready")
	if err != nil {
		return false
	}
	return res.Body.Close() == nil && res.StatusCode == http.StatusOK
}

// hastyRules returns the rules of the file, which fire without a delay.
func hastyRules(t *testing.T) (file map[string]any) {
	t.Helper()
	file = readYAML(t, "alerts.yaml")
	for _, group := range file["groups"].([]any) {
		for _, rule := range group.(map[string]any)["rules"].([]any) {
			delete(rule.(map[string]any), "for")
			delete(rule.(map[string]any), "keep_firing_for")
		}
	}
	return file
}

// hastyConfig returns the example configuration with these targets and short intervals.
func hastyConfig(t *testing.T, targets []*scraped) map[string]any {
	t.Helper()
	config := readYAML(t, "prometheus.yaml")
	config["global"] = map[string]any{
		"scrape_interval": scrapeInterval.String(), "scrape_timeout": scrapeInterval.String(),
		"evaluation_interval": scrapeInterval.String(),
	}
	var static []any
	for _, s := range targets {
		static = append(static, map[string]any{"targets": []string{s.admin}, "labels": map[string]string{"pod": s.pod, "namespace": "shop"}})
	}
	config["scrape_configs"].([]any)[0].(map[string]any)["static_configs"] = static
	return config
}

func readYAML(t *testing.T, name string) (content map[string]any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(observability, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &content); err != nil {
		t.Fatal(err)
	}
	return content
}

func writeYAML(t *testing.T, dir, name string, content any) string {
	t.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// api calls the HTTP API and decodes the data of the answer.
func (p *prometheus) api(data any, path string, query url.Values) {
	p.t.Helper()
	body := get(p.t, "http://"+p.address+"/api/v1/"+path+"?"+query.Encode())
	whole := struct {
		Data any `json:"data"`
	}{data}
	if err := json.Unmarshal([]byte(body), &whole); err != nil {
		p.t.Fatalf("%s: %v: %s", path, err, body)
	}
}

// count returns the number of series of an expression that have a number.
func (p *prometheus) count(expr string) (n int) {
	p.t.Helper()
	var data struct {
		Result []struct{ Value [2]any }
	}
	p.api(&data, "query", url.Values{"query": {expr}})
	for _, r := range data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && v == v {
			n++
		}
	}
	return n
}

type alert struct {
	Labels, Annotations map[string]string
	State               string
}

func (p *prometheus) firing() (firing []alert) {
	p.t.Helper()
	var data struct{ Alerts []alert }
	p.api(&data, "alerts", nil)
	return slices.DeleteFunc(data.Alerts, func(a alert) bool { return a.State != "firing" })
}

// awaitFiring waits until the set of firing alerts is right.
func (p *prometheus) awaitFiring(what string, right func(firing map[string]bool) bool) {
	p.t.Helper()
	eventually(p.t, what, func() bool {
		names := map[string]bool{}
		for _, a := range p.firing() {
			names[a.Labels["alertname"]] = true
		}
		return right(names)
	})
}

// checkAnnotations checks the texts of the firing alerts.
func (p *prometheus) checkAnnotations() {
	p.t.Helper()
	for _, a := range p.firing() {
		for name, text := range a.Annotations {
			if strings.Contains(text, "<no value>") || strings.Contains(text, "<error") || strings.Contains(text, "  ") {
				p.t.Errorf("%s of %v: %s", name, a.Labels, text)
			}
		}
	}
}

// checkRules checks that all rules were evaluated without an error.
func (p *prometheus) checkRules() {
	p.t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	p.api(&data, "rules", nil)
	n := 0
	for _, group := range data.Groups {
		for _, rule := range group.Rules {
			if n++; rule.Health != "ok" {
				p.t.Errorf("the rule %s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
		}
	}
	if n < 15 {
		p.t.Errorf("Prometheus evaluates only %d rules", n)
	}
}

// checkDashboard checks that every panel shows data.
func (p *prometheus) checkDashboard() {
	p.t.Helper()
	empty := readDashboard(p.t).expressions()
	deadline := time.Now().Add(patience)
	for len(empty) > 0 && time.Now().Before(deadline) {
		for name, expr := range empty {
			if p.count(expr) > 0 {
				delete(empty, name)
			}
		}
		time.Sleep(scrapeInterval) // the pause of a poll
	}
	for name, expr := range empty {
		if noData[name] == "" {
			p.t.Errorf("the panel %s shows nothing: %s", name, expr)
		}
	}
}

// leadsToTrace checks that a histogram has the trace of a call as an exemplar.
func (p *prometheus) leadsToTrace(l *traffic) {
	p.t.Helper()
	eventually(p.t, "an exemplar with the trace of a call", func() bool {
		var data []struct {
			Exemplars []struct{ Labels map[string]string }
		}
		now := time.Now()
		p.api(&data, "query_exemplars", url.Values{
			"query": {"locksidecar_wait_duration_seconds_bucket"},
			"start": {strconv.FormatInt(now.Add(-time.Minute).Unix(), 10)},
			"end":   {strconv.FormatInt(now.Add(time.Minute).Unix(), 10)},
		})
		for _, series := range data {
			for _, e := range series.Exemplars {
				if e.Labels["trace_id"] == l.trace {
					return true
				}
			}
		}
		return false
	})
}

var (
	exposedMetric    = regexp.MustCompile(`(?m)^# TYPE (locksidecar_\w+) (\w+)$`)
	documentedMetric = regexp.MustCompile("(?m)^\\| `(locksidecar_\\w+)` \\| (\\w+) \\|")
	usedMetric       = regexp.MustCompile(`locksidecar_[a-z_]+`)
	metricsAddress   = regexp.MustCompile(`"?metrics"?[=:]"?(127\.0\.0\.1:\d+)`)
	ofHistogram      = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// checkDocumented: docs/observe.md lists exactly the metrics that the sidecars expose, with
// their types. Rules and panels use only these.
func checkDocumented(t *testing.T, sidecars ...*scraped) {
	t.Helper()
	exposed := map[string]string{}
	texts := []string{injectorExposition(t)}
	for _, s := range sidecars {
		texts = append(texts, s.exposition(t))
	}
	for _, m := range exposedMetric.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
		exposed[m[1]] = m[2]
	}
	page, err := os.ReadFile("../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, m := range documentedMetric.FindAllStringSubmatch(string(page), -1) {
		documented[m[1]] = m[2]
		if exposed[m[1]] != m[2] {
			t.Errorf("docs/observe.md has the %s %s, the sidecars say %q", m[2], m[1], exposed[m[1]])
		}
	}
	for name, kind := range exposed {
		if documented[name] == "" {
			t.Errorf("the %s %s is missing in docs/observe.md", kind, name)
		}
	}
	for name, text := range usesOfMetrics(t) {
		for _, used := range usedMetric.FindAllString(text, -1) {
			if exposed[used] == "" && exposed[ofHistogram.ReplaceAllString(used, "")] != "histogram" {
				t.Errorf("%s uses %s, which no sidecar exposes", name, used)
			}
		}
	}
}

// injectorExposition returns the body of GET /metrics of the injector's webhook.
func injectorExposition(t *testing.T) string {
	t.Helper()
	secret := certtest.Mount(t, certtest.New(t).Issue("injector", time.Now().Add(time.Hour)))
	log := &logBuffer{}
	cmd := exec.Command(binary, "inject", "--webhook", "--listen=127.0.0.1:0", "--metrics=127.0.0.1:0", "--certificate="+secret.CertFile(), "--key="+secret.KeyFile())
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var address []string
	eventually(t, "the injector to serve", func() bool {
		address = metricsAddress.FindStringSubmatch(log.String())
		return address != nil
	})
	return get(t, "http://"+address[1]+"/metrics")
}

// usesOfMetrics returns the texts that use metrics.
func usesOfMetrics(t *testing.T) map[string]string {
	t.Helper()
	uses := readDashboard(t).expressions()
	for _, v := range readDashboard(t).Templating.List {
		uses["the variable "+v.Name] = v.Definition
	}
	for _, group := range hastyRules(t)["groups"].([]any) {
		for _, rule := range group.(map[string]any)["rules"].([]any) {
			fields := rule.(map[string]any)
			uses[fmt.Sprint("the alert ", fields["alert"])] = fmt.Sprint(fields["expr"])
		}
	}
	return uses
}
