package k8s

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestContainersOfOtherInjectorsGetNoSocket has an injector that comes after ours: it adds
// a container, and ours is asked again.
// Proves: threat other container
func TestContainersOfOtherInjectorsGetNoSocket(t *testing.T) {
	for way, installWay := range ways {
		t.Run(way, func(t *testing.T) {
			installWay(t)
			ns := namespace(t, nil)
			server := httptest.NewTLSServer(http.HandlerFunc(addContainer))
			t.Cleanup(server.Close)
			other := decode(t, []byte(`
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: other} # after locksidecar-injector: their names are their order
webhooks:
  - name: other.example.com
    rules: [{operations: [CREATE], apiGroups: [""], apiVersions: [v1], resources: [pods]}]
    sideEffects: None
    admissionReviewVersions: [v1]
`))[0]
			pointTo(other, server.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
			install(t, other)
			var pod *unstructured.Unstructured
			eventually(t, func() (err error) {
				pod, err = dryRun(t, ns, podOf("app", optedIn, nil))
				if err == nil && !strings.Contains(string(asJSON(pod)), `"image": "other"`) {
					err = errors.New("the other injector is not yet asked")
				}
				return err
			})
			if !hasSocket(pod, "app") || hasSocket(pod, "other") || strings.Count(string(asJSON(pod)), "LOCKSIDECAR_SOCKET\"") != 2 { // the sidecar's, too
				t.Errorf("the app alone must have the socket:\n%s", asJSON(pod))
			}
		})
	}
}

// addContainer answers a review.
func addContainer(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	patch := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{
		UID: review.Request.UID, Allowed: true, PatchType: &patch,
		Patch: []byte(`[{"op": "add", "path": "/spec/containers/-", "value": {"name": "other", "image": "other"}}]`),
	}
	review.Request = nil
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(review); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
