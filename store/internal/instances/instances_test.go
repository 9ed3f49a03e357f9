package instances

import (
	"strings"
	"testing"
)

func TestOneViewOfAnInstance(t *testing.T) {
	var r Running
	first, second, other := new(int), new(int), new(int)
	if err := r.Begin("a", first); err != nil {
		t.Fatal(err)
	}
	if err := r.Begin("a", second); err == nil || !strings.Contains(err.Error(), `"a" has a view`) {
		t.Errorf("a second view: %v", err)
	}
	if err := r.Begin("b", other); err != nil {
		t.Errorf("another instance: %v", err)
	}
	r.End("a", second) // the refused view is stopped, too
	if r.Begin("a", second) == nil {
		t.Error("the end of a view that was refused ended the first one")
	}
	if n := r.Count(); n != 2 {
		t.Errorf("%d views run, want 2", n)
	}
	r.End("a", first)
	if err := r.Begin("a", second); err != nil {
		t.Errorf("a view after the end of the first one: %v", err)
	}
}
