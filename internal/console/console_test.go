package console

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/html"

	"github.com/locksidecar/locksidecar/internal/client"
	"github.com/locksidecar/locksidecar/internal/testing/sidecartest"
)

var hostile = []string{
	`x:<script>alert(1)</script>`, `"onmouseover=alert(1) x="`, `' autofocus onfocus=alert(1) '`, "a\r\ndata: <b>\n\nevent: x", "rtl:\u202egnp.exe",
	`</td></table><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `{{.CSRF}}`, `../../%2e%2e?#&=+`, "\xff\xfe", strings.Repeat("<", 512), "",
}

// No name reaches a page as markup, and each link of a key leads to this key.
func TestHostileNamesStayText(t *testing.T) {
	for _, name := range hostile {
		lock := heldLock(name, name, name, 1)
		lock.Holder.Owner, lock.Holder.Traceparent, lock.Type = &name, &name, name
		lock.Stopping = &client.StopRequest{Reason: &name}
		lock.QueueLength, lock.Holder.Instance = 1, name+"-0000000a@"+name
		f := &fake{namespace: "<i>n", locks: []client.Lock{lock}, waiters: []client.Waiter{{Key: name, Pod: name, Session: &name, Owner: &name, Mode: name, Traceparent: &name}}}
		s := serve(t, f.start(t), func(c *Config) { c.TraceURL = "https://traces.example/{trace_id}" })
		q := url.QueryEscape(name)
		for _, path := range []string{"/", "/?q=" + q + "&type=" + q + "&mode=" + q + "&sort=" + q, "/waits", "/sidecars", "/totals", "/key?key=" + q} {
			_, text := s.ask("GET", path, "")
			checkMarkup(t, name, parse(t, text), 3)
			next, leave := s.live("/live" + path)
			checkMarkup(t, name, parse(t, next()), 0)
			leave()
		}
		if name != "" && strings.ToValidUTF8(name, "") == name {
			links := all(s.page(200, "/"), "a", "class", "key")
			if u, err := url.Parse(attr(links[0], "href")); err != nil || u.Path != "./key" || u.Query().Get("key") != name {
				t.Errorf("%q: the link is %q: %v", name, attr(links[0], "href"), err)
			}
		}
		s.stop()
	}
}

func checkMarkup(t *testing.T, name string, doc *html.Node, scripts int) {
	t.Helper()
	if n := len(all(doc, "script")); n != scripts {
		t.Errorf("%q: %d scripts", name, n)
	}
	for _, element := range []string{"img", "b", "i", "style", "iframe"} {
		if len(all(doc, element)) > 0 {
			t.Errorf("%q: there is a %s", name, element)
		}
	}
	for n := range doc.Descendants() {
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || a.Key == "autofocus" || a.Key == "style" {
				t.Errorf("%q: %s has the attribute %s", name, n.Data, a.Key)
			}
			if (a.Key == "href" || a.Key == "src" || a.Key == "action") && !strings.HasPrefix(a.Val, "/") && !strings.HasPrefix(a.Val, "./") && !strings.HasPrefix(a.Val, "#live") {
				t.Errorf("%q: %s leads to %q", name, n.Data, a.Val)
			}
		}
		if n.Type == html.TextNode && strings.ContainsAny(n.Data, "\u202e\r\x00") {
			t.Errorf("%q: the text %q", name, n.Data)
		}
	}
}

// Another site can neither read nor press buttons.
func TestForeignSitesAreRefused(t *testing.T) {
	s := serve(t, (&fake{}).start(t), func(c *Config) { c.Hosts = []string{"locks.example.com"} })
	for _, c := range []struct {
		method, path string
		headers      []string
		want         int
	}{
		{"GET", "/", nil, 200},
		{"GET", "/", []string{"Host", "localhost:1"}, 200},
		{"GET", "/", []string{"Host", "LOCKS.example.com"}, 200},
		{"GET", "/", []string{"Host", "[::1]:15625"}, 200},
		{"GET", "/", []string{"Host", "evil.example"}, 403},
		{"GET", "/live/", []string{"Host", "127.0.0.1.evil.example"}, 403},
		{"GET", "/static/console.js", []string{"Host", "evil.example:15625"}, 403},
		{"GET", "/stop", nil, 405},
		{"PUT", "/stop", nil, 405},
		{"POST", "/stop", nil, 403}, // without the page's secret
		{"POST", "/stop", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"POST", "/stop", []string{"Origin", "http://evil.example"}, 403},
		{"POST", "/break", []string{"Origin", "null"}, 403},
		// A page of another site may link to the console. But it may not load the console in the background, because that uses up streams.
		{"GET", "/waits", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "empty"}, 403},
		{"GET", "/key?key=a", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "iframe"}, 403},
		{"GET", "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 200},
		{"GET", "/", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}, 200},
		{"GET", "/static/console.js", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "script"}, 200},
		{"GET", "/static/", nil, 404},
		{"GET", "/static/../console.go", nil, 307},
		{"GET", "/console.go", nil, 404},
		{"GET", "/static/..%2fconsole.go", nil, 404},
		{"GET", "/static/%2e%2e%2fconsole.css", nil, 200}, // is /static/console.css
		{"GET", "/?q=" + strings.Repeat("x", maxQuery), nil, 414},
	} {
		resp, _ := s.ask(c.method, c.path, "", c.headers...)
		if resp.StatusCode != c.want {
			t.Errorf("%s %s %s: %d, want %d", c.method, c.path, c.headers, resp.StatusCode, c.want)
		}
		if resp.Header.Get("Content-Security-Policy") != contentSecurity || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %s: %v", c.method, c.path, resp.Header)
		}
	}
	readOnly := serve(t, (&fake{}).start(t), func(c *Config) { c.AllowStop, c.AllowForce = false, false })
	for _, path := range []string{"/stop", "/break"} {
		if resp, _ := readOnly.ask("POST", path, ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d without the flag", path, resp.StatusCode)
		}
	}
}

func TestTenThousandLocks(t *testing.T) {
	f := &fake{}
	for n := range 12_000 {
		l := heldLock(fmt.Sprintf("t%d:%05d", n%3, n), fmt.Sprintf("web-%d", n%7), "s", int64(n)*1000)
		l.QueueLength = n % 100 / 99
		f.locks = append(f.locks, l)
	}
	s := serve(t, f.start(t), nil)
	doc := s.page(200, "/")
	rows := all(all(doc, "tbody")[0], "tr")
	if len(rows) != rowsShown || !strings.HasPrefix(textOf(rows[0]), "t0:09999t0") || !strings.Contains(textOf(doc), "Page 1 of 100") {
		t.Errorf("%d rows, the first %q", len(rows), textOf(rows[0]))
	}
	if !strings.Contains(textOf(doc), "Only the first 10000 locks by key were read") {
		t.Error("the page does not say that there are more")
	}
	for path, want := range map[string]string{
		"/?page=100000":        "t0:00099",
		"/?page=-1&sort=-held": "t0:00000",
		"/?sort=key&page=2":    "t0:00300",
		"/?q=WEB-3&sort=-key":  "t2:09992",
		"/?waited=1&sort=no":   "t0:00099",
		"/?mode=shared":        "",
	} {
		got := ""
		for _, body := range all(s.page(200, path), "tbody") {
			got = textOf(all(all(body, "tr")[0], "td")[0])
		}
		if got != want {
			t.Errorf("%s begins with %q, want %q", path, got, want)
		}
	}
}

// A reading rests from its end on. Viewers who have waited for a slow one take it, and make no other.
func TestSlowReadingsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := 0
		f := feed[int]{read: func() (int, error) {
			reads++
			time.Sleep(2 * time.Second)
			return reads, nil
		}}
		for _, step := range []struct {
			pause time.Duration
			want  int
		}{{0, 1}, {0, 1}, {2 * time.Second, 1}, {1, 2}, {0, 2}} {
			time.Sleep(step.pause)
			if got := f.now(); got.value != step.want || reads != step.want {
				t.Errorf("reading %d of %d, want %d", got.value, reads, step.want)
			}
		}
	})
}

// Links of the list keep what is chosen, whatever it is called.
func TestLinksKeepTheChoice(t *testing.T) {
	q, _ := url.ParseQuery("q=held&type=held&mode=shared&waited=1&sort=-key&page=3")
	ch := choose(q)
	for want, got := range map[string]string{
		"./?mode=shared&page=2&q=held&sort=-key&type=held&waited=1": ch.href("page", "2"),
		"./?mode=shared&q=held&sort=ends&type=held&waited=1":        ch.href("sort", "ends"),
		"./?sort=key": choose(url.Values{}).href("sort", "key"),
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// A deadlock of many sessions does not fill the page, nor do many deadlocks.
func TestCirclesAreLimited(t *testing.T) {
	for _, size := range []int{2, 1000} {
		f := &fake{}
		for n := range 1000 {
			first := n / size * size
			session, behind := fmt.Sprint("s", n), fmt.Sprint("k", first+(n-first+1)%size)
			l := heldLock(fmt.Sprint("k", n), "web-0", session, 1<<40)
			l.QueueLength = 1
			f.locks = append(f.locks, l)
			f.waiters = append(f.waiters, client.Waiter{Key: behind, Pod: "web-0", Session: &session, Mode: "exclusive", WaitingMS: 1 << 40})
		}
		doc := serve(t, f.start(t), nil).page(200, "/waits")
		steps := 0
		for _, circle := range all(doc, "ol", "class", "circle") {
			steps += len(all(circle, "li"))
		}
		if title := textOf(all(doc, "h1")[0]); steps != stepsShown || !strings.Contains(title, fmt.Sprint(1000/size)+" circle") {
			t.Errorf("circles of %d: %d steps below %q", size, steps, title)
		}
		if hint := textOf(all(doc, "p", "class", "hint")[0]); !strings.Contains(hint, fmt.Sprintf("%d of 1000", stepsShown)) {
			t.Error(hint)
		}
	}
}

// A kept lock has perhaps no holder: all pages say so, and none finds a circle in it.
func TestKeptLocksAreMarked(t *testing.T) {
	a, b := heldLock("a:1", "web-0", "s1", 1<<40), heldLock("b:1", "web-1", "s2", 1<<40)
	a.Kept, a.QueueLength, b.QueueLength = true, 1, 1
	s1, s2 := "s1", "s2"
	f := &fake{locks: []client.Lock{a, b}, waiters: []client.Waiter{
		{Key: "a:1", Pod: "web-1", Session: &s2, Mode: "exclusive", WaitingMS: 1 << 40}, {Key: "b:1", Pod: "web-0", Session: &s1, Mode: "exclusive", WaitingMS: 1 << 40},
	}}
	s := serve(t, f.start(t), nil)
	for page, want := range map[string]int{"/": 1, "/key?key=a%3A1": 1, "/key?key=b%3A1": 0, "/waits": 2} { // the waits, and the longest holds
		doc, marks := s.page(200, page), 0
		for _, tag := range all(doc, "span", "class", "tag") {
			if textOf(tag) == "kept" {
				marks++
			}
		}
		if marks != want || len(all(doc, "ol", "class", "circle")) > 0 {
			t.Errorf("%s: %d marks, want %d, and no circle", page, marks, want)
		}
	}
}

// However many look, the sidecar is asked once.
func TestViewersShareReadings(t *testing.T) {
	f := &fake{locks: []client.Lock{heldLock("a:1", "web-0", "s", 1)}}
	s := serve(t, f.start(t), nil)
	began := time.Now()
	var nexts []func() string
	for n := range 20 {
		next, _ := s.live(fmt.Sprintf("/live/?page=%d", n))
		nexts = append(nexts, next)
	}
	for _, next := range nexts {
		next()
	}
	if most := int64(time.Since(began)/rest) + 1; f.lists.Load() > most {
		t.Errorf("the locks were read %d times in %s, at most %d are allowed", f.lists.Load(), time.Since(began), most)
	}
}

// A key without a queue costs one call, however many pages show it.
func TestEmptyQueuesAreNotRead(t *testing.T) {
	f := &fake{locks: []client.Lock{heldLock("free:1", "web-0", "s", 1), heldLock("queue:1", "web-0", "s", 1)}}
	f.locks[1].QueueLength = 1
	s := serve(t, f.start(t), nil)
	for key, want := range map[string]int64{"free:1": 0, "queue:1": 1} {
		f.queues.Store(0)
		if s.page(200, keyURL(key)[1:]); f.queues.Load() != want {
			t.Errorf("the queue of %s was read %d times, want %d", key, f.queues.Load(), want)
		}
	}
}

func TestStreamsAreLimited(t *testing.T) {
	s := serve(t, (&fake{}).start(t), nil)
	var leave func()
	for range maxStreams {
		_, leave = s.live("/live/")
	}
	resp, _ := s.ask("GET", "/live/", "")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || !resp.Close {
		t.Errorf("one more stream: %d, closes %v: it would keep the place of a page", resp.StatusCode, resp.Close)
	}
	leave()
	for end := time.Now().Add(10 * time.Second); ; {
		req, _ := http.NewRequest(http.MethodGet, s.url+"/live/", http.NoBody)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode == 200 {
			return // the place of a closed page is free again
		}
		if time.Now().After(end) {
			t.Fatalf("a closed page keeps its place: %d", resp.StatusCode)
		}
	}
}

func TestWatchedKeysAreLimited(t *testing.T) {
	f := &fake{locks: []client.Lock{heldLock("k", "web-0", "s", 1)}}
	s := serve(t, f.start(t), nil)
	for n := range maxTopics + 20 {
		s.ask("GET", fmt.Sprintf("/key?key=k%d", n), "")
	}
	// The oldest ones made room for the last one, and their watches end.
	if text := textOf(s.page(200, "/key?key=k")); strings.Contains(text, "too many keys") {
		t.Error(text)
	}
	f.awaitWatching(t, maxTopics)
}

// A key that no page shows is watched for a while, and then no more.
func TestUnshownKeysAreNotWatched(t *testing.T) {
	f := &fake{}
	ctx, stop := context.WithCancel(context.Background())
	keys, err := newTopics(ctx, &console{Config: Config{Client: client.New(f.start(t), "test")}})
	if err != nil {
		t.Fatal(err)
	}
	shown := keys.of(keyName{key: "k"})
	f.awaitWatching(t, 1)
	shown.idle.Reset(0)
	f.awaitWatching(t, 0)
	if keys.of(keyName{key: "k"}) == shown {
		t.Error("it is not watched again")
	}
	f.awaitWatching(t, 1)
	stop()
	f.awaitWatching(t, 0)
}

// The vendored files are those that were fetched.
func TestVendoredFiles(t *testing.T) {
	sums, err := os.ReadFile("vendored.sha256")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		text, err := files.ReadFile("static/" + name)
		if got := fmt.Sprintf("%x", sha256.Sum256(text)); err != nil || got != sum {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func TestDuration(t *testing.T) {
	for ms, want := range map[int64]string{
		0: "< 1 s", 999: "< 1 s", 1000: "1 s", 59_999: "59 s", 60_000: "1 m 0 s", 192_000: "3 m 12 s", 3_600_000: "1 h 0 m",
		86_399_999: "23 h 59 m", 90_000_000: "1 d 1 h", 864_000_000: "10 d 0 h",
	} {
		if got := duration(ms); got != want {
			t.Errorf("%d ms: %q, want %q", ms, got, want)
		}
	}
}

func TestTraceLinks(t *testing.T) {
	id, span := strings.Repeat("a1", 16), strings.Repeat("b2", 8)
	parent := "00-" + id + "-" + span + "-01"
	c := &console{Config: Config{TraceURL: "https://t.example/{trace_id}?span={span_id}"}}
	if got := c.traceURL(&parent); got != "https://t.example/"+id+"?span="+span {
		t.Error(got)
	}
	for _, bad := range []string{"", "00-x", "00-" + strings.ToUpper(id) + "-" + span + "-01", "x" + parent} {
		if got := c.traceURL(&bad); got != "" {
			t.Errorf("%q: %q", bad, got)
		}
	}
	for text, ok := range map[string]bool{
		"": true, "http://t/{trace_id}": true, "https://t.example/{trace_id}": true, "https://t.example/": false,
		"javascript:alert({trace_id})": false, "/{trace_id}": false, "data:,{trace_id}": false, "https:///{trace_id}": false,
	} {
		if err := checkTraceURL(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// The rest is with a real sidecar.

func press(s *served, path, key, button string) (head, string) {
	doc := s.page(200, keyURL(key)[1:])
	form := url.Values{"reason": {button}}
	forms := all(doc, "form", "action", path)
	for _, in := range all(forms[0], "input", "type", "hidden") {
		form.Set(attr(in, "name"), attr(in, "value"))
	}
	return s.ask("POST", path, form.Encode(), "Origin", s.url, "Sec-Fetch-Site", "same-origin")
}

func TestStopAndBreak(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"POD": "web-0", "ALLOW_FORCE": "true"}, "msg=ready")
	s := serve(t, in.Socket, nil)
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("job:1")
	next, _ := s.live("/live" + keyURL("job:1")[1:])
	awaitLive(next, "web-0")
	awaitLive(next, "None since") // from now on, the page hears the events

	resp, _ := press(s, "/stop", "job:1", "a release comes")
	if resp.StatusCode != http.StatusSeeOther || resp.Header.Get("Location") != "/key?key=job%3A1&done=stop" {
		t.Fatalf("%d %s", resp.StatusCode, resp.Header)
	}
	if text := textOf(s.page(200, resp.Header.Get("Location"))); !strings.Contains(text, notices["stop"]) || !strings.Contains(text, "a release comes") {
		t.Error(text)
	}
	awaitLive(next, "e-stopping")

	// Another holder than that of the page is not asked, nor is its lock broken.
	doc := s.page(200, keyURL("job:1")[1:])
	seen := attr(all(doc, "input", "name", "seen")[0], "value")
	csrf := attr(all(doc, "input", "name", "csrf")[0], "value")
	app.Wants(200, "DELETE", client.LockPath("job:1")+"?token="+tokenOf(t, app, "job:1"), "")
	other := sidecartest.Dial(t, in.Socket)
	other.Acquire("job:1")
	for _, path := range []string{"/stop", "/break"} {
		resp, text := s.ask("POST", path, url.Values{"csrf": {csrf}, "key": {"job:1"}, "seen": {seen}}.Encode())
		if resp.StatusCode != http.StatusConflict || !strings.Contains(text, "the holder has changed") {
			t.Errorf("%s of another holder: %d", path, resp.StatusCode)
		}
	}
	// A page of another site is refused, even if it knew the secret.
	for _, from := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "http://evil.example"}, {"Origin", "null"}} {
		form := url.Values{"csrf": {csrf}, "key": {"job:1"}, "seen": {seen}}.Encode()
		if resp, _ := s.ask("POST", "/stop", form, from...); resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %d", from, resp.StatusCode)
		}
	}
	other.Wants(200, "GET", client.LockPath("job:1"), "")
	awaitLive(next, "e-released")

	s.page(200, keyURL("job:1")[1:]+"&done=")
	resp, text := press(s, "/break", "job:1", "")
	if resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if text := textOf(s.page(200, resp.Header.Get("Location"))); !strings.Contains(text, "Nobody holds this key") {
		t.Error(text)
	}
	if resp, _ := s.ask("POST", "/stop", url.Values{"csrf": {csrf}, "key": {strings.Repeat("k", 513)}}.Encode()); resp.StatusCode != http.StatusConflict {
		t.Errorf("a key that is too long: %d", resp.StatusCode)
	}
	if resp, _ := s.ask("POST", "/stop", "csrf="+csrf+"&key="+strings.Repeat("k", maxForm)); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a form that is too long: %d", resp.StatusCode)
	}
}

// tokenOf is what the holder knows.
func tokenOf(t *testing.T, app *sidecartest.App, key string) string {
	t.Helper()
	answer := app.Wants(200, "GET", client.LockPath(key), "")
	_, after, _ := strings.Cut(answer, `"token":`)
	token, _, _ := strings.Cut(after, ",")
	return token
}

// One of several holders is asked by its token.
func TestStopOfOneSharedHolder(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"POD": "web-0"}, "msg=ready")
	s := serve(t, in.Socket, nil)
	for range 2 {
		sidecartest.Dial(t, in.Socket).Wants(200, "PUT", client.LockPath("doc:1"), `{"mode":"shared","limit":3}`)
	}
	resp, text := press(s, "/stop", "doc:1", "one only")
	if resp.StatusCode != http.StatusSeeOther {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	asked := 0
	for _, holder := range all(s.page(200, resp.Header.Get("Location")), "article") {
		asked += strings.Count(textOf(holder), "one only")
	}
	if asked != 1 {
		t.Errorf("%d holders were asked", asked)
	}
}

func TestCircle(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"POD": "web-0"}, "msg=ready")
	s := serve(t, in.Socket, nil)
	a, b, c := sidecartest.Dial(t, in.Socket), sidecartest.Dial(t, in.Socket), sidecartest.Dial(t, in.Socket)
	next, _ := s.live("/live/waits")
	if text := next(); !strings.Contains(text, "No call waits") || strings.Contains(text, "circle") {
		t.Error(text)
	}
	a.Acquire("x")
	b.Acquire("y")
	for _, wait := range []struct {
		app *sidecartest.App
		key string
	}{{c, "x"}, {a, "y"}, {b, "x"}} {
		if err := wait.app.Send("PUT", client.LockPath(wait.key), `{"wait_ms":-1}`); err != nil {
			t.Fatal(err)
		}
	}
	doc := parse(t, awaitLive(next, "1 circle of sessions"))
	circle := all(all(doc, "ol", "class", "circle")[0], "li")
	if len(circle) != 2 || !strings.Contains(textOf(circle[0]), "holds") {
		t.Errorf("%d steps", len(circle))
	}
	if marked := all(doc, "tr", "class", "marked"); len(marked) != 2 {
		t.Errorf("%d waiting calls are marked", len(marked))
	}
	if waits := all(all(doc, "table")[0], "tr"); len(waits) != 4 { // and the head
		t.Errorf("%d rows", len(waits))
	}
}

// A change is seen within a second, and events as they happen.
func TestLive(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"POD": "web-0"}, "msg=ready")
	s := serve(t, in.Socket, nil)
	app := sidecartest.Dial(t, in.Socket)
	list, _ := s.live("/live/?q=job")
	events, leave := s.live("/live" + keyURL("job:1")[1:])
	if text := list(); !strings.Contains(text, "No locks are held") {
		t.Error(text)
	}
	awaitLive(events, "None since")
	app.Wants(200, "PUT", client.LockPath("other"), "")
	began := time.Now()
	token := app.Acquire("job:1")
	awaitLive(list, ">job:1<")
	if took := time.Since(began); took > time.Second {
		t.Errorf("a change was seen after %s", took)
	}
	awaitLive(events, "e-acquired")
	app.Wants(200, "DELETE", fmt.Sprintf("%s?token=%d&outcome=success", client.LockPath("job:1"), token), `{"result":{"rows":3}}`)
	doc := parse(t, awaitLive(events, "e-released"))
	if first := textOf(all(doc, "li")[0]); !strings.Contains(first, `success {"rows":3}`) {
		t.Error(first)
	}
	awaitLive(list, "No lock matches")
	leave()
	// A page that is opened again still knows them.
	if n := len(all(s.page(200, keyURL("job:1")[1:]), "li")); n != 2 {
		t.Errorf("%d events after a reload", n)
	}
}

// Without a sidecar the page says why, and recovers by itself.
func TestSidecarGoneAndBack(t *testing.T) {
	f := &fake{locks: []client.Lock{heldLock("a:1", "web-0", "s", 1)}}
	socket := sidecartest.Socket(t)
	s := serve(t, socket, nil)
	for _, path := range []string{"/", "/waits", "/sidecars", "/totals", "/key?key=a", "/key?key=", "/key?key=" + strings.Repeat("k", 513)} {
		if doc := s.page(503, path); len(all(doc, "p", "role", "alert")) != 1 {
			t.Errorf("%s has no banner: %s", path, textOf(doc))
		}
	}
	next, _ := s.live("/live/")
	awaitLive(next, "no sidecar listens at")
	stop := f.serveAt(t, socket)
	awaitLive(next, ">a:1<")
	stop()
	if text := awaitLive(next, "Shown as of"); !strings.Contains(text, ">a:1<") || !strings.Contains(text, `class="stale"`) {
		t.Error(text)
	}
	f.serveAt(t, socket)
	if text := next(); strings.Contains(text, "Shown as of") && !strings.Contains(awaitLive(next, "Longest held"), ">a:1<") {
		t.Error(text)
	}
}

func TestTotals(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"POD": "web-0", "NAMESPACE": "shop"}, "msg=ready")
	s := serve(t, in.Socket, nil)
	app := sidecartest.Dial(t, in.Socket)
	app.Acquire("order:1")
	app.Acquire("order:2")
	var cells []string
	for _, td := range all(all(s.page(200, "/totals"), "tbody")[0], "td") {
		cells = append(cells, textOf(td))
	}
	if !slices.Equal(cells[:6], []string{"shop", "order", "2", "0", "0", "0"}) {
		t.Errorf("%q", cells)
	}
	main := all(s.page(200, "/totals"), "main")[0]
	if links := all(main, "a"); len(links) != 3 || attr(links[0], "href") != "/" || attr(links[1], "href") != "/?type=order" || attr(links[2], "href") != "/?q=web-0" {
		t.Errorf("%d links", len(links))
	}
	if n := len(all(all(s.page(200, "/?q=web-0"), "tbody")[0], "tr")); n != 2 {
		t.Errorf("the link of a pod leads to %d locks", n)
	}
}

// The locks of other namespaces are not those of the list, so nothing leads from their counts to it.
func TestTotalsOfOtherNamespaces(t *testing.T) {
	for namespace, links := range map[string]int{"shop": 0, "<i>n": 3} {
		f := &fake{namespace: namespace}
		s := serve(t, f.start(t), nil)
		if n := len(all(all(s.page(200, "/totals"), "main")[0], "a")); n != links {
			t.Errorf("%s: %d links, want %d", namespace, n, links)
		}
		s.stop()
	}
}

// If the sidecar shows other namespaces, they can be chosen. Their pages have the same parts, ask for their namespace alone, have no buttons,
// and each link stays in it.
func TestNamespaces(t *testing.T) {
	f := &fake{namespace: "ours", features: []string{"namespaces"}, locks: []client.Lock{heldLock("job:a/b", "web-0", "s", 5000)}}
	s := serve(t, f.start(t), nil)
	if n := len(all(s.page(200, "/"), "form", "method", "post")); n != 0 {
		t.Errorf("%d forms", n)
	}
	choice := all(all(s.page(200, "/"), "details", "class", "namespaces")[0], "a")
	if len(choice) != 2 || attr(choice[0], "href") != "/" || textOf(choice[0]) != "ours" || attr(choice[1], "href") != "/n/%3Ci%3En/" || textOf(choice[1]) != "<i>n" {
		t.Fatalf("%d namespaces", len(choice))
	}
	if href := attr(all(all(s.page(200, "/totals"), "main")[0], "a")[1], "href"); href != "/n/%3Ci%3En/?type=%3Ci%3Et" {
		t.Error(href)
	}
	f.asked.Clear()
	there := attr(choice[1], "href")
	for _, page := range []string{"", "waits", "sidecars", "key?key=job%3Aa%2Fb"} {
		doc := s.page(200, there+page)
		checkMarkup(t, page, doc, 3)
		if text := textOf(doc); !strings.Contains(text, "web-0") || !strings.Contains(textOf(all(doc, "summary")[0]), "<i>n") {
			t.Errorf("%s: %s", page, text)
		}
		if n := len(all(doc, "form", "method", "post")); n != 0 {
			t.Errorf("%s: %d buttons", page, n)
		}
		base, _ := url.Parse(s.url + there + page)
		for _, a := range all(all(doc, "main")[0], "a") {
			if u, err := base.Parse(attr(a, "href")); err != nil || !strings.HasPrefix(u.EscapedPath(), there) {
				t.Errorf("%s: a link leads to %q", page, attr(a, "href"))
			}
		}
		live, err := base.Parse(attr(all(doc, "main")[0], "hx-sse:connect"))
		if err != nil || !strings.HasPrefix(live.EscapedPath(), there+"live/") {
			t.Errorf("%s: live at %v", page, live)
		}
		next, leave := s.live(live.EscapedPath() + "?" + live.RawQuery)
		awaitLive(next, "web-0")
		leave()
	}
	f.asked.Range(func(asked, _ any) bool {
		u, _ := url.Parse(asked.(string))
		if about := u.Path == "/v1" || u.Path == "/v1/stats"; !about && u.Query().Get("namespace") != "<i>n" {
			t.Errorf("asked for %s", asked)
		}
		return true
	})
	if n := f.watching.Load(); n != 0 {
		t.Errorf("%d keys of another namespace are watched", n)
	}
}

// A sidecar that shows only its own namespace is not asked for others, nor for counts.
func TestOneNamespace(t *testing.T) {
	f := &fake{namespace: "ours"}
	s := serve(t, f.start(t), nil)
	if n := len(all(s.page(200, "/"), "details")); n != 0 {
		t.Errorf("%d choices", n)
	}
	if _, counted := f.asked.Load("/v1/stats?scope=database&limit=1000"); counted {
		t.Error("the locks were counted in vain")
	}
}

// Each sidecar that holds a lock has a row with its version, and each session that holds or waits.
func TestSidecars(t *testing.T) {
	exclusive := heldLock("a:1", "web-0", "s1", 5000)
	exclusive.Holder.Instance = "web-0-0000000a@v1.0.0"
	shared := heldLock("a:2", "web-0", "s1", 9000)
	shared.Mode, shared.HoldersCount = "shared", 2
	shared.Holder.Instance = exclusive.Holder.Instance
	other := client.SharedHolder{Holder: *heldLock("", "web-1", "s2", 1000).Holder, Token: 2}
	other.Instance = "web-1-0000000b@v1.1.0"
	shared.Holders = []client.SharedHolder{{Holder: *shared.Holder, Token: 1}, other}
	byTTL := heldLock("a:3", "web-1", "", 70_000)
	byTTL.Holder.Session, byTTL.Holder.Instance = nil, other.Instance
	old := heldLock("a:4", "old", "s1", 1)
	old.Holder.Instance = "old-0000000c"
	waits, owner := "s3", "o"
	f := &fake{locks: []client.Lock{exclusive, shared, byTTL, old}, waiters: []client.Waiter{
		{Key: "a:1", Pod: "web-2", Session: &waits, Owner: &owner, WaitingMS: 2000}, {Key: "a:2", Pod: "web-2", Session: &waits, WaitingMS: 3000},
	}}
	s := serve(t, f.start(t), nil)
	doc := s.page(200, "/sidecars")
	rows := func(class string) (lines []string) {
		for _, tr := range all(all(all(doc, "table", "class", class)[0], "tbody")[0], "tr") {
			var cells []string
			for _, td := range all(tr, "td") {
				cells = append(cells, strings.TrimSpace(textOf(td)))
			}
			lines = append(lines, strings.Join(cells, "|"))
		}
		return lines
	}
	if got, want := rows("instances"), []string{
		"old||old-0000000c|1|1|< 1 s", "web-0|v1.0.0|web-0-0000000a@v1.0.0|1|2|9 s", "web-1|v1.1.0|web-1-0000000b@v1.1.0|1|2|1 m 10 s",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := rows("sessions"), []string{
		"web-0/s1|v1.0.0|2|9 s|0|–", "web-1/s2|v1.1.0|1|1 s|0|–", "old/s1||1|< 1 s|0|–", "web-2/s3|only waits|0|–|2|3 s",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if text := textOf(all(doc, "dl")[0]); !strings.Contains(text, "Unknown version1") || !strings.Contains(text, "Version v1.0.01") {
		t.Error(text)
	}
	if href := attr(all(all(doc, "table", "class", "sessions")[0], "a")[0], "href"); href != "./?q=web-0%2Fs1" {
		t.Error(href)
	}
}

// A sidecar says its version in the name of its instance.
func TestVersionOfASidecar(t *testing.T) {
	in := sidecartest.Start(t, map[string]string{"POD": "web-0"}, "msg=ready")
	s := serve(t, in.Socket, nil)
	sidecartest.Dial(t, in.Socket).Acquire("job:1")
	if text := textOf(all(s.page(200, "/sidecars"), "dl")[0]); !strings.Contains(text, "Version test") {
		t.Error(text)
	}
}
