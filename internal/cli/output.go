package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func addJSON(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "print one JSON document, as the API answers")
}

func wantsJSON(cmd *cobra.Command) bool {
	on, _ := cmd.Flags().GetBool("json")
	return on
}

// show prints an answer: with --json as received, otherwise with write.
func show[T any](cmd *cobra.Command, answer json.RawMessage, write func(*T, io.Writer) error) error {
	if wantsJSON(cmd) {
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s\n", answer)
		return err
	}
	var view T
	if err := decode(answer, &view); err != nil {
		return err
	}
	return write(&view, cmd.OutOrStdout())
}

func writeJSON(w io.Writer, document any) error {
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false) // the API does not escape it either
	return out.Encode(document)
}

func decode(answer json.RawMessage, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the answer cannot be read: %w", err)
	}
	return nil
}
