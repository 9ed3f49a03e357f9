package inject

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/kubeapi"
)

// podJSON is a pod with a container of that name.
func podJSON(name, container, image, annotations, more string) string {
	return fmt.Sprintf(`{"kind":"Pod","metadata":{"namespace":"shop","name":%q,"annotations":{%s},"creationTimestamp":"2026-11-29T10:00:00Z",`+
		`"ownerReferences":[{"kind":"Other","name":"x"},{"kind":"ReplicaSet","name":"web","controller":true}]},"spec":{"initContainers":[{"name":%q,"image":%q}],"containers":[{"name":"app"}]}%s}`,
		name, annotations, container, image, more)
}

func injectedBy(version string) string { return `"locksidecar.dev/injected-version":"` + version + `"` }

// A sidecar is as old as the older of what injected it and of its image. The one of a copied manifest has only an image.
func TestStalePods(t *testing.T) {
	for _, test := range []struct {
		pod, version string
		stale        bool
	}{
		{podJSON("p", "locksidecar", DefaultImage, injectedBy(Version()), ""), "", false},
		{podJSON("p", "locksidecar", DefaultImage, injectedBy("v0.0.9"), ""), "v0.0.9", true},
		{podJSON("p", "locksidecar", "r:5000/l:v0.0.8@sha256:00", injectedBy(Version()), ""), "v0.0.8", true},
		{podJSON("p", "locksidecar", "r:5000/l:v0.0.8", injectedBy("v0.0.7"), ""), "v0.0.7", true},
		{podJSON("p", "locksidecar", DefaultImage, injectedBy(Version()+"-rc.1"), ""), Version() + "-rc.1", true},
		{podJSON("p", "locksidecar", DefaultImage, injectedBy("v99.0.0"), ""), "", false},
		{podJSON("p", "locksidecar", DefaultImage, "", ""), "", false},
		{podJSON("p", "locksidecar", "l:v0.0.8", "", ""), "v0.0.8", true},
		{podJSON("p", "locksidecar", "l:main", injectedBy(Version()), ""), "", false},
		{podJSON("p", "locksidecar", "r:5000/l", "", ""), "", true},
		{podJSON("p", "locksidecar", "l@sha256:00", injectedBy("new"), ""), "", true},
		{podJSON("p", "locksidecar", "l:v0.0.8", "", `,"status":{"phase":"Running"}`), "v0.0.8", true},
		{podJSON("p", "locksidecar", "l:v0.0.8", "", `,"status":{"phase":"Succeeded"}`), "", false},
		{podJSON("p", "locksidecar", "l:v0.0.8", "", `,"status":{"phase":"Failed"}`), "", false},
		{podJSON("p", "other", "l:v0.0.8", injectedBy("v0.0.8"), ""), "", false},
		{strings.Replace(podJSON("p", "x", "l", "", ""), `{"name":"app"}`, `{"name":"locksidecar","image":"l:v0.0.8"}`, 1), "v0.0.8", true},
	} {
		found, err := StaleIn([]File{{Name: "f", Content: []byte(`{"kind":"List","items":[` + test.pod + `]}`)}})
		if err != nil {
			t.Fatal(err)
		}
		if (len(found.Pods) == 1) != test.stale || test.stale && found.Pods[0].Version != test.version {
			t.Errorf("%s: %+v, want %t %q", test.pod, found, test.stale, test.version)
		}
	}
}

func TestStaleNeedsAList(t *testing.T) {
	for _, text := range []string{"", "kind: List", `{"kind":"Pod"}`, `[]`} {
		if _, err := StaleIn([]File{{Name: "f", Content: []byte(text)}}); err == nil || !strings.Contains(err.Error(), "f is no list of pods, as `kubectl get pods") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// An API server answers in pages.
func TestStalePages(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Path+"?"+r.URL.RawQuery)
		next := map[string]string{"": "a", "a": "b"}[r.URL.Query().Get("continue")]
		pod := podJSON("pod"+r.URL.Query().Get("continue"), "locksidecar", "l:v0.0.1", "", "")
		_, _ = fmt.Fprintf(w, `{"kind":"PodList","metadata":{"continue":%q},"items":[%s]}`, next, pod)
	}))
	defer server.Close()
	api := &kubeapi.API{URL: server.URL, HTTP: server.Client()}
	found, err := FindStale(t.Context(), api, "shop")
	if err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/shop/pods?"
	if want := []string{path + "limit=500", path + "continue=a&limit=500", path + "continue=b&limit=500"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q", asked)
	}
	text, err := json.Marshal(found)
	if err != nil || found.Sidecars != 3 || len(found.Pods) != 3 {
		t.Errorf("%v %s", err, text)
	}
	if want := `{"namespace":"shop","name":"pod","owner":"ReplicaSet/web","version":"v0.0.1","image":"l:v0.0.1","created_at":"2026-11-29T10:00:00Z"}`; !strings.Contains(string(text), want) {
		t.Errorf("%s", text)
	}
	asked = nil
	if _, err := FindStale(t.Context(), api, ""); err != nil || !strings.HasPrefix(asked[0], "/api/v1/pods?") {
		t.Errorf("%v %q", err, asked)
	}
	api.HTTP.Transport = refusing{}
	if _, err := FindStale(t.Context(), api, ""); err == nil || !strings.Contains(err.Error(), "listing the pods") {
		t.Error(err)
	}
}

type refusing struct{}

func (refusing) RoundTrip(*http.Request) (*http.Response, error) { return nil, http.ErrServerClosed }
