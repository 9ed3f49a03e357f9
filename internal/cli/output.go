package cli

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func addJSON(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print one JSON document, as the API answers")
}

func writeJSON(w io.Writer, answer json.RawMessage) error {
	_, err := fmt.Fprintf(w, "%s\n", answer)
	return err
}

func decode(answer json.RawMessage, into any) error {
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the answer cannot be read: %w", err)
	}
	return nil
}
