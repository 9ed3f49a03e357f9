package inject

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/internal/certificate"
)

// Nobody's JSON makes the handler panic.
func FuzzReview(f *testing.F) {
	for _, object := range []string{
		asked, `null`, `[]`, `{}`, `{"spec":null}`, `{"spec":{"containers":5}}`, `{"spec":{"containers":[null,{"name":5,"env":[7]}]}}`,
		`{"metadata":{"annotations":{"locksidecar.dev/containers":7}},"spec":{"initContainers":[{"name":"locksidecar"}],"volumes":{}}}`,
	} {
		f.Add(reviewOf("CREATE", "Pod", object))
	}
	f.Add(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`)
	w := NewWebhook(WebhookConfig{Certificate: &certificate.Certificate{}, Logger: slog.New(slog.DiscardHandler)})
	f.Fuzz(func(t *testing.T, body string) {
		req := httptest.NewRequest(http.MethodPost, "/mutate", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		got := httptest.NewRecorder()
		w.server.Handler.ServeHTTP(got, req)
		if got.Code != 200 && got.Code != 400 {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	})
}
