package client

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// PageSize is the API's maximum of locks, or waiting calls, for one page.
const PageSize = 1000

// Page is a part of a list of locks, or of waiting calls.
type Page struct {
	Locks      []json.RawMessage `json:"locks"`
	Waiters    []json.RawMessage `json:"waiters"`
	NextCursor *string           `json:"next_cursor"` // null: there are no more
}

// Pages reads a list page by page, up to limit items (0: all). It returns the cursor of the rest, if there is more.
func (c *Client) Pages(path string, query url.Values, limit int, each func(*Page) error) (next *string, err error) {
	for read := 0; ; {
		size := PageSize
		if limit > 0 {
			size = min(size, limit-read)
		}
		query.Set("limit", strconv.Itoa(size))
		// A plus means a space only in forms.
		encoded := strings.ReplaceAll(query.Encode(), "+", "%20")
		var p Page
		if err := c.Call(http.MethodGet, path+"?"+encoded, nil, &p, 0); err != nil {
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
