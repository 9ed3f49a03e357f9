package console

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
)

// keyState is a reading of a key.
type keyState struct {
	lock    client.Lock
	waiters []*client.Waiter // the first ones
}

func (c *console) readKey(name keyName) (*keyState, error) {
	s := &keyState{}
	var err error
	if name.namespace == "" {
		err = c.Client.Call(http.MethodGet, client.LockPath(name.key), nil, &s.lock, 0)
	} else {
		err = c.readHeld(name, &s.lock)
	}
	if err != nil {
		return nil, err
	}
	if name.namespace == "" && s.lock.QueueLength == 0 {
		return s, nil
	}
	_, err = c.Client.Pages(client.LockPath(name.key)+"/waiters", queryOf(name.namespace), rowsShown, func(p *client.Page) error {
		for _, encoded := range p.Waiters {
			w := &client.Waiter{}
			if err := json.Unmarshal(encoded, w); err != nil {
				return err
			}
			s.waiters = append(s.waiters, w)
		}
		return nil
	})
	return s, err
}

// readHeld reads a key of another namespace: a list whose first lock is that of the key, if it is held.
func (c *console) readHeld(name keyName, lock *client.Lock) error {
	lock.Key = name.key
	query := queryOf(name.namespace)
	query.Set("prefix", name.key)
	_, err := c.Client.Pages("/v1/locks", query, 1, func(p *client.Page) error {
		for _, encoded := range p.Locks {
			var first client.Lock
			if err := json.Unmarshal(encoded, &first); err != nil {
				return err
			}
			if first.Key == name.key {
				*lock = first
			}
		}
		return nil
	})
	return err
}

// keyed is the data of a key's page.
type keyed struct {
	Key, Type, Mode       string
	Held, Kept            bool
	Holders               []holder
	MoreHolders, Queue    int
	Waiters               []wait
	MoreWaiters           int
	Events                []event
	Unwatched             string // why no events come, or fewer
	CSRF                  string
	AllowStop, AllowForce bool
}

// holder is one holder of a key.
type holder struct {
	ID             string
	Who            who
	Instance       string
	Held           int64
	Acquired, Ends string
	Seen           string // names this grant: see act
	Token, Slot    string // of a shared lock
	Data, Trace    string
	Stopping       string
}

var errNoKey = errors.New("a key has 1 to 512 bytes")

func (c *console) keyView(namespace string, q url.Values) view {
	key := q.Get("key")
	name := keyName{namespace, key}
	if key == "" || len(key) > maxKey {
		return view{name: "key", title: "Key", show: func() content { return content{Problem: errNoKey.Error()} }}
	}
	if q.Has("done") {
		c.topics.of(name).feed.after(time.Now()) // it shows what the action has changed
	}
	return view{name: "key", title: shortened(client.Printable(key)), show: func() content {
		t := c.topics.of(name)
		return seen(t.feed.now(), func(s *keyState) any { return c.keyed(t, s) })
	}}
}

func (c *console) keyed(t *topic, s *keyState) *keyed {
	l := &s.lock
	d := &keyed{
		Key: t.name.key, Type: l.Type, Held: l.Holder != nil, Kept: l.Kept, Mode: l.LockMode.String(), Queue: max(l.QueueLength, len(s.waiters)),
		MoreWaiters: max(0, l.QueueLength-len(s.waiters)), CSRF: c.csrf, AllowStop: c.AllowStop && t.name.namespace == "", AllowForce: c.AllowForce && t.name.namespace == "",
	}
	d.Events, d.Unwatched = t.seen()
	if l.Holder != nil && l.Mode != client.ModeShared {
		d.Holders = []holder{c.holderOf(l.Holder, l.Stopping)}
	}
	for i := range l.Holders {
		shared := &l.Holders[i]
		h := c.holderOf(&shared.Holder, shared.Stopping)
		if shared.Token != 0 { // a sidecar that may only read does not know it
			h.Token = strconv.FormatInt(shared.Token, 10)
			h.ID += h.Token
		}
		if shared.Slot != nil {
			h.Slot = strconv.Itoa(*shared.Slot)
		}
		d.Holders = append(d.Holders, h)
	}
	d.MoreHolders = max(0, l.HoldersCount-len(d.Holders))
	for _, w := range s.waiters {
		d.Waiters = append(d.Waiters, c.waitOf(w))
	}
	return d
}

func (c *console) holderOf(h *client.Holder, stopping *client.StopRequest) holder {
	seen := h.Grant()
	shown := holder{
		ID: rowID(seen), Seen: seen, Who: whoOf(h.Pod, h.Session, h.Owner), Instance: h.Instance,
		Held: h.HeldMS, Acquired: utc(h.AcquiredAt), Ends: ends(h), Trace: c.traceURL(h.Traceparent),
	}
	if data := string(h.Data); data != "null" {
		shown.Data = data
	}
	if stopping != nil {
		shown.Stopping = stopping.String()
	}
	return shown
}

// notices are what a page says after an action.
var notices = map[string]string{
	"stop":  "The holder was asked to stop. It decides itself when it releases the lock.",
	"break": "The lock was broken.",
}

// sent is a form that was sent.
type sent struct{ key, token, seen, reason string }

var errChanged = errors.New("the holder has changed since you looked")

// act carries out a form for the holder that its user saw.
func (c *console) act(w http.ResponseWriter, r *http.Request, do func(o sent) (done string, err error)) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if !c.mayAct(r) {
		http.Error(w, "this page is from before a restart of the console: go back, reload it, and try again", http.StatusForbidden)
		return
	}
	o := sent{r.PostFormValue("key"), r.PostFormValue("token"), r.PostFormValue("seen"), r.PostFormValue("reason")}
	done, err := "", errNoKey
	if o.key != "" && len(o.key) <= maxKey {
		if err = c.checkSeen(o); err == nil {
			done, err = do(o)
		}
	}
	if err != nil {
		q, what := url.Values{"key": {o.key}, "done": {""}}, "Not done: "
		if _, unanswered := errors.AsType[*client.UnansweredError](err); unanswered {
			what = "Perhaps done: "
		}
		c.writePage(r, w, q, c.keyView, what+err.Error(), http.StatusConflict)
		return
	}
	http.Redirect(w, r, keyURL(o.key)+"&done="+done, http.StatusSeeOther)
}

// checkSeen fails unless the holder that the user saw still holds the lock. A change right after this goes unnoticed,
// except for shared locks, whose tokens are known.
func (c *console) checkSeen(o sent) error {
	var l client.Lock
	if err := c.Client.Call(http.MethodGet, client.LockPath(o.key), nil, &l, 0); err != nil {
		return err
	}
	for i := range l.Holders {
		if h := &l.Holders[i]; strconv.FormatInt(h.Token, 10) == o.token && h.Grant() == o.seen {
			return nil
		}
	}
	if l.Holder != nil && l.Mode != client.ModeShared && o.token == "" && l.Holder.Grant() == o.seen {
		return nil
	}
	return errChanged
}

func (c *console) stop(o sent) (done string, err error) {
	path := client.LockPath(o.key) + "/stop"
	if o.token != "" {
		path += "?token=" + url.QueryEscape(o.token)
	}
	body := map[string]string{}
	if o.reason != "" {
		body["reason"] = o.reason
	}
	return "stop", c.Client.Call(http.MethodPost, path, body, nil, 0)
}

func (c *console) force(o sent) (done string, err error) {
	path := client.LockPath(o.key) + "?force=true"
	if o.token != "" {
		path += "&token=" + url.QueryEscape(o.token)
	}
	return "break", c.Client.WithPatience(breakPatience).Call(http.MethodDelete, path, nil, nil, 0)
}
