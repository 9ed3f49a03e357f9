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

	own string // the namespace whose locks the console shows
}

func (c *console) readStats() (*totalled, error) {
	t := &totalled{}
	if err := c.Client.Call(http.MethodGet, "/v1/stats?scope=database&limit=100", nil, &t.Stats, 0); err != nil {
		return nil, err
	}
	if len(t.Types) > 101 || len(t.Pods) > 101 {
		return nil, errors.New("the sidecar answers with more lines than it was asked for")
	}
	var about client.About
	err := c.Client.Call(http.MethodGet, "/v1", nil, &about, 0)
	t.own = about.Namespace
	return t, err
}

func (c *console) totalsView(url.Values) view {
	return view{name: "totals", title: "Totals", show: func() content {
		return seen(c.stats.now(), func(t *totalled) any { return t })
	}}
}
