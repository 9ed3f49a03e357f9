package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"hash/fnv"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/client"
)

const (
	// maxLocks and maxBytes limit a reading of the locks, as in `top`. maxLists limits the types that are read apart.
	maxLocks = 10_000
	maxBytes = 64 << 20
	maxLists = 16
	// rowsShown limits the rows of a page.
	rowsShown = 100
	// typesShown limits the types that the filter suggests.
	typesShown = 50
)

// list is a reading of the locks.
type list struct {
	locks        []*client.Lock
	more         bool // there are more than were read
	types        []string
	shared, wait int
	longest      int64
	holds        map[holderName]*hold
}

// holderName is a session with its sidecar. The session is empty for locks without one (bind:ttl).
type holderName struct{ instance, pod, session string }

// hold is what a session holds.
type hold struct {
	locks   int
	longest int64
}

// listName names a list: the locks of a type, or all if it is empty, in a namespace.
type listName struct{ namespace, kind string }

func (c *console) listOf(name listName) *feed[*list] {
	return feedOf(c.lists, name, func() (*list, error) { return c.readList(name) })
}

var errEnough = errors.New("enough")

func (c *console) readList(name listName) (*list, error) {
	query := queryOf(name.namespace)
	if name.kind != "" {
		query.Set("type", name.kind)
	}
	l := &list{holds: map[holderName]*hold{}}
	types := map[string]bool{}
	bytes := 0
	next, err := c.Client.Pages("/v1/locks", query, maxLocks, func(p *client.Page) error {
		for _, encoded := range p.Locks {
			lock := &client.Lock{}
			if err := json.Unmarshal(encoded, lock); err != nil {
				return err
			}
			if lock.Holder == nil {
				continue
			}
			types[lock.Type] = true
			l.add(lock)
			bytes += len(encoded)
		}
		if bytes > maxBytes {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	l.more = next != nil || err != nil
	for kind := range types {
		l.types = append(l.types, client.Printable(kind))
	}
	slices.Sort(l.types)
	l.types = l.types[:min(len(l.types), typesShown)]
	return l, nil
}

// count adds a lock to what its holder has.
func (l *list) count(h *client.Holder) {
	name := holderName{instance: h.Instance, pod: h.Pod}
	if h.Session != nil {
		name.session = *h.Session
	}
	has := at(l.holds, name)
	has.locks++
	has.longest = max(has.longest, h.HeldMS)
}

// add keeps of a lock what lists show. The holders of a shared lock matter if calls wait for it.
func (l *list) add(lock *client.Lock) {
	lock.Holder.Data = nil
	if lock.Mode != client.ModeShared {
		l.count(lock.Holder)
	}
	for i := range lock.Holders {
		lock.Holders[i].Data = nil
		l.count(&lock.Holders[i].Holder)
	}
	if lock.QueueLength == 0 {
		lock.Holders = nil
	}
	l.locks = append(l.locks, lock)
	l.wait += lock.QueueLength
	l.longest = max(l.longest, lock.Holder.HeldMS)
	if lock.Mode == client.ModeShared {
		l.shared++
	}
}

// orders are the columns of the list. All begin with the row that is looked for most often: the oldest hold, the
// longest queue, the next end.
var orders = []struct {
	name, label string
	compare     func(a, b *client.Lock) int
}{
	{"key", "Key", func(a, b *client.Lock) int { return cmp.Compare(a.Key, b.Key) }},
	{"type", "Type", func(a, b *client.Lock) int { return cmp.Compare(a.Type, b.Type) }},
	{"mode", "Mode", func(a, b *client.Lock) int { return cmp.Compare(a.Mode, b.Mode) }},
	{"holder", "Holder", func(a, b *client.Lock) int { return cmp.Compare(a.Holder.Name(), b.Holder.Name()) }},
	{"held", "Held for", func(a, b *client.Lock) int { return cmp.Compare(b.Holder.HeldMS, a.Holder.HeldMS) }},
	{"ends", "Ends", func(a, b *client.Lock) int {
		return cmp.Or(cmp.Compare(a.Holder.Bind(), b.Holder.Bind())*-1, cmp.Compare(a.Holder.ExpiresInMS, b.Holder.ExpiresInMS))
	}},
	{"queue", "Queue", func(a, b *client.Lock) int { return cmp.Compare(b.QueueLength, a.QueueLength) }},
}

// choice is what a page of the list shows.
type choice struct {
	Text, Type, Mode, Sort string
	Waited, Reverse        bool
	query                  url.Values // all of this
}

func choose(q url.Values) choice {
	ch := choice{Text: q.Get("q"), Type: q.Get("type"), Mode: q.Get("mode"), Waited: q.Get("waited") != "", query: q}
	ch.Sort, ch.Reverse = strings.CutPrefix(q.Get("sort"), "-")
	ch.Sort = cmp.Or(ch.Sort, "held")
	return ch
}

// order is the order as the address has it.
func (ch choice) order() string {
	if ch.Reverse {
		return "-" + ch.Sort
	}
	return ch.Sort
}

// href is the address of the list with another value of one parameter. Unless this is the page, the first one is shown.
func (ch choice) href(name, value string) string {
	q := maps.Clone(ch.query)
	q.Del("page")
	q.Set(name, value)
	return "./?" + q.Encode()
}

// of returns the chosen locks in order.
func (ch choice) of(locks []*client.Lock) (chosen []*client.Lock) {
	text := strings.ToLower(ch.Text)
	for _, l := range locks {
		if ch.Mode != "" && l.Mode != ch.Mode || ch.Waited && l.QueueLength == 0 ||
			!strings.Contains(strings.ToLower(l.Key+"\n"+l.Holder.Name()), text) {
			continue
		}
		chosen = append(chosen, l)
	}
	for _, o := range orders {
		if o.name == ch.Sort {
			slices.SortStableFunc(chosen, o.compare) // the API sorts them by key
		}
	}
	if ch.Reverse {
		slices.Reverse(chosen)
	}
	return chosen
}

type column struct{ Label, Name, Href, Order string }

// listed is the data of the list's page.
type listed struct {
	choice

	Columns               []column
	Rows                  []row
	Held, Shared, Waiting int
	Longest               int64
	Matching, Page, Pages int
	Previous, Next        string
	More                  bool
	Types                 []string
}

func (c *console) listView(namespace string, q url.Values) view {
	ch := choose(q)
	locks := c.listOf(listName{namespace, ch.Type})
	return view{name: "locks", title: "Locks", show: func() content {
		return seen(locks.now(), func(l *list) any { return ch.show(l) })
	}}
}

func (ch choice) show(l *list) *listed {
	chosen := ch.of(l.locks)
	d := &listed{
		choice: ch, Held: len(l.locks), Shared: l.shared, Waiting: l.wait, Longest: l.longest, More: l.more, Types: l.types,
		Matching: len(chosen), Pages: max(1, (len(chosen)+rowsShown-1)/rowsShown),
	}
	page, _ := strconv.Atoi(ch.query.Get("page"))
	d.Page = min(max(page, 1), d.Pages)
	for _, o := range orders {
		col := column{Label: o.label, Name: o.name, Href: ch.href("sort", o.name)}
		switch {
		case o.name == ch.Sort && ch.Reverse:
			col.Order = "descending"
		case o.name == ch.Sort:
			col.Order, col.Href = "ascending", ch.href("sort", "-"+o.name)
		}
		d.Columns = append(d.Columns, col)
	}
	if d.Page > 1 {
		d.Previous = ch.href("page", strconv.Itoa(d.Page-1))
	}
	if d.Page < d.Pages {
		d.Next = ch.href("page", strconv.Itoa(d.Page+1))
	}
	from := (d.Page - 1) * rowsShown
	for _, lock := range chosen[from:min(from+rowsShown, len(chosen))] {
		d.Rows = append(d.Rows, rowOf(lock))
	}
	return d
}

// row is a lock in a list.
type row struct {
	ID, Key, Type, Mode string
	Holder              who
	Held                int64
	Acquired, Ends      string
	Queue               int
	Stopping, Kept      bool
}

func rowOf(l *client.Lock) row {
	return row{
		ID: rowID(l.Key), Key: l.Key, Type: l.Type, Mode: l.LockMode.String(), Holder: whoOf(l.Holder.Pod, l.Holder.Session, l.Holder.Owner),
		Held: l.Holder.HeldMS, Acquired: utc(l.Holder.AcquiredAt), Ends: ends(l.Holder), Queue: l.QueueLength, Stopping: l.Stopping != nil, Kept: l.Kept,
	}
}

// rowID lets a browser find the row of a key again, with its focus, wherever it moves.
func rowID(key string) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(key))
	return "k" + strconv.FormatUint(sum.Sum64(), 36)
}

// ends says when a lock ends without a release.
func ends(h *client.Holder) string {
	if h.Bind() == "session" {
		return "renewed"
	}
	return "in " + duration(h.ExpiresInMS)
}

func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }

// who is a holder or a waiting caller.
type who struct{ Pod, Session, Owner string }

func whoOf(pod string, session, owner *string) who {
	w := who{Pod: pod}
	if session != nil {
		w.Session = *session
	}
	if owner != nil {
		w.Owner = *owner
	}
	return w
}
