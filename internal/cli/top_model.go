package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// The orders of `top`: see topLock.compare.
const (
	byKey     = "key"
	byHolder  = "holder"
	byAge     = "age"
	byWaiters = "waiters"
	byExpiry  = "expiry"
)

// topSorts are the orders, as the key s goes through them.
var topSorts = []string{byAge, byWaiters, byExpiry, byKey, byHolder}

// topLock is a lock as `top` shows it. The texts are printable.
type topLock struct {
	key, keyText string
	holder       string
	age, expires time.Duration
	waiters      int
}

func newTopLock(lock *lockView) topLock {
	t := topLock{key: lock.Key, keyText: printable(lock.Key), waiters: lock.QueueLength}
	h := lock.Holder
	if h == nil {
		return t
	}
	t.age, t.expires = time.Duration(h.HeldMS)*time.Millisecond, time.Duration(h.ExpiresInMS)*time.Millisecond
	t.holder = h.Pod
	if h.Session != nil {
		t.holder += "/" + *h.Session
	}
	if h.Owner != nil {
		t.holder += " (" + *h.Owner + ")"
	}
	t.holder = printable(t.holder)
	return t
}

// compare puts trouble first: the oldest hold, the most waiters, the next expiry; names in their order.
func (t *topLock) compare(than *topLock, order string) int {
	switch order {
	case byHolder:
		return cmp.Compare(t.holder, than.holder)
	case byAge:
		return cmp.Compare(than.age, t.age)
	case byWaiters:
		return cmp.Compare(than.waiters, t.waiters)
	case byExpiry:
		return cmp.Compare(t.expires, than.expires)
	}
	return cmp.Compare(t.key, than.key)
}

// topModel is the state of `top`, without I/O: it takes locks and keys, and returns lines.
type topModel struct {
	// The user's choices. kind limits the types (--type), filter is a part of a key or a
	// holder, whether in capitals or not.
	all     bool
	sort    string
	reverse bool
	filter  string
	kind    string

	// The sidecar's answer, and when it came; zero: none yet. more: not all locks were read. failure is
	// why it said nothing since.
	locks   []topLock
	more    bool
	at      time.Time
	failure string

	// shown are the locks in order, without those that the filter hides.
	shown                 []topLock
	keyWidth, holderWidth int
	offset                int // of the first line
	columns, lines        int // of the terminal
	typing, help          bool
	// typedOver is the filter before somebody typed another.
	typedOver string
}

func (m *topModel) found(locks []topLock, more bool, at time.Time) {
	m.locks, m.more, m.at, m.failure = locks, more, at, ""
	m.arrange()
}

// failed takes in why it said nothing. The earlier answer is still shown.
func (m *topModel) failed(err error) { m.failure = printable(err.Error()) }

func (m *topModel) resize(columns, lines int) {
	m.columns, m.lines = columns, lines
	m.scroll(0)
}

func (m *topModel) arrange() {
	wanted := strings.ToLower(m.filter)
	m.shown, m.keyWidth, m.holderWidth = nil, 0, 0
	for i := range m.locks {
		t := &m.locks[i]
		if wanted == "" || strings.Contains(strings.ToLower(t.keyText), wanted) || strings.Contains(strings.ToLower(t.holder), wanted) {
			m.shown = append(m.shown, *t)
			m.keyWidth, m.holderWidth = max(m.keyWidth, width(t.keyText)), max(m.holderWidth, width(t.holder))
		}
	}
	slices.SortFunc(m.shown, func(a, b topLock) int {
		order := a.compare(&b, m.sort)
		if m.reverse {
			order = -order
		}
		return cmp.Or(order, cmp.Compare(a.key, b.key))
	})
	m.scroll(0)
}

func (m *topModel) scroll(by int) {
	m.offset = max(min(m.offset+by, len(m.shown)-m.page()), 0)
}

func (m *topModel) page() int { return max(m.lines-len(m.head())-2, 1) }

// topWish is what a key asks for that the model cannot do.
type topWish int

const (
	wishNothing topWish = iota
	wishRefresh
	wishQuit
	wishSuspend
)

func (m *topModel) press(k key) topWish {
	switch {
	case k.code == keyInterrupt:
		return wishQuit
	case k.code == keySuspend:
		return wishSuspend
	case m.typing:
		m.typed(k)
		return wishNothing
	case m.help:
		m.help = false
		return wishNothing
	case k.code == keyRune:
		return m.command(k.r)
	}
	switch k.code {
	case keyUp:
		m.scroll(-1)
	case keyDown, keyEnter:
		m.scroll(1)
	case keyPageUp:
		m.scroll(-m.page())
	case keyPageDown:
		m.scroll(m.page())
	case keyHome:
		m.scroll(-m.offset)
	case keyEnd:
		m.scroll(len(m.shown))
	default:
	}
	return wishNothing
}

func (m *topModel) command(r rune) topWish {
	switch r {
	case 'q':
		return wishQuit
	case 's':
		m.sort = topSorts[(slices.Index(topSorts, m.sort)+1)%len(topSorts)]
		m.offset = 0
		m.arrange()
	case 'r':
		m.reverse = !m.reverse
		m.offset = 0
		m.arrange()
	case '/':
		m.typing, m.typedOver = true, m.filter
	case 'a':
		m.all = !m.all
		m.locks, m.more, m.at, m.offset = nil, false, time.Time{}, 0
		m.arrange()
		return wishRefresh
	case ' ':
		return wishRefresh
	case '?', 'h':
		m.help = true
	}
	return wishNothing
}

// typed takes in a key of the filter, which holds at once.
func (m *topModel) typed(k key) {
	switch k.code {
	case keyEnter:
		m.typing = false
	case keyEscape:
		m.typing, m.filter = false, m.typedOver
	case keyErase:
		if runes := []rune(m.filter); len(runes) > 0 {
			m.filter = string(runes[:len(runes)-1])
		}
	case keyEraseAll:
		m.filter = ""
	case keyRune:
		m.filter += string(k.r)
	default:
	}
	m.offset = 0
	m.arrange()
}

func (m *topModel) head() []string {
	scope, count := "this pod", fmt.Sprint(len(m.locks))
	if m.all {
		scope = "all pods"
	}
	if m.more {
		count = "more than " + count
	}
	title := "locksidecar top: " + scope
	if m.at.IsZero() {
		title += " | asking"
	} else {
		title += fmt.Sprintf(" | %s held, %d shown", count, len(m.shown))
		if oldest := m.oldest(); oldest > 0 {
			title += " | oldest " + short(oldest)
		}
		title += " | " + m.at.Format(time.TimeOnly)
	}
	settings := "sorted by " + m.sort
	if m.reverse {
		settings += ", reversed"
	}
	if m.kind != "" {
		settings += " | type " + printable(m.kind)
	}
	if m.filter != "" {
		settings += " | filter " + printable(m.filter)
	}
	if m.more {
		settings += fmt.Sprintf(" | only the first %d by key were read: see --type", len(m.locks))
	}
	head := []string{title, settings}
	if m.failure != "" {
		head = append(head, "! "+m.failure)
	}
	return head
}

func (m *topModel) oldest() (oldest time.Duration) {
	for i := range m.locks {
		oldest = max(oldest, m.locks[i].age)
	}
	return oldest
}
