package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/exitcode"
	"github.com/locksidecar/locksidecar/internal/inject"
	"github.com/locksidecar/locksidecar/internal/kubeapi"
)

const injectCertificateLong = `Make the certificate of the injector's webhook, in a pod of the cluster
(deploy/injector/certificate-job.yaml), and give its CA to the webhook's configuration. The
certificate is a Secret and is valid for 90 days. Run it each day: it makes a new one in the
last 30 days, and changes nothing before that.

It also makes a new CA after some years, or when the CA's Secret was deleted. API servers trust
both CAs for about two days: the run that makes the new one adds it to the configuration, a run
of at least 12 hours later makes a certificate of it, and a run of another 12 hours later
removes the old one. So no pod is refused in between.`

func (a *app) injectCertificateCommand() *cobra.Command {
	var account, namespace string
	cmd := &cobra.Command{
		Use:   "certificate",
		Short: "Make and renew the certificate of the injector's webhook, in a pod of the cluster",
		Long:  injectCertificateLong,
		Args:  exactly(0),
	}
	cmd.Flags().StringVar(&account, "service-account", kubeapi.Account, "folder with the pod's token and the CA of the API server")
	cmd.Flags().StringVar(&namespace, "namespace", "", "the injector's namespace (default: the pod's)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := kubeapi.InPod(account)
		if err != nil {
			return exitcode.With(exitcode.Config, fmt.Errorf("%w: this command runs in a pod, see deploy/injector/certificate-job.yaml", err))
		}
		issuer := inject.Issuer{API: api, Namespace: cmp.Or(namespace, api.Namespace)}
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
