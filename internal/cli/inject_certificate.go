package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/inject"
)

const injectCertificateLong = `Make the certificate of the injector's webhook, in a pod of the cluster
(deploy/injector/certificate-job.yaml), and give its CA to the webhook's configuration. The
certificate is a Secret and is valid for 90 days. Run it again and again: it makes a new one
in the last 30 days, and changes nothing before that.`

func (a *app) injectCertificateCommand() *cobra.Command {
	var account, namespace string
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "Make and renew the certificate of the injector's webhook, in a pod of the cluster",
		Long:  injectCertificateLong,
		Args:  exactly(0),
	}
	cmd.Flags().StringVar(&account, "service-account", "/var/run/secrets/kubernetes.io/serviceaccount", "folder with the pod's token and the CA of the API server")
	cmd.Flags().StringVar(&namespace, "namespace", "", "the injector's namespace (default: the pod's)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		issuer, err := inCluster(account, namespace)
		if err != nil {
			return exitcode.With(exitcode.Config, err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), time.Minute)
		defer cancel()
		until, err := issuer.Renew(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "the injector's certificate is valid until %s\n", until.UTC().Format(time.RFC3339))
		return err
	}
	return cmd
}

// inCluster finds the API server as the kubelet tells a pod.
func inCluster(account, namespace string) (*inject.Issuer, error) {
	read := func(name string) (string, error) {
		content, err := os.ReadFile(filepath.Join(account, name)) //nolint:gosec // the folder that the operator names
		return strings.TrimSpace(string(content)), err
	}
	host := os.Getenv("KUBERNETES_SERVICE_HOST")
	if host == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST is not set: this command runs in a pod, see deploy/injector/certificate-job.yaml")
	}
	token, err := read("token")
	if err != nil {
		return nil, fmt.Errorf("the pod's service account: %w", err)
	}
	ca, err := read("ca.crt")
	if err != nil {
		return nil, fmt.Errorf("the CA of the API server: %w", err)
	}
	if namespace == "" {
		if namespace, err = read("namespace"); err != nil {
			return nil, fmt.Errorf("the pod's namespace: %w", err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(account, "ca.crt"))
	}
	return &inject.Issuer{
		API:       "https://" + net.JoinHostPort(host, cmp.Or(os.Getenv("KUBERNETES_SERVICE_PORT"), "443")),
		Client:    &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}},
		Token:     token,
		Namespace: namespace,
	}, nil
}
