package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/locksidecar/locksidecar/internal/client"
)

// Control sequences of terminals. The other screen leaves what the terminal shows as it is. Without wrapping, a long line is cut at the
// terminal's edge.
const (
	otherScreen  = "\x1b[?1049h\x1b[?25l\x1b[?7l" // without a cursor, and without wrapping
	formerScreen = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	topOfScreen  = "\x1b[H"
	endOfScreen  = "\x1b[J"
	endOfLine    = "\x1b[K"
	inverse      = "\x1b[7m"
	plainText    = "\x1b[m"
)

// isTerminal reports whether a file is a terminal that can move its cursor.
func isTerminal(f *os.File) bool {
	return f != nil && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

const topKeys = "?: help   /: filter   s: order   r: reverse   a: scope   x: stop   q: end"

var topHelp = strings.Split(`Keys:
  up, down, j, k, PgUp, PgDn, Home, End   choose a lock
  /       filter by a part of the key or the holder: Enter keeps it, Esc ends it
  s, r    the next order; the other way round
  a       the locks of all pods, or those of this sidecar
  x       ask the holder of the chosen lock to stop
  q       end

AGE: for how long it is held. EXPIRES: when it ends if it is not renewed.
Any key leads back.`, "\n")

// topMode is what the keys mean.
type topMode int

const (
	choosing topMode = iota
	filtering
	asking
	helping
)

// topScreen is `top` on a terminal. run alone uses it.
type topScreen struct {
	*top

	out      *os.File
	keyboard *os.File // nil: the input is not a terminal, so there are no keys

	mode topMode
	list *topList // the last reading; nil: none yet
	// problem is why list is not newer. note says what became of the last request to stop.
	problem, note string
	// chosenKey is the row that is chosen, and row its number, in case that the key goes.
	chosenKey  string
	row, first int
	// asked is the lock that the question is about.
	asked *client.Lock
}

func newTopScreen(t *top, out *os.File) *topScreen {
	s := &topScreen{top: t, out: out}
	if isTerminal(os.Stdin) {
		s.keyboard = os.Stdin
	}
	return s
}

// run shows the locks until a key, a signal, or the end of the terminal.
func (s *topScreen) run(ctx context.Context) error {
	ctx, release := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer release()
	signals := make(chan os.Signal, 1) // after a change of the size, and after a stop of this process
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGCONT)
	defer signal.Stop(signals)
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	keys := make(chan string)
	if s.keyboard != nil {
		go readKeys(s.keyboard, keys)
	}
	look := newTopLooker()
	done := make(chan string, 1)
	for {
		if err := s.draw(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case sig := <-signals:
			if sig == syscall.SIGCONT { // the shell may have changed the terminal
				_, err = s.enter()
			}
		case <-look.next.C:
			look.begin(*s.top)
		case l := <-look.answers:
			if look.end(s.interval) {
				s.see(l.list, l.err)
			}
		case s.note = <-done:
			look.next.Reset(0)
		case key := <-keys:
			switch s.press(key) {
			case topNothing:
			case topEnd:
				return nil
			case topLook:
				look.next.Reset(0)
			case topSuspend:
				leave()
				suspend(signals)
				_, err = s.enter()
			case topStop:
				lock := s.asked
				s.note = "asking …"
				go func() { done <- askToStop(s.client, lock) }()
			}
		}
		if err != nil {
			return err
		}
	}
}

// topLooker reads the locks beside the screen, one reading at a time.
type topLooker struct {
	next    *time.Timer // begins a reading
	answers chan topLooked
	// looking: a reading is under way. It is outdated if another one was asked for since.
	looking, outdated bool
}

type topLooked struct {
	list *topList
	err  error
}

func newTopLooker() *topLooker {
	return &topLooker{next: time.NewTimer(0), answers: make(chan topLooked, 1)}
}

func (l *topLooker) begin(view top) {
	if l.outdated = l.looking; l.looking {
		return // its end begins the next one
	}
	l.looking = true
	go func() {
		list, err := view.look()
		l.answers <- topLooked{list, err}
	}()
}

// end reports whether the reading counts.
func (l *topLooker) end(interval time.Duration) bool {
	l.looking = false
	if l.outdated {
		l.next.Reset(0)
		return false
	}
	l.next.Reset(interval)
	return true
}

// suspendPatience is how long this process waits for its own stop. If nobody could continue it, because its process group is orphaned, the
// system does not stop it.
const suspendPatience = time.Second

// suspend stops this process, as Ctrl-Z does without a screen, until the shell continues it.
func suspend(signals <-chan os.Signal) {
	_ = syscall.Kill(os.Getpid(), syscall.SIGTSTP)
	for late := time.After(suspendPatience); ; {
		select {
		case sig := <-signals: // the stop may come after the call, so its end is awaited
			if sig == syscall.SIGCONT {
				return
			}
		case <-late:
			return
		}
	}
}

// enter takes the terminal. leave gives it back as it was.
func (s *topScreen) enter() (leave func(), err error) {
	restore := func() {}
	if s.keyboard != nil {
		before, err := term.MakeRaw(int(s.keyboard.Fd()))
		if err != nil {
			return nil, fmt.Errorf("the terminal: %w", err)
		}
		restore = func() { _ = term.Restore(int(s.keyboard.Fd()), before) }
	}
	_, err = s.out.WriteString(otherScreen)
	return func() {
		_, _ = s.out.WriteString(formerScreen)
		restore()
	}, err
}

func (s *topScreen) see(list *topList, err error) {
	if s.problem = ""; err != nil {
		s.problem = client.Printable(err.Error())
		return
	}
	s.list = list
}

// topAction is what a key asks for, besides what is shown.
type topAction int

const (
	topNothing topAction = iota
	topEnd
	topLook
	topStop
	topSuspend
)

func (s *topScreen) press(key string) topAction {
	switch key {
	case "ctrl+c":
		return topEnd
	case "ctrl+z":
		return topSuspend
	}
	switch s.mode {
	case filtering:
		s.edit(key)
	case asking:
		if s.mode = choosing; key == "y" {
			return topStop
		}
		s.note = "not asked"
	case helping:
		s.mode = choosing
	case choosing:
		return s.choose(key)
	}
	return topNothing
}

func (s *topScreen) choose(key string) topAction {
	s.note = ""
	switch key {
	case "q":
		return topEnd
	case "?", "h":
		s.mode = helping
	case "/":
		s.mode = filtering
	case "esc":
		s.filter = ""
	case "s":
		s.sort = topSorts[(slices.Index(topSorts, s.sort)+1)%len(topSorts)]
	case "r":
		s.reverse = !s.reverse
	case "a":
		if s.scope == scopeAll {
			s.scope = scopePod
		} else {
			s.scope = scopeAll
		}
		return topLook
	case "x":
		if rows := s.rows(); len(rows) > 0 {
			s.mode, s.asked = asking, rows[s.row]
		}
	default:
		s.move(key)
	}
	return topNothing
}

// move chooses another row.
func (s *topScreen) move(key string) {
	rows := s.rows()
	step := map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -s.page(), "pgdown": s.page(), "home": -len(rows), "end": len(rows),
	}[key]
	if len(rows) > 0 {
		s.row = min(max(s.row+step, 0), len(rows)-1)
		s.chosenKey = rows[s.row].Key
	}
}

// edit changes the filter as it is typed.
func (s *topScreen) edit(key string) {
	switch key {
	case "enter":
		s.mode = choosing
	case "esc":
		s.mode, s.filter = choosing, ""
	case "ctrl+u":
		s.filter = ""
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(s.filter)
		s.filter = s.filter[:len(s.filter)-size]
	default:
		if r, size := utf8.DecodeRuneInString(key); size == len(key) && unicode.IsPrint(r) {
			s.filter += key
		}
	}
}

// rows are the locks that are shown. The chosen key stays chosen wherever it moves.
func (s *topScreen) rows() []*client.Lock {
	if s.list == nil {
		return nil
	}
	rows := s.chosen(s.list)
	if i := slices.IndexFunc(rows, func(l *client.Lock) bool { return l.Key == s.chosenKey }); i >= 0 {
		s.row = i
	}
	if s.row = max(min(s.row, len(rows)-1), 0); len(rows) > 0 {
		s.chosenKey = rows[s.row].Key
	}
	return rows
}

// headLines are the lines above the rows: the title, the message, the names of the columns.
const headLines = 3

// page is the number of rows that the terminal has room for.
func (s *topScreen) page() int { return max(s.height()-headLines, 1) }

func (s *topScreen) height() int {
	_, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil {
		height = 0
	}
	return cmp.Or(height, 24) // a new terminal may not know its size yet
}

// draw replaces what the terminal shows.
func (s *topScreen) draw() error {
	lines := topHelp
	if s.mode != helping {
		lines = s.lines()
	}
	lines = lines[:min(len(lines), s.height())]
	_, err := s.out.WriteString(topOfScreen + strings.Join(lines, endOfLine+"\r\n") + endOfScreen)
	return err
}

func (s *topScreen) lines() []string {
	title, rows := "locksidecar top", s.rows()
	if s.list != nil {
		title, _, _ = strings.Cut(s.title(s.list, rows), "\n")
	}
	order := s.sort
	if s.reverse {
		order += ", reversed"
	}
	lines := []string{fmt.Sprintf("%s; scope: %s; order: %s", title, s.scope, order), s.message()}
	if s.list == nil {
		return lines
	}
	s.first = min(s.first, s.row)
	s.first = max(s.first, s.row-s.page()+1)
	shown := rows[s.first:min(s.first+s.page(), len(rows))]
	var text strings.Builder
	_ = (&alignedTable{}).write(&text, topRows(shown)) // a Builder takes all
	table := strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
	if len(shown) > 0 && s.keyboard != nil {
		at := 1 + s.row - s.first
		table[at] = inverse + table[at] + plainText
	}
	return append(lines, table...)
}

// message is the most important of what can be said: a question comes first.
func (s *topScreen) message() string {
	switch {
	case s.mode == asking:
		holder := client.Printable(s.asked.Holder.Name())
		if s.asked.Mode == client.ModeShared {
			holder = fmt.Sprintf("all %d holders", s.asked.HoldersCount)
		}
		return fmt.Sprintf("Ask %s to stop, and to release %s? y: yes, any other key: no", holder, client.Printable(s.asked.Key))
	case s.mode == filtering:
		return "filter: " + client.Printable(s.filter) + "_   (Enter keeps it, Esc ends it)"
	case s.problem != "":
		return s.problem
	case s.note != "":
		return s.note
	case s.list != nil && s.list.more:
		return fmt.Sprintf("only the first %d by key were read: see --type", len(s.list.locks))
	case s.filter != "":
		return "filter: " + client.Printable(s.filter) + "   (Esc ends it)"
	case s.keyboard == nil:
		return "Ctrl-C ends it"
	}
	return topKeys
}

// askToStop asks the holder that the user has seen, and says what became of it. All holders of a shared lock are asked.
func askToStop(c *client.Client, seen *client.Lock) string {
	path, key := client.LockPath(seen.Key), client.Printable(seen.Key)
	var now client.Lock
	err := c.Call(http.MethodGet, path, nil, &now, 0)
	if err == nil && seen.Mode != client.ModeShared && (now.Holder == nil || now.Holder.Grant() != seen.Holder.Grant()) {
		return "not asked: " + key + " has another holder now, or none"
	}
	if err == nil {
		err = c.Call(http.MethodPost, path+"/stop", stopBody{}, nil, 0)
	}
	if err != nil {
		return "not asked: " + client.Printable(err.Error())
	}
	return "asked the holder of " + key + " to stop"
}
