package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/valyala/fasthttp"
)

// output is the value of --output.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

func addOutput(cmd *cobra.Command) *output {
	format := outputText
	cmd.Flags().VarP(&format, "output", "o", "text or json (as the API answers)")
	return &format
}

func (o *output) String() string { return string(*o) }

// Type is the value's name in the help.
func (o *output) Type() string { return "format" }

func (o *output) Set(value string) error {
	switch v := output(value); v {
	case outputText, outputJSON:
		*o = v
		return nil
	}
	return fmt.Errorf("allowed: %s, %s", outputText, outputJSON)
}

func (a *app) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get KEY",
		Short:   "Show one lock: free, or held by whom",
		Example: "  locksidecar get backup:nightly\n  locksidecar get backup:nightly -o json | jq .holder.pod",
		Args:    exactly(1),
	}
	format := addOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var answer json.RawMessage
		if err := a.newClient().call(fasthttp.MethodGet, lockPath(args[0]), nil, &answer, 0); err != nil {
			return err
		}
		if *format == outputJSON {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", answer)
			return err
		}
		var lock lockView
		if err := json.Unmarshal(answer, &lock); err != nil {
			return fmt.Errorf("the answer cannot be read: %w", err)
		}
		return lock.write(cmd.OutOrStdout())
	}
	return cmd
}

func (l *lockView) write(w io.Writer) error {
	text := fmt.Sprintf("%s is %s", l.Key, l.State)
	if h := l.Holder; h != nil {
		text = fmt.Sprintf("%s is %s\nacquired at %s\nwaiting: %d",
			l.Key, h, h.AcquiredAt.Format("2006-01-02 15:04:05.000 MST"), l.QueueLength)
		if len(h.Data) > 0 && string(h.Data) != "null" {
			text += "\ndata: " + string(h.Data)
		}
	}
	if s := l.Stopping; s != nil {
		reason := "no reason given"
		if s.Reason != nil {
			reason = *s.Reason
		}
		text += "\nstopping: " + reason
	}
	_, err := fmt.Fprintln(w, text)
	return err
}
