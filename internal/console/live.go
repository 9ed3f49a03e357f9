package console

import (
	"bytes"
	"net/http"
	"net/url"
	"time"
)

const (
	// tick is how often a stream looks for changes. With the rest of a feed, a change is seen in less than a second.
	tick = 500 * time.Millisecond
	// keepAlive is how often a stream without changes is written to, so that proxies keep it.
	keepAlive = 15 * time.Second
)

// viewer opens a page of a namespace; empty: the sidecar's own. show returns the page as it is now, and may be called repeatedly.
type viewer func(namespace string, q url.Values) (v view)

type view struct {
	name, title string
	show        func() content
}

// content is the part of a page that changes, and its data.
type content struct {
	Data any
	// Problem is why the sidecar's present answer is missing. Seen is the time of the shown one; empty: none is shown.
	Problem, Seen string
}

// seen is the content of a reading.
func seen[T any](r reading[T], data func(T) any) (c content) {
	if r.err != nil {
		c.Problem = r.err.Error()
	}
	if !r.seen.IsZero() {
		c.Seen, c.Data = r.seen.UTC().Format(time.TimeOnly), data(r.value)
	}
	return c
}

// page is the data of a whole page.
type page struct {
	content

	Name, Title, Live string
	Notice            string
	// Namespace is the one that is shown; empty: the sidecar's own.
	Namespace string
	Choice    namespaces
}

func (c *console) servePage(w http.ResponseWriter, r *http.Request, open viewer) {
	q := r.URL.Query()
	c.writePage(r, w, q, open, notices[q.Get("done")], http.StatusOK)
}

func (c *console) writePage(r *http.Request, w http.ResponseWriter, q url.Values, open viewer, notice string, status int) {
	namespace := r.PathValue("namespace")
	v := open(namespace, q)
	p := page{content: v.show(), Name: v.name, Title: v.title, Notice: notice, Namespace: namespace, Choice: c.spaces.now().value}
	p.Live = "./live" + paths[v.name] + "?" + q.Encode()
	if p.Problem != "" && status == http.StatusOK {
		status = http.StatusServiceUnavailable
	}
	var out bytes.Buffer
	if err := wholePage(p).Render(r.Context(), &out); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(out.Bytes())
}

// paths are the pages' addresses. That of a key ends with its query.
var paths = map[string]string{"locks": "/", "key": "/key", "waits": "/waits", "sidecars": "/sidecars", "totals": "/totals"}

// serveLive sends the changing part of a page each time that it has changed.
func (c *console) serveLive(w http.ResponseWriter, r *http.Request, open viewer) {
	select {
	case c.streams <- struct{}{}:
		defer func() { <-c.streams }()
	default:
		w.Header().Set("Retry-After", "5")
		w.Header().Set("Connection", "close") // a browser would keep the connection, and take the place of a page
		http.Error(w, "too many live pages", http.StatusServiceUnavailable)
		return
	}
	v := open(r.PathValue("namespace"), r.URL.Query())
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would keep the events back
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // it would end the request, too
	var last []byte
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for wrote := time.Now(); ; {
		var now bytes.Buffer
		if err := live(v.show()).Render(r.Context(), &now); err != nil {
			return
		}
		var event []byte
		switch {
		case !bytes.Equal(now.Bytes(), last):
			last = now.Bytes()
			event = append([]byte("data: "), bytes.ReplaceAll(last, []byte("\n"), []byte("\ndata: "))...)
			event = append(event, "\n\n"...)
		case time.Since(wrote) > keepAlive:
			event = []byte(":\n\n")
		}
		if event != nil {
			wrote = time.Now()
			_ = out.SetWriteDeadline(wrote.Add(writePatience))
			if _, err := w.Write(event); err != nil {
				return
			}
			if err := out.Flush(); err != nil {
				return
			}
		}
		select {
		case <-ticker.C:
		case <-r.Context().Done():
			return
		}
	}
}
