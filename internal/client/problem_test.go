package client

import (
	"errors"
	"testing"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

func TestAnErrorIsOneLine(t *testing.T) {
	err := (&Client{}).Explain(&locksidecar.Error{
		Code: "store_unavailable", Status: 503,
		Raw: []byte(`{"code":"store_unavailable","detail":"failed to connect:\n\t10.0.0.1: refused\n\t10.0.0.2: refused"}`),
	})
	if got := err.Error(); got != "failed to connect: 10.0.0.1: refused 10.0.0.2: refused" {
		t.Errorf("%q", got)
	}
	if !errors.Is(err, locksidecar.ErrUnavailable) {
		t.Error("it is no ErrUnavailable")
	}
}
