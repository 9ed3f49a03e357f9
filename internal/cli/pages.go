package cli

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// pageSize is the most locks, or waiting calls, that one call of the API returns.
const pageSize = 1000

// page is a part of a list: of locks, or of waiting calls.
type page struct {
	Locks      []json.RawMessage `json:"locks"`
	Waiters    []json.RawMessage `json:"waiters"`
	NextCursor *string           `json:"next_cursor"` // null: there are no more
}

// pages reads a list page by page, up to limit items (0: all), and returns the cursor of what is left, if there is more.
func (c *client) pages(path string, query url.Values, limit int, each func(*page) error) (next *string, err error) {
	for read := 0; ; {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-read)
		}
		query.Set("limit", strconv.Itoa(size))
		// A plus means a space in forms only.
		encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
		var p page
		if err := c.call(http.MethodGet, path+"?"+encoded, nil, &p, 0); err != nil {
			return nil, err
		}
		if err := each(&p); err != nil {
			return nil, err
		}
		read += len(p.Locks) + len(p.Waiters)
		if p.NextCursor == nil || limit > 0 && read >= limit {
			return p.NextCursor, nil
		}
		query.Set("cursor", *p.NextCursor)
	}
}

func badLimit(limit int) error { return usagef("--limit is %d; allowed: 0 or more", limit) }
