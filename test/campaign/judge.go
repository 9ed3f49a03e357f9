package campaign

import (
	"os"

	"github.com/locksidecar/locksidecar/test/campaign/history"
)

// judge reads the history and checks it.
func (c *campaign) judge() {
	ops, err := c.read()
	if err != nil {
		c.t.Error(err)
		return
	}
	seen := make(map[history.Kind]map[history.Outcome]int)
	for _, op := range ops {
		if seen[op.Kind] == nil {
			seen[op.Kind] = make(map[history.Outcome]int)
		}
		seen[op.Kind][op.Outcome]++
	}
	c.printf("%d operations: %v", len(ops), seen)
}

func (c *campaign) read() ([]history.Op, error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	var all []history.Op
	for _, name := range c.records() {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		ops, err := history.Read(f)
		if err != nil {
			return nil, err
		}
		all = append(all, ops...)
	}
	return all, nil
}
