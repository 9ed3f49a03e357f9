package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// The forms of an output. Only some commands have the wide one.
const (
	outputText = "text"
	outputWide = "wide"
	outputJSON = "json"
)

// outputFlag is -o. It refuses other forms than those of its command.
type outputFlag struct {
	form  string
	forms []string
}

func (o *outputFlag) String() string { return o.form }
func (o *outputFlag) Type() string   { return "form" }
func (o *outputFlag) Set(text string) error {
	if !slices.Contains(o.forms, text) {
		return fmt.Errorf("allowed: %s", strings.Join(o.forms, ", "))
	}
	o.form = text
	return nil
}

// addOutput adds -o, and --json, which is short for -o json. document says what is printed then.
func addOutput(cmd *cobra.Command, document string, wide ...string) {
	o := &outputFlag{form: outputText, forms: append([]string{outputText}, append(wide, outputJSON)...)}
	cmd.Flags().VarP(o, "output", "o", strings.Join(o.forms, ", ")+". json: "+document)
	cmd.Flags().BoolFunc("json", "the same as -o json", func(text string) error {
		switch text {
		case "true":
			return o.Set(outputJSON)
		case "false":
			return o.Set(outputText)
		}
		return fmt.Errorf("allowed: true or false")
	})
}

func addJSON(cmd *cobra.Command) { addOutput(cmd, "one document, as the API answers") }

// outputOf is the chosen form of the output.
func outputOf(cmd *cobra.Command) string { return cmd.Flags().Lookup("output").Value.String() }

func wantsJSON(cmd *cobra.Command) bool { return outputOf(cmd) == outputJSON }

// show prints an answer: as JSON as received, otherwise with write.
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

// writeLines writes documents, each in a line.
func writeLines(w io.Writer, documents []json.RawMessage) error {
	for _, document := range documents {
		if err := writeJSON(w, document); err != nil {
			return err
		}
	}
	return nil
}
