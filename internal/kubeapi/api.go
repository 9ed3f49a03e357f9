// Package kubeapi calls a Kubernetes API server, as a pod or with a kubeconfig. The sidecar's binary has two commands that do it, with
// a handful of calls. client-go would make the binary, which each pod pulls, 4.5 MB larger for them.
package kubeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// API is an API server and who calls it.
type API struct {
	URL   string       // without a slash at its end
	HTTP  *http.Client // trusts the server, and may have a client certificate
	Token string       // empty: none
	// Namespace is the caller's.
	Namespace string
}

// ErrNotFound is in the errors of calls for an object that does not exist.
var ErrNotFound = errors.New("not found")

// maxAnswer limits an answer. An object has at most 3 MiB, and a page of many pods seldom as many of them.
const maxAnswer = 64 << 20

// Call sends a request with a JSON body, unless body is nil, and reads the answer, unless answer is nil.
func (a *API) Call(ctx context.Context, method, path, contentType string, body, answer any) error {
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.URL+path, content)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	if a.Token != "" {
		request.Header.Set("Authorization", "Bearer "+a.Token)
	}
	response, err := a.HTTP.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &status) // the status says enough without a message
		err := fmt.Errorf("%s: %s", response.Status, status.Message)
		if response.StatusCode == http.StatusNotFound {
			return errors.Join(ErrNotFound, err)
		}
		return err
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the API server's answer cannot be read: %w", err)
	}
	return nil
}
