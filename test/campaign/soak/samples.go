package soak

import (
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// file keeps the samples as they come, one a line, for who wants to see more than a table
// of them, or ended a soak before its time.
type file struct {
	f     *os.File
	w     *csv.Writer
	names []string
}

func create(name string) (*file, error) {
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return &file{f: f, w: csv.NewWriter(f)}, nil
}

// add writes a sample. The first one decides which figures there are.
func (f *file) add(s sample) error {
	if f.names == nil {
		f.names = slices.Sorted(maps.Keys(s.figures))
		_ = f.w.Write(append([]string{"seconds"}, f.names...)) // Error tells, behind Flush
	}
	line := []string{fmt.Sprintf("%.0f", s.at.Seconds())}
	for _, name := range f.names {
		line = append(line, fmt.Sprint(s.figures[name]))
	}
	_ = f.w.Write(line)
	f.w.Flush()
	return f.w.Error()
}

func (f *file) close() error { return errors.Join(f.w.Error(), f.f.Close()) }
