package kubeapi

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// Account is the folder in which a pod finds its service account.
const Account = "/var/run/secrets/kubernetes.io/serviceaccount"

// PodVariable is set in each pod.
const PodVariable = "KUBERNETES_SERVICE_HOST"

// InPod finds the API server as the kubelet tells a pod.
func InPod(account string) (*API, error) {
	read := func(name string) (string, error) {
		content, err := os.ReadFile(filepath.Join(account, name)) //nolint:gosec // the folder that the operator names
		return strings.TrimSpace(string(content)), err
	}
	host := os.Getenv(PodVariable)
	if host == "" {
		return nil, errors.New(PodVariable + " is not set, so this is no pod")
	}
	token, err := read("token")
	if err != nil {
		return nil, fmt.Errorf("the pod's service account: %w", err)
	}
	ca, err := read("ca.crt")
	if err != nil {
		return nil, fmt.Errorf("the CA of the API server: %w", err)
	}
	namespace, err := read("namespace")
	if err != nil {
		return nil, fmt.Errorf("the pod's namespace: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(account, "ca.crt"))
	}
	return &API{
		URL:       "https://" + net.JoinHostPort(host, cmp.Or(os.Getenv("KUBERNETES_SERVICE_PORT"), "443")),
		HTTP:      &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}},
		Token:     token,
		Namespace: namespace,
	}, nil
}
