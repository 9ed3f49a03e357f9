package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/inject"
)

func (a *app) injectCommand() *cobra.Command {
	var file string
	var env []string
	o := inject.Options{Image: inject.DefaultImage, Secret: inject.DefaultSecret}
	cmd := &cobra.Command{
		Use:   "inject -f FILE",
		Short: "Put the sidecar into Kubernetes manifests",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, v := range env {
				name, value, ok := strings.Cut(v, "=")
				if !ok {
					return usagef("--env %q: it must be NAME=VALUE", v)
				}
				o.Env = append(o.Env, inject.Variable{Name: name, Value: value})
			}
			in := cmd.InOrStdin()
			if file != "-" {
				opened, err := os.Open(file)
				if err != nil {
					return err
				}
				defer opened.Close()
				in = opened
			}
			stream, err := io.ReadAll(in)
			if err != nil {
				return err
			}
			injected, err := inject.Documents(stream, o)
			if err != nil {
				return because(exitUsage, err)
			}
			_, err = cmd.OutOrStdout().Write(injected)
			return err
		},
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file with manifests, - for standard input")
	cmd.Flags().StringVar(&o.Image, "image", o.Image, "the sidecar's image")
	cmd.Flags().StringVar(&o.Secret, "secret", o.Secret, "the Secret with the store's URL under the key store-url")
	cmd.Flags().StringArrayVar(&env, "env", nil, "a further variable of the sidecar, NAME=VALUE; may be repeated")
	a.addWebhook(cmd)
	return cmd
}
