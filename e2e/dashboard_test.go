package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const observability = "../deploy/observability"

// dashboard is the part of deploy/observability/dashboard.json that the tests check.
type dashboard struct {
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			AllValue   string `json:"allValue"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID          int        `json:"id"`
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Datasource  datasource `json:"datasource"`
	Targets     []target   `json:"targets"`
	GridPos     struct {
		H int `json:"h"`
		W int `json:"w"`
		X int `json:"x"`
		Y int `json:"y"`
	} `json:"gridPos"`
}

type target struct {
	Expr       string     `json:"expr"`
	Exemplar   bool       `json:"exemplar"`
	Datasource datasource `json:"datasource"`
}

type datasource struct {
	UID string `json:"uid"`
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(observability, "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// variables replaces the variables like Grafana with everything selected.
var variables = strings.NewReplacer(
	"$__rate_interval", "1m", "$__range", "5m", "$namespace", ".*", "$pod", ".*", "$type", ".*")

// expressions returns the expressions of all panels, by panel and reference, without variables.
func (d dashboard) expressions() map[string]string {
	all := map[string]string{}
	for _, p := range d.Panels {
		for i, q := range p.Targets {
			all[p.Title+"/"+string(rune('A'+i))] = variables.Replace(q.Expr)
		}
	}
	return all
}

// TestDashboard: each panel has a description, uses the chosen data source, does not overlap
// another, and has valid expressions.
func TestDashboard(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.SchemaVersion < 39 {
		t.Errorf("schema version %d", d.SchemaVersion)
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
		if v.Type == "query" && v.AllValue != ".*" {
			t.Errorf("the variable %s has %q for All, want a pattern that also matches series without the label", v.Name, v.AllValue)
		}
	}
	if want := []string{"datasource", "namespace", "pod", "type"}; !slices.Equal(names, want) {
		t.Errorf("variables %q, want %q", names, want)
	}
	ids, covered := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		p.takePlace(t, covered)
		if p.Type == "row" {
			continue
		}
		p.check(t)
	}
	if all := d.expressions(); len(all) < 40 {
		t.Errorf("only %d expressions were found: the test reads the dashboard wrongly", len(all))
	}
	checkExpressions(t, d.expressions())
}

// takePlace notes the grid cells of the panel.
func (p panel) takePlace(t *testing.T, covered map[[2]int]string) {
	t.Helper()
	if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W < 1 || p.GridPos.H < 1 {
		t.Errorf("%s: outside of the grid: %+v", p.Title, p.GridPos)
	}
	for x := range p.GridPos.W {
		for y := range p.GridPos.H {
			cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
			if other, taken := covered[cell]; taken {
				t.Errorf("%s covers %s", p.Title, other)
				return
			}
			covered[cell] = p.Title
		}
	}
}

func (p panel) check(t *testing.T) {
	t.Helper()
	if p.Title == "" || len(p.Description) < 20 || len(p.Targets) == 0 {
		t.Errorf("%q: title %q, description %q, %d expressions", p.Type, p.Title, p.Description, len(p.Targets))
	}
	if p.Datasource.UID != "${datasource}" {
		t.Errorf("%s asks the data source %q", p.Title, p.Datasource.UID)
	}
	for _, q := range p.Targets {
		if q.Datasource.UID != "${datasource}" {
			t.Errorf("%s: %s asks the data source %q", p.Title, q.Expr, q.Datasource.UID)
		}
		if left := variables.Replace(q.Expr); strings.Contains(left, "$") {
			t.Errorf("%s: unknown variable: %s", p.Title, left)
		}
		if strings.Contains(q.Expr, "_bucket") && !q.Exemplar {
			t.Errorf("%s: no exemplars", p.Title)
		}
	}
}

// checkExpressions checks them with promtool, as a file of rules.
func checkExpressions(t *testing.T, all map[string]string) {
	t.Helper()
	type rule struct {
		Record string            `json:"record"`
		Expr   string            `json:"expr"`
		Labels map[string]string `json:"labels"`
	}
	var rules []rule
	for name, expr := range all {
		rules = append(rules, rule{"panel:expression", expr, map[string]string{"panel": name}})
	}
	// JSON is valid YAML.
	text, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// TestAlertRules: promtool accepts the rules and the examples, and the rules' unit tests pass. Each
// rule has such a test, and a section in docs/runbook.md.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "alerts.yaml")
	promtool(t, "check", "config", "prometheus.yaml")
	promtool(t, "test", "rules", "alerts_test.yaml")
	rules, err := os.ReadFile(filepath.Join(observability, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(filepath.Join(observability, "alerts_test.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(string(rules), -1)
	if len(alerts) < 15 {
		t.Errorf("only %d alerts were found: the test reads the file wrongly", len(alerts))
	}
	runbook, err := os.ReadFile("../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, alert := range alerts {
		if !strings.Contains(string(tests), `alertname="`+alert[1]+`"`) {
			t.Errorf("no test makes %s fire", alert[1])
		}
		if !strings.Contains(string(runbook), "\n### "+alert[1]+"\n") {
			t.Errorf("docs/runbook.md has no section %s", alert[1])
		}
		if anchor := "docs/runbook.md#" + strings.ToLower(alert[1]); strings.Count(string(rules), "runbook_url: https://github.com/locksidecar/locksidecar/blob/main/"+anchor+"\n") != 1 {
			t.Errorf("%s has no runbook_url that ends with %s", alert[1], anchor)
		}
	}
}

// prometheusTool finds a program of the package prometheus.
func prometheusTool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is not installed: `test/deps.sh go`, or `apt-get install --no-install-recommends prometheus` on Debian and Ubuntu, "+
			"`brew install prometheus` on macOS: %v", name, err)
	}
	return path
}

// promtool runs promtool in deploy/observability, and must succeed.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(prometheusTool(t, "promtool"), args...)
	cmd.Dir = observability
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
