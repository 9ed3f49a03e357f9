package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// result is a row of the table.
type result struct {
	id, what string
	figure   string
	peer     string
	ratio    string
	goal     string
	reached  bool
	// score is the number that is comparable with other runs', on other machines too:
	// a ratio, or a size. 0: there is none.
	score float64
	// less is better.
	less bool
}

// table is what is shown.
func table(results []result) string {
	var t strings.Builder
	t.WriteString("| goal | what | figure | measured beside it | ratio | wanted | reached |\n|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		reached := "yes"
		switch {
		case r.goal == none:
			reached = none
		case !r.reached:
			reached = "**no**"
		}
		fmt.Fprintf(&t, "| %s | %s | %s | %s | %s | %s | %s |\n", r.id, r.what, r.figure, r.peer, r.ratio, r.goal, reached)
	}
	return t.String()
}

// wants sets a goal for the ratio, which is the score.
func (r result) wants(goal float64) result {
	if r.less {
		r.goal, r.reached = fmt.Sprintf("at most %.2f", goal), r.score <= goal
	} else {
		r.goal, r.reached = fmt.Sprintf("at least %.2f", goal), r.score >= goal
	}
	return r
}

// none stands where there is no figure.
const none = "–"

// scored is a row as it is kept for later runs.
type scored struct {
	ID    string  `json:"id"`
	What  string  `json:"what"`
	Score float64 `json:"score"`
	// LessIsBetter is true of times and sizes.
	LessIsBetter bool `json:"less_is_better"`
}

// maxLoss is how much worse a score may be than it was.
const maxLoss = 0.25

// scores are the rows that can be compared.
func scores(results []result) (rows []scored) {
	for _, r := range results {
		if r.score > 0 {
			rows = append(rows, scored{ID: r.id, What: r.what, Score: r.score, LessIsBetter: r.less})
		}
	}
	return rows
}

func writeScores(path string, results []result) error {
	text, err := json.MarshalIndent(scores(results), "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

func readScores(path string) (rows []scored, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("there is nothing to compare with (go run ./bench -write makes it): %w", err)
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

// compare names the rows that are worse than before by more than maxLoss, and those
// that were measured then and now are not though their goal was.
func compare(before, now []scored) error {
	type key struct{ id, what string }
	found, measured := make(map[key]scored), make(map[string]bool)
	for _, r := range now {
		found[key{r.ID, r.What}], measured[r.ID] = r, true
	}
	var losses []error
	for _, was := range before {
		is, ok := found[key{was.ID, was.What}]
		switch {
		case !ok && measured[was.ID]:
			losses = append(losses, fmt.Errorf("%s, %s: was measured before, and is not now", was.ID, was.What))
		case ok && is.worse(was):
			losses = append(losses, fmt.Errorf("%s, %s: %.3g, and was %.3g", was.ID, was.What, is.Score, was.Score))
		}
	}
	return errors.Join(losses...)
}

// worse tells whether a row has lost more than it may.
func (is scored) worse(was scored) bool {
	if is.LessIsBetter {
		return is.Score > was.Score*(1+maxLoss)
	}
	return is.Score < was.Score*(1-maxLoss)
}
