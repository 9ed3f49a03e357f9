// Package instances keeps an instance from having two views that run in one space. They would share a name, and each would get the news of both or none.
package instances

import (
	"fmt"
	"sync"
)

// Running are the instances whose views run in a space. The zero value is ready.
type Running struct {
	mu    sync.Mutex
	views map[string]any // by their instances
}

// Count is how many views run.
func (r *Running) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.views)
}

// Begin notes that the view of an instance, a pointer, starts. It fails if another one runs.
func (r *Running) Begin(instance string, view any) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, found := r.views[instance]; found {
		return fmt.Errorf("the instance %q has a view that runs in this process: stop that one first, or give this one a name of its own", instance)
	}
	if r.views == nil {
		r.views = map[string]any{}
	}
	r.views[instance] = view
	return nil
}

// End notes that the view has stopped, and nothing of it is left. If it has not begun, End does nothing.
func (r *Running) End(instance string, view any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.views[instance] == view {
		delete(r.views, instance)
	}
}
