package inject

import (
	"bytes"
	"strings"
	"testing"
)

// documents injects one file.
func documents(t testing.TB, text string, all bool) (Injected, error) {
	t.Helper()
	return Documents([]File{{"web.yaml", []byte(text)}}, all, defaults)
}

// pods counts the sidecars in a stream.
func sidecarsIn(stream []byte) int { return strings.Count(string(stream), DefaultImage) }

const labelled = `{labels: {locksidecar.dev/inject: "true"}}`

// A document that is not opted in, or no workload, goes through as it is.
func TestWhatIsNotChangedGoesThroughByteForByte(t *testing.T) {
	for name, stream := range map[string]string{
		"empty":            "",
		"a comment":        "# nothing\n",
		"marks":            "---\n---\n...\n---",
		"odd space":        "kind:   Service\nspec:  {  }  # c\n\n\n",
		"no end of line":   "kind: Service",
		"CRLF":             "--- # c\r\nkind: Service\r\n---\r\nkind: ConfigMap\r\n",
		"directives":       "%YAML 1.1\n# c\n---\nkind: A\n...\n%YAML 1.2\n---\nkind: B\n",
		"a mark in a text": "kind: ConfigMap\ndata:\n  a: |\n    x\n    ---\n    y\n  pem: |\n    -----BEGIN X-----\n",
		"not objects":      "--- text\n---\n- a\n---\n12\n--- # c\nnull\n",
		"JSON":             `{"kind":"Service"} ` + "\n\n---\n{}",
		"marks and JSON":   "# c\n--- # c\n{\"kind\": \"A\"}\n... # c\n--- {\"kind\":\"B\"}\n---\n{}",
		"braces":           "{kind: Service, a: [1,\n2]} # c\n",
		"no label":         "apiVersion: v1\nkind: Pod\nspec: {containers: []} # c\n",
		"its own false":    "apiVersion: v1\nkind: Pod\nmetadata: {labels: {locksidecar.dev/inject: 'false'}}\n",
		"other kinds":      "apiVersion: x/v1\nkind: NodePool\nspec: {template: {metadata: " + labelled + ", spec: {taints: []}}}\n",
		"not its group":    "apiVersion: x/v1\nkind: Pod\nmetadata: " + labelled + "\n",
		"emoji":            `{"kind":"A","a":"\ud83d\ude00"}`,
	} {
		got, err := documents(t, stream, false)
		if err != nil || string(got.Stream) != stream || got.OptedIn != 0 {
			t.Errorf("%s: %v, %+v:\n%s", name, err, got, got.Stream)
		}
	}
}

func TestWorkloads(t *testing.T) {
	const pod = `{metadata: ` + labelled + `, spec: {containers: [{name: app}]}}`
	for _, stream := range []string{
		`{apiVersion: v1, kind: Pod, metadata: ` + labelled + `, spec: {containers: [{name: app}]}}`,
		`{apiVersion: v1, kind: PodTemplate, template: ` + pod + `}`,
		`{apiVersion: v1, kind: ReplicationController, spec: {template: ` + pod + `}}`,
		`{apiVersion: apps/v1, kind: Deployment, spec: {template: ` + pod + `}}`,
		`{apiVersion: apps/v1, kind: StatefulSet, spec: {template: ` + pod + `}}`,
		`{apiVersion: apps/v1, kind: DaemonSet, spec: {template: ` + pod + `}}`,
		`{apiVersion: apps/v1, kind: ReplicaSet, spec: {template: ` + pod + `}}`,
		`{apiVersion: batch/v1, kind: Job, spec: {template: ` + pod + `}}`,
		`{apiVersion: batch/v1, kind: CronJob, spec: {jobTemplate: {spec: {template: ` + pod + `}}}}`,
		`{apiVersion: argoproj.io/v1alpha1, kind: Rollout, spec: {template: ` + pod + `}}`,
		`{apiVersion: serving.knative.dev/v1, kind: Service, spec: {template: ` + pod + `}}`,
		`{apiVersion: apps/v1, kind: DeploymentList, items: [{spec: {template: ` + pod + `}}]}`,
		`{apiVersion: v1, kind: List, items: [{kind: ConfigMap}, {apiVersion: v1, kind: List, items: [{apiVersion: apps/v1, kind: Deployment, spec: {template: ` + pod + `}}]}]}`,
	} {
		got, err := documents(t, stream, false)
		if err != nil || got.Workloads != 1 || got.OptedIn != 1 || sidecarsIn(got.Stream) != 1 {
			t.Errorf("%s: %v, %+v:\n%s", stream, err, got, got.Stream)
			continue
		}
		again, err := documents(t, string(got.Stream), false)
		if err != nil || !bytes.Equal(again.Stream, got.Stream) || again.OptedIn != 1 {
			t.Errorf("%s: again: %v, %s", stream, err, again.Stream)
		}
		for _, field := range []string{"kind", "apiVersion"} {
			if strings.Count(string(got.Stream), field+":") != strings.Count(stream, field+":") {
				t.Errorf("%s: another number of %s:\n%s", stream, field, got.Stream)
			}
		}
	}
}

// The text around a changed document stays; JSON stays JSON.
func TestWhatStandsAroundAPod(t *testing.T) {
	const pod = "apiVersion: v1\nkind: Pod # c\nmetadata: " + labelled + "\nspec: {containers: []}\n"
	const jsonPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"locksidecar.dev/inject":"true"}},"spec":{"containers":[],"x":[9007199254740993,1.50,"<\ud83d\ude00>"]}}`
	for _, test := range []struct{ stream, begins, ends string }{
		{"# License\n--- # c\n# Source: x\n\n" + pod + "---\nkind: A # a\n", "# License\n---\napiVersion: v1\nkind: Pod\n", "---\nkind: A # a\n"},
		{"%YAML 1.2\n---\n" + pod + "... # c\nkind: A", "%YAML 1.2\n---\napiVersion: v1\n", "... # c\nkind: A"},
		{"---\r\n" + strings.ReplaceAll(pod, "\n", "\r\n") + "---\r\nkind: A\r\n", "---\napiVersion: v1\n", "---\r\nkind: A\r\n"},
		{"--- {apiVersion: v1, kind: Pod, metadata: " + labelled + ", spec: {}}", "---\napiVersion: v1\n", ""},
		{"\ufeff" + pod, "apiVersion: v1\n", ""},
		{jsonPod + "\n---\n{ } \n", "{\n    \"apiVersion\": \"v1\",\n", "\n}\n---\n{ } \n"},
		{"{ }\n---\n" + jsonPod, "{ }\n---\n{\n", "            9007199254740993,\n            1.50,\n            \"\\u003c😀\\u003e\"\n        ]\n    }\n}\n"},
	} {
		got, err := documents(t, test.stream, false)
		text := string(got.Stream)
		if err != nil || sidecarsIn(got.Stream) != 1 || !strings.HasPrefix(text, test.begins) || !strings.HasSuffix(text, test.ends) {
			t.Errorf("%q: %v:\n%s", test.stream, err, text)
		}
	}
}

func TestValuesSurvive(t *testing.T) {
	const pod = `{apiVersion: v1, kind: Pod, metadata: ` + labelled + `, spec: {},
		x: ["true", "1", "1e3", "0x1", "012", "1:30", "null", "~", "", " a ", "2001-01-01", "yes", "a: b", "#", "a\nb\n", "\t", "é\u2028"],
		y: [9007199254740993, 18446744073709551615, -9223372036854775808, 0.1, true, null, {}, []]}`
	got, err := documents(t, pod, false)
	if err != nil {
		t.Fatal(err)
	}
	want, is := parse(t, pod), parse(t, string(got.Stream))
	for _, field := range []string{"x", "y"} {
		if toJSON(t, is[field]) != toJSON(t, want[field]) {
			t.Errorf("%s, was %s", toJSON(t, is[field]), toJSON(t, want[field]))
		}
	}
}

// kubectl takes them, in any order.
func TestMergesAreNoDuplicates(t *testing.T) {
	const stream = "labels: &l {app: x, tier: web}\ndata: {<<: *l, tier: z}\nmore: {app: z, <<: [*l, {tier: a}], <<: {app: y}}\ntext: |\n  cat <<E\n---\n"
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {labels: &l {app: x, tier: web, locksidecar.dev/inject: 'true'}}\nspec:\n  nodeSelector:\n    <<: *l\n    tier: <<z\n"
	got, err := documents(t, stream+pod, false)
	rest, asItWas := strings.CutPrefix(string(got.Stream), stream)
	if err != nil || !asItWas {
		t.Fatalf("%v\n%s", err, got.Stream)
	}
	if is := objectIn(objectIn(parse(t, rest), "spec"), "nodeSelector"); is["app"] != "x" || is["tier"] != "<<z" {
		t.Errorf("%v", is)
	}
}

func TestWhoIsOptedIn(t *testing.T) {
	const deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: NS}\nspec: {template: {metadata: {labels: LABELS}, spec: {containers: [{name: app}]}}}\n"
	const namespace = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: NS, labels: {locksidecar.dev/inject: 'VALUE'}}\n"
	for _, test := range []struct {
		namespace, value, labels string
		all, want                bool
	}{
		{"shop", "true", "{}", false, true},
		{"shop", "true", "null", false, true},
		{"shop", "true", "{locksidecar.dev/inject: 'false'}", false, false},
		{"shop", "false", "{}", false, false},
		{"shop", "yes", "{}", false, false},
		{"shop", "false", "{locksidecar.dev/inject: 'true'}", false, true},
		{"shop", "false", "{}", true, true},
		{"shop", "true", "{locksidecar.dev/inject: 'false'}", true, false},
		{"kube-system", "true", "{}", true, false},
		{"locksidecar", "true", "{}", true, false},
		{"kube-system", "false", "{locksidecar.dev/inject: 'true'}", false, true},
	} {
		stream := strings.NewReplacer("NS", test.namespace, "VALUE", test.value, "LABELS", test.labels).Replace(deployment + namespace)
		got, err := documents(t, stream, test.all)
		if err != nil || (sidecarsIn(got.Stream) == 1) != test.want {
			t.Errorf("%+v: %v, %+v", test, err, got)
		}
	}
	// Of another namespace, of none, and of what is no Namespace.
	for _, stream := range []string{
		strings.Replace(deployment, "NS", "other", 1) + strings.NewReplacer("NS", "shop", "VALUE", "true").Replace(namespace),
		strings.Replace(deployment, ", namespace: NS", "", 1) + strings.NewReplacer("NS", "shop", "VALUE", "true").Replace(namespace),
		strings.Replace(deployment, "NS", "shop", 1) + strings.NewReplacer("NS", "shop", "VALUE", "true", "v1", "x/v1").Replace(namespace),
	} {
		if got, err := documents(t, strings.Replace(stream, "LABELS", "{}", 1), false); err != nil || got.OptedIn != 0 || got.Workloads != 1 {
			t.Errorf("%s: %v, %+v", stream, err, got)
		}
	}
}

func TestAMisplacedLabelIsNamed(t *testing.T) {
	got, err := documents(t, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {locksidecar.dev/inject: 'true'}}\n", false)
	if err != nil || len(got.Hints) != 1 || !strings.Contains(got.Hints[0], "Deployment web") || !strings.Contains(got.Hints[0], "spec.template.metadata.labels") {
		t.Errorf("%v, %+v", err, got)
	}
}

func TestSeveralFiles(t *testing.T) {
	file := func(text string) File { return File{"f", []byte(text)} }
	got, err := Documents([]File{
		file("kind: A"), file("# c\nkind: B\n"), file("---\nkind: C\n"), file("%YAML 1.1\n---\nkind: D\n"), file(""), file(`{"kind":"E"}`),
		file("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {locksidecar.dev/inject: 'true'}}"),
		file("apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: shop}\nspec: {}\n"),
	}, false, defaults)
	const begins = "kind: A\n---\n# c\nkind: B\n---\nkind: C\n...\n%YAML 1.1\n---\nkind: D\n---\n{\"kind\":\"E\"}\n---\napiVersion: v1\n"
	if err != nil || !strings.HasPrefix(string(got.Stream), begins) || sidecarsIn(got.Stream) != 1 {
		t.Errorf("%v, %s", err, got.Stream)
	}
	if all := split(file(string(got.Stream))); all[len(all)-1].number != 7 {
		t.Errorf("%+v", all)
	}
}

// As kubectl reads them. (Of JSON they stay: TestWhatStandsAroundAPod.)
func TestNumbersOfYAML(t *testing.T) {
	got, err := documents(t, `{apiVersion: v1, kind: Pod, metadata: `+labelled+`, spec: {x: [18446744073709551615, 012, 1e3, 1.50, 12345678901234567890123]}}`, false)
	if err != nil {
		t.Fatal(err)
	}
	const want = "  x:\n  - 18446744073709551615\n  - 10\n  - 1000\n  - 1.5\n  - 1.2345678901234568e+22\n"
	if !strings.Contains(string(got.Stream), want) {
		t.Errorf("want %s; got\n%s", want, got.Stream)
	}
}

func TestMistakesAreNamedWithTheirPlace(t *testing.T) {
	for _, test := range []struct{ stream, says string }{
		{"kind: A\n---\n# c\nkind: B\na: [1\nb: 2\n", "web.yaml, document 2 (line 2): yaml: line 5: "},
		{"---\n---\nkind: {{ .Values.kind }}\n", "web.yaml, document 1 (line 2): yaml: "},
		{"{\"a\": 1}\n{\"b\": 2}\n", "more follows the document, without a line ---"},
		{"a: 1\r---\rb: 2\r", "more follows the document"},
		{"{\"a\": 1", "web.yaml, document 1 (line 1)"},
		{"a: \xff", "web.yaml is not UTF-8"},
		{"\n\napiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {locksidecar.dev/inject: true}}", `web.yaml, document 1 (line 1): Pod a: metadata.labels[locksidecar.dev/inject] is true: it must be "true", "node" or "false", in quotes`},
		{"apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-, labels: {locksidecar.dev/inject: yes please}}", `Pod a-...: metadata.labels[locksidecar.dev/inject] is "yes please"`},
		{"apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c, namespace: ns}\nspec: {jobTemplate: {spec: {template: {metadata: " + labelled + "}}}}", "CronJob ns/c: spec.jobTemplate.spec.template.spec is missing"},
		{bomb, "excessive aliasing"},
	} {
		got, err := documents(t, test.stream, false)
		if err == nil || !strings.Contains(err.Error(), test.says) || got.Stream != nil {
			t.Errorf("%q: %v, %q; want %q", test.stream, err, got.Stream, test.says)
		}
	}
}

// A mistake may stand in a Secret, and errors end up in logs.
// Proves: threat webhook client
func TestMistakesShowNoSecrets(t *testing.T) {
	for _, stream := range []string{
		"kind: Secret\ndata: {~: hunter2}", "kind: Secret\ndata: {{pw: hunter2}: a}", "kind: Secret\ndata: {[hunter2]: a}",
		"kind: Secret\ndata: {pw: !!int hunter2}",
		"kind: Secret\ndata: {pw: !!float \"hunter2\\nhunter2\"}",
	} {
		if _, err := documents(t, stream, false); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", stream, err)
		}
	}
}

// bomb would be a list of a billion.
var bomb = func() string {
	text := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for level := 'b'; level <= 'i'; level++ {
		text += strings.ReplaceAll("L: &L [*K,*K,*K,*K,*K,*K,*K,*K,*K,*K]\n", "K", string(level-1))
		text = strings.ReplaceAll(text, "L", string(level))
	}
	return text
}()

func TestAllMistakesOfAllDocuments(t *testing.T) {
	const pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {locksidecar.dev/inject: 'true'}}\nspec: {os: {name: windows}, containers: [{name: locksidecar}]}\n"
	_, err := documents(t, pod+pod, false)
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "document 1 (line 1): Pod a: spec.containers[locksidecar]") ||
		!strings.Contains(lines[1], "document 2 (line 6): Pod a: spec.containers[locksidecar]") || !strings.Contains(lines[1], "; spec.os.name") {
		t.Errorf("%q", lines)
	}
}

func TestTheStreamIsBounded(t *testing.T) {
	file := File{"big.yaml", []byte(strings.Repeat("\n", 1<<20) + "#" + strings.Repeat("x", MaxStream-1<<20-1))}
	if got, err := Documents([]File{file}, false, defaults); err != nil || len(got.Stream) != MaxStream {
		t.Error(err)
	}
	if _, err := Documents([]File{file, {"more.yaml", []byte("\n")}}, false, defaults); err == nil || !strings.Contains(err.Error(), "more.yaml: these are more than 64 MiB") {
		t.Error(err)
	}
}
