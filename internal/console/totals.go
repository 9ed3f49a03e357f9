package console

import (
	"errors"
	"net/http"
	"net/url"

	"github.com/locksidecar/locksidecar/internal/client"
)

// totalled is a reading of the counts of the database.
type totalled struct {
	client.Stats

	about client.Description
}

func (c *console) readStats() (*totalled, error) {
	t := &totalled{}
	if err := c.Client.Call(http.MethodGet, "/v1/stats?scope=database&limit=100", nil, &t.Stats, 0); err != nil {
		return nil, err
	}
	if len(t.Types) > 101 || len(t.Pods) > 101 {
		return nil, errors.New("the sidecar answers with more lines than it was asked for")
	}
	return t, c.Client.Call(http.MethodGet, "/v1", nil, &t.about, 0)
}

// listURL is the list of locks of a namespace; empty if the console cannot show it. The sum of the rest has none.
func (t *totalled) listURL(namespace string) string {
	switch {
	case namespace == t.about.Namespace:
		return "/"
	case namespace != "" && t.about.ShowsNamespaces():
		return namespaceURL(namespace)
	}
	return ""
}

func (c *console) totalsView(string, url.Values) view {
	return view{name: "totals", title: "Totals", show: func() content {
		return seen(c.stats.now(), func(t *totalled) any { return t })
	}}
}
