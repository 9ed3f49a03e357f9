// Package types has what the rooms of lease have in common. Package lease exports it.
package types

import "fmt"

// LimitError: one of the configured limits is reached.
type LimitError struct {
	// What names the limited thing in words.
	What string
	// Setting is the environment variable that sets it, empty if it is fixed.
	Setting string
	Limit   int
}

func (e *LimitError) Error() string {
	if e.Setting == "" {
		return fmt.Sprintf("too many %s: the limit is %d", e.What, e.Limit)
	}
	return fmt.Sprintf("too many %s: %s is %d", e.What, e.Setting, e.Limit)
}
