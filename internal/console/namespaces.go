package console

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
)

// namespacesRest is the least time between two readings of the namespaces, because the sidecar counts all locks for them.
const namespacesRest = 10 * time.Second

// namespaces are those that can be chosen; none if the sidecar shows only its own.
type namespaces struct {
	own    string
	others []string
}

// readNamespaces asks for the names only if the sidecar shows others than its own.
func (c *console) readNamespaces() (n namespaces, err error) {
	var about client.Description
	if err := c.Client.Call(http.MethodGet, "/v1", nil, &about, 0); err != nil || !about.ShowsNamespaces() {
		return n, err
	}
	var counts client.Stats
	if err := c.Client.Call(http.MethodGet, "/v1/stats?scope=database&limit=1000", nil, &counts, 0); err != nil {
		return n, err
	}
	n.own = about.Namespace
	for _, t := range counts.Types {
		// A path cannot have a part that is only dots. The sum of the rest has no namespace.
		if name := t.Namespace; name != "" && name != n.own && name != "." && name != ".." {
			n.others = append(n.others, name)
		}
	}
	slices.Sort(n.others)
	n.others = slices.Compact(n.others)
	return n, nil
}

// namespaceURL is the list of locks of another namespace than the sidecar's own.
func namespaceURL(name string) string { return "/n/" + url.PathEscape(name) + "/" }

// queryOf selects a namespace; empty: the sidecar's own.
func queryOf(namespace string) url.Values {
	if namespace == "" {
		return url.Values{}
	}
	return url.Values{"namespace": {namespace}}
}
